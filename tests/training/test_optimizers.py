"""Update rules on flat tensors against torch's own."""

import pytest
import torch

from ddp_hpc.training.optimizers import Maker


def maker(rule, rate):
    """What makes optimisers by the fields of a spec, and a learning rate."""
    fields = {"optimizer": "sgd"} | rule
    return Maker(fields.pop("optimizer"), rate, **fields)


def compare(rule, reference, rate, steps=25):
    """Take the same steps with both; the gradient is that of a bowl that is steeper in some directions, plus noise."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1001, dtype=torch.float64, generator=generator)
    expected = torch.nn.Parameter(weights.clone())
    gradients = torch.zeros_like(weights)
    mine = maker(rule, rate)(weights, gradients)
    theirs = reference([expected])
    for step in range(1, steps + 1):
        noise = torch.randn(1001, dtype=torch.float64, generator=generator)
        gradients.copy_(weights * torch.linspace(0, 3, 1001) + noise)
        expected.grad = expected.detach() * torch.linspace(0, 3, 1001) + noise
        theirs.param_groups[0]["lr"] = rate(step)
        mine.step()
        theirs.step()
    torch.testing.assert_close(weights, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sgd_is_torchs(momentum, weight_decay):
    rule = {"momentum": momentum, "weight_decay": weight_decay}
    compare(rule, lambda weights: torch.optim.SGD(weights, 0.1, **rule), lambda step: 0.1 / step)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_adam_is_torchs(weight_decay):
    rule = {"optimizer": "adam", "weight_decay": weight_decay}
    reference = lambda weights: torch.optim.Adam(weights, 0.1, weight_decay=weight_decay)
    compare(rule, reference, lambda step: 0.01 * step)


@pytest.mark.parametrize("rule", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_the_state_is_all_that_has_to_be_put_back(rule):
    weights, gradients = torch.ones(5), torch.ones(5)
    one = maker(rule, lambda step: 0.1 * step)(weights, gradients)
    saved = [tensor.clone() for tensor in (weights, *one.state())]
    results = []
    for _ in range(2):
        for _ in range(3):
            one.step()
        results.append(weights.clone())
        for tensor, old in zip((weights, *one.state()), saved, strict=True):
            tensor.copy_(old)
    assert torch.equal(results[0], results[1])
