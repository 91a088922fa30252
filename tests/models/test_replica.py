"""Flat weights and gradients behave like the model's own."""

import copy

import pytest
import torch
from torch import nn

from ddp_hpc.models._replica import ALIGNMENT_BYTES, Replica
from ddp_hpc.training.snapshot import Snapshot

CPU = torch.device("cpu")


class Awkward(nn.Module):
    """Odd sizes; a weight that is not contiguous and used twice, one that is frozen, one that is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = nn.Parameter(torch.randn(5, 5).t())
        self.third.weight = self.second.weight
        self.first.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.randn(7))
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x):
        return self.norm(self.third(torch.tanh(self.second(torch.tanh(self.first(x))))))


def test_gradients_are_those_of_the_plain_model():
    plain = Awkward().double()
    replica = Replica(copy.deepcopy(plain), CPU, torch.float64)
    x = torch.randn(11, 3, dtype=torch.float64)
    for _ in range(2):  # the second time shows what was not cleared
        plain.zero_grad()
        plain(x).pow(3).sum().backward()
        replica.zero_gradients()
        replica.model(x).pow(3).sum().backward()
    for (name, expected), mine in zip(plain.named_parameters(), replica.model.parameters(), strict=True):
        if not expected.requires_grad:
            assert mine.grad is None
        elif name == "unused":
            assert torch.equal(mine.grad, torch.zeros(7, dtype=torch.float64))
        else:
            torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-12, atol=1e-12)


def test_weights_and_gradients_share_the_flat_memory_in_the_order_of_the_parameters():
    replica = Replica(Awkward(), CPU, torch.float32)
    trained = [parameter for parameter in replica.model.parameters() if parameter.requires_grad]
    replica.gradients.copy_(torch.arange(len(replica.gradients)))
    starts = [int(parameter.grad.flatten()[0]) for parameter in trained]
    assert starts == sorted(starts)
    assert all(start * 4 % ALIGNMENT_BYTES == 0 for start in starts)
    assert all(parameter.grad.is_contiguous() and parameter.is_contiguous() for parameter in trained)
    replica.weights.zero_()
    assert all(not parameter.any() for parameter in trained)
    assert replica.parameters == 3 * 5 + 25 + 5 + 5 + 7 + 10  # the shared weight once, the frozen bias not


def test_values_and_buffers_survive_the_move():
    plain = Awkward()
    replica = Replica(copy.deepcopy(plain), CPU, torch.float32)
    for name, value in plain.state_dict().items():
        assert torch.equal(replica.model.state_dict()[name], value)
    assert len(replica.buffers()) == 3


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="ReLU has no trainable parameter"):
        Replica(nn.ReLU(), CPU, torch.float32)


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_complex_numbers_are_refused_for_a_cast_would_take_their_imaginary_part(kind):
    model = nn.Linear(3, 5)
    turned = torch.ones(2, dtype=torch.complex64)
    model.turned = nn.Parameter(turned) if kind == "parameter" else None
    if kind == "buffer":
        model.register_buffer("rotation", turned)
    with pytest.raises(ValueError, match=r"Linear: \w+ is complex64, expected: real numbers.*view_as_real"):
        Replica(model, CPU, torch.float32)


def test_buffers_whose_entries_share_memory_can_be_set_and_brought_back():
    model = nn.Linear(3, 5)
    model.register_buffer("positions", torch.arange(3.0).expand(4, 3))
    replica = Replica(model, CPU, torch.float64)
    snapshot = Snapshot([], replica.model, CPU)
    (positions,) = replica.buffers()
    positions.copy_(torch.arange(12.0).view(4, 3))
    assert positions.flatten().tolist() == list(range(12))
    snapshot.restore()
    assert positions.tolist() == [[0.0, 1.0, 2.0]] * 4


def test_a_snapshot_brings_back_tensors_and_random_numbers():
    replica = Replica(Awkward(), CPU, torch.float32)
    kept, expected = replica.weights.clone(), None
    snapshot = Snapshot([replica.weights], replica.model, CPU)
    for _ in range(2):
        replica.model(torch.randn(4, 3))  # moves the running mean
        replica.weights.mul_(2)
        drawn = torch.rand(3)
        assert expected is None or torch.equal(drawn, expected)
        expected = drawn
        snapshot.restore()
        assert torch.equal(replica.weights, kept)
        assert not replica.model.norm.running_mean.any()
