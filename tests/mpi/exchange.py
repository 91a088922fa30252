"""Every exchange of the catalogue against the mean, chosen by what its file says of it, on any number of ranks."""

import itertools
from importlib import import_module

import numpy as np
import pytest
import torch
from catalogued import UNUSED, usable
from torch import nn

from ddp_hpc.cli.main import BAIDU_FLOATS
from ddp_hpc.exchange import ring
from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.training import optimizers
from ddp_hpc.training.components import broadcast

LENGTHS = list(itertools.product([0, 1, 2, 7, 153_441], ["float32", "float64"]))
OVER_64_MB = [(16_777_219, "float32"), (8_388_611, "float64")]  # and no multiple of any number of ranks here


class Vectors(nn.Module):
    """Parameters of given shapes; the gradient of each is what it is multiplied with."""

    def __init__(self, *shapes):
        super().__init__()
        self.parts = nn.ParameterList(torch.ones(shape) for shape in shapes)

    def forward(self, given):
        return sum((part * values).sum() for part, values in zip(self.parts, given, strict=True) if values is not None)


def make(name, replica, comm, **options):
    """The exchange of that name with plain gradient descent, learning rate 1."""
    module = import_module(f"ddp_hpc.exchange.{name}")
    rule = optimizers.Maker("sgd", lambda step: 1.0)
    return module.make(replica, comm, Timers(), rule, **options)


def step(replica, exchange, *gradients):
    """One step whose gradients are these; None: that parameter takes no part."""
    loss = replica.forward(gradients)
    replica.zero_gradients()
    loss.backward()
    exchange.update()


def replica_of(*shapes, dtype=torch.float64):
    return Replica(Vectors(*shapes), torch.device("cpu"), dtype)


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


def test_ones_add_up_to_the_number_of_ranks_at_the_sizes_of_baidus_test(comm):
    for length in (0, *(floats for floats in BAIDU_FLOATS if floats < 10**7)):
        ones = np.ones(length, dtype=np.float32)
        ring.ring_allreduce(ones, comm)
        assert np.array_equal(ones, np.full(length, comm.size, dtype=np.float32)), length


@pytest.mark.parametrize("length", [0, 32])  # the first sizes of baidu's test: no message at all, a short one
def test_exchanges_of_nothing_or_little_end_with_the_mean(comm, length):
    for name in usable(comm.size, SYNCHRONOUS=True):
        replica = replica_of(length, dtype=torch.float32)
        exchange = make(name, replica, comm)
        step(replica, exchange, torch.full((length,), 1.0 + comm.rank))
        exchange.close()
        mean = (comm.size + 1) / 2
        assert torch.equal(replica.model.parts[0].detach(), torch.full((length,), 1 - mean)), name


@pytest.mark.parametrize("length", [0, 1, 7, 153_441])  # shorter than the ranks; ragged; real
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_exchanges_step_along_the_mean_gradient(comm, length, dtype):
    for name in usable(comm.size, EXACT=True, SYNCHRONOUS=True):
        replica = replica_of(length, (3, 2), dtype=getattr(torch, dtype))
        exchange = make(name, replica, comm)
        for number in (1, 2):
            mine = torch.arange(length) % 1000 + 100.0 * comm.rank + number  # whole, so the sum is exact
            step(replica, exchange, mine, torch.full((3, 2), float(comm.rank)))
        exchange.close()

        mean = torch.arange(length) % 1000 + 50.0 * (comm.size - 1)
        first, second = (part.detach() for part in replica.model.parts)
        tolerance = {"rtol": 1e-6, "atol": 1e-3} if dtype == "float32" else {"rtol": 1e-13, "atol": 1e-10}
        np.testing.assert_allclose(first, 1 - 2 * mean - 3, err_msg=name, **tolerance)
        np.testing.assert_allclose(second, np.full((3, 2), 1 - (comm.size - 1)), err_msg=name, **tolerance)


def test_gradients_of_more_than_64_mb_arrive(comm):
    if comm.size not in (2, 3):
        pytest.skip("tried with 2 and with 3 ranks: a message more per rank adds time, and no fact")
    length = 16_777_219
    for name in usable(comm.size, EXACT=True, SYNCHRONOUS=True):
        replica = replica_of(length, dtype=torch.float32)
        exchange = make(name, replica, comm)
        step(replica, exchange, torch.full((length,), float(comm.rank)))
        exchange.close()
        weights = replica.model.parts[0].detach()
        assert torch.equal(weights, torch.full((length,), 1 - (comm.size - 1) / 2)), name


def test_a_parameter_without_gradient_on_one_rank_counts_as_zeros_there(comm):
    for name in usable(comm.size, EXACT=True, SYNCHRONOUS=True):
        replica = replica_of(4, 5)
        exchange = make(name, replica, comm, **UNUSED.get(name, {}))
        for _ in range(2):
            step(replica, exchange, torch.ones(4), torch.ones(5) if comm.rank == 0 else None)
        exchange.close()
        used, sometimes = (part.detach() for part in replica.model.parts)
        np.testing.assert_allclose(used, np.full(4, -1.0), atol=1e-12, err_msg=name)
        np.testing.assert_allclose(sometimes, np.full(5, 1 - 2 / comm.size), atol=1e-12, err_msg=name)


def test_parameters_that_do_not_lie_in_one_piece_are_exchanged_too(comm):
    for name in usable(comm.size, EXACT=True, SYNCHRONOUS=True):
        model = Vectors((3, 4), 2)
        model.parts[0] = nn.Parameter(torch.arange(12.0).view(4, 3).t())
        replica = Replica(model, torch.device("cpu"), torch.float64)
        exchange = make(name, replica, comm)
        given = torch.arange(12.0).view(3, 4) + comm.rank
        step(replica, exchange, given, torch.zeros(2))
        exchange.close()
        expected = torch.arange(12.0).view(4, 3).t() - torch.arange(12.0).view(3, 4) - (comm.size - 1) / 2
        np.testing.assert_allclose(model.parts[0].detach(), expected, atol=1e-12, err_msg=name)


def test_broadcast_gives_all_ranks_the_values_of_rank_0(comm):
    tensors = [torch.full((3, 2), float(comm.rank)).t(), torch.tensor(comm.rank), torch.full((4,), comm.rank % 2 == 1)]
    broadcast(tensors, comm)
    assert [tensor.sum().item() for tensor in tensors] == [0.0, 0, 0]


def test_flags_say_whether_an_exchange_repeats_bit_for_bit(comm):
    for name in usable(comm.size, DETERMINISTIC=True, SYNCHRONOUS=True):
        results = []
        for _ in range(3):
            replica = replica_of(1000, 7, dtype=torch.float32)
            exchange = make(name, replica, comm)
            torch.manual_seed(comm.rank)
            for _ in range(2):
                step(replica, exchange, torch.randn(1000), torch.randn(7))
            exchange.close()
            results.append(replica.weights.clone())
        assert torch.equal(results[0], results[1]), name
        assert torch.equal(results[0], results[2]), name


def test_none_makes_no_mpi_call(comm):
    replica = replica_of(3)
    exchange = make("none", replica, comm=None)  # any call would raise
    step(replica, exchange, torch.ones(3))
    assert torch.equal(replica.model.parts[0].detach(), torch.zeros(3, dtype=torch.float64))
