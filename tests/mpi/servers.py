"""Exchanges with servers, and weight averaging, on any number of ranks."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from exchange import make, replica_of, step
from torch import nn

from ddp_hpc.config import spec
from ddp_hpc.exchange import _server, gather_server, parameter_server, sharded_server
from ddp_hpc.models import mlp
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.training import components, optimizers
from ddp_hpc.training.step import training_step

DIGITS = {
    "model": {"name": "mlp", "widths": [16]},
    "dataset": "digits",
    "batch_size": 12,
    "learning_rate": 0.1,
    "budget": {"steps": 20},
    "device": "cpu",
    "dtype": "float64",
}


class Marks(Timers):
    """Stateful what an exchange tells the clock."""

    def __init__(self):
        self.marked = []

    def mark(self, phase, part=None):
        self.marked.append(part or phase)


def assembled(comm, exchange, **fields):
    given = spec.load(DIGITS | {"exchange": exchange, "world_size": comm.size} | fields)
    return components.assemble(given, comm, Path("unused"), torch.device("cpu"))


def same_on_all(comm, values):
    return len({other.tobytes() for other in comm.allgather(values.numpy())}) == 1


# servers that all wait for


def test_every_kth_rank_serves():
    assert _server.serving_ranks(8, 2) == [0, 4]
    assert _server.serving_ranks(8, 8) == list(range(8))
    assert _server.serving_ranks(5, 3) == [0, 1, 3]


def test_shards_cover_the_model_once_and_differ_by_at_most_one_number():
    for length, servers in [(0, 3), (2, 3), (7, 3), (1000, 7)]:
        shards = _server.parts(length, servers)
        assert [number for part in shards for number in range(length)[part]] == list(range(length))
        sizes = [part.stop - part.start for part in shards]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("length", [0, 1, 2, 7, 1000, 2 * _server.PIECE_BYTES + 3])
def test_any_number_of_servers_gives_the_bits_of_one(comm, length):
    results = []
    several = [("sharded_server", {"servers": servers}) for servers in range(1, comm.size + 1)]
    for name, options in [("parameter_server", {}), ("gather_server", {}), *several]:
        replica = replica_of(length, 3, dtype=torch.float32)
        exchange = make(name, replica, comm, **options)
        torch.manual_seed(comm.rank)
        for _ in range(3):
            step(replica, exchange, torch.randn(length), torch.randn(3))
        exchange.close()
        assert same_on_all(comm, replica.weights)
        results.append(replica.weights.clone())
    assert all(torch.equal(result, results[0]) for result in results)


def test_gradients_are_added_in_the_order_of_the_ranks_whoever_comes_first(comm):
    length = _server.PIECE_BYTES  # several pieces
    all_gradients = np.random.default_rng(0).standard_normal((comm.size, length), dtype=np.float32)
    expected = all_gradients[0].copy()
    for row in all_gradients[1:]:
        expected += row
    expected /= np.float32(comm.size)
    for late in range(comm.size):
        replica = replica_of(length, dtype=torch.float32)
        exchange = make("parameter_server", replica, comm)
        time.sleep(0.02 * (comm.rank == late))
        step(replica, exchange, torch.from_numpy(all_gradients[comm.rank]))
        if comm.rank == 0:
            assert np.array_equal(replica.gradients.numpy(), expected)


def test_only_servers_keep_optimiser_state_and_only_of_their_part(comm):
    length = 1000
    for servers in range(1, comm.size + 1):
        rule = optimizers.Maker("adam", lambda step: 0.1)
        sharded_server.make(replica_of(length), comm, Timers(), rule, servers=servers)
        numbers = sum(len(state) for optimizer in rule.made for state in optimizer.state() if state.dim())
        assert comm.allreduce(bool(numbers)) == servers
        assert comm.allreduce(numbers) == 2 * length


@pytest.mark.parametrize("server", [parameter_server, gather_server])
def test_a_parameter_server_tells_its_three_times_apart(comm, server):
    timers, replica = Marks(), replica_of(1000)
    exchange = server.make(replica, comm, timers, optimizers.Maker("sgd", lambda step: 1.0))
    step(replica, exchange, torch.ones(1000))
    if comm.rank == 0:
        assert timers.marked == ["gather_s", "average_s", "update_s", "distribute_s"]
    else:
        assert timers.marked == ["gather_s", "distribute_s"]


@pytest.mark.parametrize("compression", ["float16", "bfloat16"])
def test_half_precision_gives_the_mean_of_what_it_can_hold(comm, compression):
    replica = replica_of(1000)
    exchange = make("parameter_server", replica, comm, compression=compression)
    for _ in range(2):
        step(replica, exchange, torch.arange(1000) % 100 + comm.rank)  # both types hold these
    expected = 1 - 2 * (torch.arange(1000) % 100 + (comm.size - 1) / 2)
    np.testing.assert_allclose(replica.model.parts[0].detach(), expected, rtol=1e-14)
    assert same_on_all(comm, replica.weights)


def test_what_top_k_has_not_sent_is_kept_and_nothing_is_lost(comm):
    replica = replica_of(1024)
    exchange = make("parameter_server", replica, comm, compression="top_k", kept=0.05)
    given = torch.from_numpy(np.random.default_rng(comm.rank).integers(-50, 50, (6, 1024)).astype(float))
    for gradients in given:
        step(replica, exchange, gradients)
    late = exchange.state()[0].numpy()
    assert (comm.rank == 0) or (late != 0).any()
    moved = (1 - replica.weights.numpy()) * comm.size
    np.testing.assert_allclose(moved + comm.allreduce(late), comm.allreduce(given.sum(0).numpy()), atol=1e-9)


# weights that are averaged


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_averaging_weights_in_each_step_is_averaging_gradients_from_the_second_step_on(comm, momentum):
    """REFERENCE S2: the starts matter in the first step only."""
    fields = {"momentum": momentum}
    apart = assembled(comm, {"name": "weight_average", "different_starts": True}, **fields)
    starts = comm.allgather(apart.replica.weights.numpy().copy())
    assert len({start.tobytes() for start in starts}) == comm.size
    training_step(apart, 0)

    together = assembled(comm, "mpi_allreduce", **fields)
    together.replica.weights.copy_(apart.replica.weights)
    for mine, other in zip(together.optimizers[0].state(), apart.optimizers[0].state(), strict=True):
        mine.copy_(torch.from_numpy(np.asarray(comm.allreduce(other.numpy() / comm.size))))
    for number in range(1, 12):
        training_step(apart, number)
        training_step(together, number)
        np.testing.assert_allclose(apart.replica.weights, together.replica.weights, rtol=0, atol=1e-12)
    assert not np.allclose(apart.replica.weights, starts[0], atol=1e-3)  # it has moved


def test_between_averages_ranks_differ_and_synchronizing_shows_their_mean(comm):
    replica = replica_of(8)
    exchange = make("weight_average", replica, comm, period=3)
    mean = (comm.size + 1) / 2  # of the ranks' gradients below
    for number in range(1, 10):
        step(replica, exchange, torch.full((8,), comm.rank + 1.0))
        averaged, since = number // 3 * 3, number % 3
        expected = 1 - averaged * mean - since * (comm.rank + 1)
        np.testing.assert_allclose(replica.weights, np.full(8, expected), atol=1e-12)
        own = replica.weights.clone()
        exchange.synchronize()  # as before an evaluation, after which each goes on with its own
        np.testing.assert_allclose(replica.weights, np.full(8, 1 - number * mean), atol=1e-12)
        replica.weights.copy_(own)
    assert exchange.state()[0] == 9
    exchange.close()


class Noisy(nn.Module):
    """A layer and a buffer, both drawn at random."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("noise", torch.rand(10))

    def forward(self, x):
        return self.layer(x) + self.noise


def test_ranks_may_start_from_different_weights_with_the_same_buffers(comm, monkeypatch):
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: Noisy())
    apart = {"name": "weight_average", "different_starts": True}
    replica = assembled(comm, apart).replica
    assert len({other.tobytes() for other in comm.allgather(replica.weights.numpy())}) == comm.size
    assert same_on_all(comm, replica.buffers()[0])
    assert torch.equal(replica.weights, assembled(comm, apart).replica.weights)  # a seed repeats
    assert not torch.equal(replica.weights, assembled(comm, apart, seed=1).replica.weights)
    assert same_on_all(comm, assembled(comm, "weight_average").replica.weights)
