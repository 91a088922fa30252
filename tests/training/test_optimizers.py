"""Update rules on flat tensors against torch's own."""

import pytest
import torch

from ddp_hpc.training.optimizers import Maker, adam, cut, sgd, slices_of


class Flat(list):
    """As much of a flat tensor as tells where it lies, and how long it is."""

    def __init__(self, length, is_cuda):
        super().__init__([0] * length)
        self.is_cuda = is_cuda


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


@pytest.mark.parametrize(("make", "more"), [(adam, (0.01,)), (sgd, (0.9, 0.01)), (sgd, (0.0, 0.01))])
@pytest.mark.parametrize("length", [5, 1008, 153_472])
def test_slices_of_a_tensor_get_the_same_bits(make, more, length):
    generator, results = torch.Generator().manual_seed(0), []
    start, gradients = (torch.randn(length, generator=generator) for _ in range(2))
    for slices in (1, 36):
        weights = start.clone()
        update, kept = make(weights, gradients, *more, slices=slices)
        for _ in range(3):
            update(0.1)
        results.append([weights, *kept])
    assert all(map(torch.equal, *results))
    assert not torch.equal(results[0][0], start)


def test_a_gpu_gets_small_tensors_in_enough_slices_and_no_more_than_one_launch_takes():
    assert [slices_of(Flat(153_472, True), lists) for lists in (2, 3, 4)] == [64, 48, 36]
    assert slices_of(Flat(153_472, False), 4) == slices_of(Flat(36 * 65_536, True), 4) == 1
    pieces = cut(torch.arange(153_472), 36)
    assert len(pieces) <= 36
    assert max(map(len, pieces)) <= 65_536 // 10
    assert all(len(piece) % 16 == 0 for piece in pieces)
    assert torch.equal(torch.cat(pieces), torch.arange(153_472))


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
