"""The server that nobody waits for, on any number of ranks."""

import pytest
import torch
from exchange import make, replica_of, step

from ddp_hpc.exchange import async_server


def constant_steps(replica, exchange, numbers, value):
    """So many steps with this gradient."""
    for _ in range(numbers):
        step(replica, exchange, torch.full((len(replica.weights),), float(value)))


@pytest.mark.parametrize("length", [8, 16 * 4096])  # below and above the eager limit
def test_every_gradient_moves_the_weights_once_whatever_the_order(comm, length):
    replica = replica_of(length)
    exchange = make("async_server", replica, comm)
    expected, updates = 1.0, 0
    for again in range(3):  # training goes on after all have synchronized
        steps = [5 * rank + again for rank in range(comm.size)]
        constant_steps(replica, exchange, steps[comm.rank], comm.rank + 1)
        exchange.synchronize()
        expected -= sum(number * (rank + 1) for rank, number in enumerate(steps))
        updates += sum(steps)
        assert torch.equal(replica.weights, torch.full((length,), expected, dtype=torch.float64))
        assert exchange.state()[0] == updates
    exchange.synchronize()  # with nothing to do
    assert torch.equal(replica.weights, torch.full((length,), expected, dtype=torch.float64))
    exchange.close()


def test_nothing_is_lost_or_stuck_with_more_than_64_mb(comm):
    length = 16_777_232
    replica = replica_of(length, dtype=torch.float32)
    exchange = make("async_server", replica, comm)
    constant_steps(replica, exchange, 3, comm.rank + 1)
    exchange.synchronize()
    exchange.close()
    assert torch.equal(replica.weights, torch.full((length,), 1 - 3.0 * sum(range(comm.size + 1))))


def test_a_gradient_that_is_lost_is_an_error(comm):
    replica = replica_of(8)
    exchange = make("async_server", replica, comm)
    constant_steps(replica, exchange, 4, 1)
    if comm.rank == 0 < comm.size - 1:
        with pytest.raises(RuntimeError, match=f"rank {comm.size - 1} sent 5 gradients, 4 were applied"):
            exchange.synchronize()
    elif comm.rank == comm.size - 1 > 0:
        exchange._sent += 1  # as if one had not arrived
    exchange.synchronize()
    exchange.close()


def test_a_slow_worker_holds_up_nobody(comm):
    """The last rank takes no step before all others have told it that they have taken all of theirs."""
    replica = replica_of(16 * 4096)
    exchange = make("async_server", replica, comm)
    slow = comm.size - 1
    if comm.rank == slow:
        for other in range(slow):
            comm.recv(source=other)
        constant_steps(replica, exchange, 2, 1)
    else:
        constant_steps(replica, exchange, 25, 1)
        comm.send(None, slow)
    exchange.synchronize()
    exchange.close()
    assert torch.equal(replica.weights, torch.full_like(replica.weights, 1 - 25 * slow - 2))


def test_a_worker_does_not_wait_for_weights(comm):
    """The server takes no step before each worker has told it of two: one gradient received, one on its way."""
    replica = replica_of(16 * 4096)
    exchange = make("async_server", replica, comm)
    if comm.rank == 0:
        for worker in range(1, comm.size):
            comm.recv(source=worker)
        constant_steps(replica, exchange, 2, 1)
    else:
        constant_steps(replica, exchange, 2, 1)
        comm.send(None, 0)
    exchange.synchronize()
    exchange.close()
    assert torch.equal(replica.weights, torch.full_like(replica.weights, 1 - 2 * comm.size))


def test_staleness_counts_the_updates_in_between(comm):
    replica = replica_of(64)
    exchange = make("async_server", replica, comm)
    constant_steps(replica, exchange, 30, 1)
    exchange.synchronize()
    constant_steps(replica, exchange, 10, 1)
    exchange.synchronize()
    exchange.synchronize()  # as before an evaluation: nothing was sent, so the numbers stay
    reported = exchange.metrics()
    exchange.close()
    if comm.rank:
        assert reported == {"staleness": None, "staleness_max": None}
    elif comm.size == 1:
        assert reported == {"staleness": 0.0, "staleness_max": 0.0}
    else:
        assert 0 < reported["staleness"] <= reported["staleness_max"] < 10 * comm.size


def test_the_first_gradient_of_a_worker_is_as_stale_as_there_were_updates(comm):
    """The server takes its steps alone, then the others come, one after another, each with weights of the start."""
    replica = replica_of(64)
    exchange = make("async_server", replica, comm)
    constant_steps(replica, exchange, 5, 1)
    exchange.synchronize()  # what was before, e.g. a warm-up, does not count
    if comm.rank == 0:
        constant_steps(replica, exchange, 7, 1)
    comm.Barrier()
    if comm.rank > 0:
        constant_steps(replica, exchange, 1, 1)
    exchange.synchronize()
    reported = exchange.metrics()
    exchange.close()
    if comm.rank == 0:
        stale = [0] * 7 + [7 + earlier for earlier in range(comm.size - 1)]
        assert reported == {"staleness": sum(stale) / len(stale), "staleness_max": float(max(stale))}


def test_a_worker_takes_weights_over_while_training_goes_on(comm):
    """Each waits for the other's news after its steps, so the weights must come without any `synchronize`."""
    if comm.size == 1:
        pytest.skip("there is no worker")
    replica = replica_of(16)
    exchange = make("async_server", replica, comm)
    taken = 0
    for _ in range(2000):
        constant_steps(replica, exchange, 1, 1)
        taken += 1
        if comm.allreduce(int(exchange.state()[0]) > 0) == comm.size:
            break
    if isinstance(exchange, async_server.Worker):
        assert not torch.equal(replica.weights, torch.ones(16, dtype=torch.float64))
    exchange.synchronize()
    exchange.close()
    assert torch.equal(replica.weights, torch.full((16,), 1.0 - taken * comm.size, dtype=torch.float64))
