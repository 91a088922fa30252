"""Exchanges against MPI's own answer, on any number of ranks."""

import itertools
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

from ddp_hpc import catalog, optimizers
from ddp_hpc.exchange import ring
from ddp_hpc.replica import Replica
from ddp_hpc.setup import broadcast

LENGTHS = list(itertools.product([0, 1, 2, 7, 153_441], ["float32", "float64"]))
OVER_64_MB = [(16_777_219, "float32"), (8_388_611, "float64")]  # and no multiple of any number of ranks here


class NoTimers:
    def arrived(self):
        pass

    def mark(self, phase):
        pass


def exact_exchanges(world_size):
    """The names of all exchanges in the catalogue that must follow one rank with the whole batch."""
    flags = {name: catalog.constants("exchange", name) for name in catalog.names("exchange")}
    return [name for name, flag in flags.items() if flag["EXACT"] and flag.get("MAX_WORLD_SIZE", 10**6) >= world_size]


def make(name, replica, comm):
    """The exchange of that name with plain gradient descent, learning rate 1."""
    module = import_module(f"ddp_hpc.exchange.{name}")
    sgd = lambda weights, gradients: optimizers.Sgd(weights, gradients, lambda step: 1.0, 0.0, 0.0)
    return module.make(replica, comm, NoTimers(), sgd)


@pytest.mark.parametrize(("length", "dtype"), LENGTHS + OVER_64_MB)
def test_ring_allreduce_sums_as_mpi_does(comm, length, dtype):
    mine = (np.arange(length) % 1000 * (comm.rank + 1)).astype(dtype)  # whole and below 2^24, so exact
    expected = np.empty_like(mine)
    comm.Allreduce(mine, expected)

    ring.ring_allreduce(mine, comm)

    assert np.array_equal(mine, expected)


def test_every_rank_gets_the_same_bits_from_a_ring(comm):
    mine = np.random.default_rng(comm.rank).standard_normal(10_001, dtype=np.float32)  # sums depend on their order
    ring.ring_allreduce(mine, comm)
    assert all(np.array_equal(mine, other) for other in comm.allgather(mine))


def test_ring_allreduce_refuses_what_mpi_cannot_send_in_one_piece(comm):
    with pytest.raises(ValueError, match="need a flat buffer"):
        ring.ring_allreduce(np.zeros((4, 4)), comm)
    with pytest.raises(ValueError, match="need a flat buffer"):
        ring.ring_allreduce(np.zeros(8)[::2], comm)


@pytest.mark.parametrize("bits", [np.float32, np.float64])
def test_exchanges_step_along_the_mean_gradient(comm, bits):
    for name in exact_exchanges(comm.size):
        torch.manual_seed(0)
        replica = Replica(nn.Linear(5, 3), torch.device("cpu"), getattr(torch, np.dtype(bits).name))
        before = replica.weights.numpy().copy()
        exchange = make(name, replica, comm)
        replica.gradients.copy_(torch.arange(len(before)) + 100 * comm.rank)
        exchange.update()
        exchange.close()

        mean = np.arange(len(before)) + 100 * (comm.size - 1) / 2
        np.testing.assert_allclose(replica.weights.numpy(), before - mean, rtol=1e-6 if bits is np.float32 else 1e-14)


def test_a_parameter_without_gradient_on_one_rank_counts_as_zeros_there(comm):
    for name in exact_exchanges(comm.size):
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(3, 2), "sometimes": nn.Linear(3, 2)})
        replica = Replica(model, torch.device("cpu"), torch.float64)
        before = [parameter.detach().clone() for parameter in model["sometimes"].parameters()]
        exchange = make(name, replica, comm)
        x = torch.ones(1, 3, dtype=torch.float64)
        outputs = model["used"](x) + (model["sometimes"](x) if comm.rank == 0 else 0)
        replica.zero_gradients()
        outputs.sum().backward()  # d/dw = 1 for every weight that takes part
        exchange.update()

        for parameter, old in zip(model["sometimes"].parameters(), before, strict=True):
            torch.testing.assert_close(parameter.detach(), old - 1 / comm.size, rtol=0, atol=1e-15)


def test_broadcast_gives_all_ranks_the_values_of_rank_0(comm):
    tensors = [torch.full((3, 2), float(comm.rank)).t(), torch.tensor(comm.rank), torch.full((4,), comm.rank % 2 == 1)]
    broadcast(tensors, comm)
    assert [tensor.sum().item() for tensor in tensors] == [0.0, 0, 0]


def test_flags_say_whether_an_exchange_repeats_bit_for_bit(comm):
    for name in exact_exchanges(comm.size):
        results = []
        for _ in range(3):
            torch.manual_seed(0)
            replica = Replica(nn.Linear(1000, 7), torch.device("cpu"), torch.float32)
            exchange = make(name, replica, comm)
            torch.manual_seed(comm.rank)
            replica.gradients.copy_(torch.randn(len(replica.gradients)))
            exchange.update()
            results.append(replica.weights.clone())
        if catalog.constants("exchange", name)["DETERMINISTIC"]:
            assert torch.equal(results[0], results[1])
            assert torch.equal(results[0], results[2])


def test_none_makes_no_mpi_call(comm):
    replica = Replica(nn.Linear(2, 1), torch.device("cpu"), torch.float32)
    exchange = make("none", replica, comm=None)  # any call would raise
    replica.gradients.fill_(1.0)
    before = replica.weights.clone()
    exchange.update()
    assert torch.equal(replica.weights, before - 1)
