"""Options of the exchanges over plain messages: compression that converges, buckets that start early."""

import numpy as np
import pytest
import torch
from exchange import make, replica_of, step
from training import run

SHAPES = (5, 1000, (30, 7), 3)  # one giant among small ones
OPTIONS = [
    ("ring_overlapped", {"bucket_mb": 1e-6}),  # one parameter each
    ("ring_overlapped", {"bucket_mb": 0.002}),
    ("ring_overlapped", {"bucket_mb": 1000.0}),
    ("mpi_allreduce", {"bucket_mb": 1e-4}),  # no divisor of the length
    ("mpi_allreduce", {"bucket_mb": 1000.0}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_buckets_of_any_size_give_the_mean(comm, name, options):
    replica = replica_of(*SHAPES)
    exchange = make(name, replica, comm, **options)
    for _ in range(2):
        step(replica, exchange, *(torch.arange(np.prod(shape)).view(shape) + comm.rank for shape in SHAPES))
    exchange.close()
    for part, shape in zip(replica.model.parts, SHAPES, strict=True):
        expected = 1 - 2 * (np.arange(np.prod(shape)).reshape(shape) + (comm.size - 1) / 2)
        np.testing.assert_allclose(part.detach(), expected, rtol=1e-12)


def test_buckets_start_in_the_backward_pass_and_no_more_once_closed(comm):
    replica, started_so_far = replica_of(*SHAPES), []
    exchange = make("ring_overlapped", replica, comm, bucket_mb=1e-6)
    buckets = exchange._buckets
    assert len(buckets) == len(SHAPES)
    for part in replica.model.parts:
        part.register_post_accumulate_grad_hook(lambda _: started_so_far.append(sum(b.started for b in buckets)))
    given = [torch.ones(shape) for shape in SHAPES]
    replica.forward(given).backward()
    assert started_so_far == [1, 2, 3, 4]  # each as soon as its gradient is there
    exchange.update()
    exchange.close()

    replica.forward(given).backward()
    assert not any(bucket.started for bucket in buckets)


def test_ranks_whose_layers_are_ready_in_different_orders_agree(comm):
    replica = replica_of(4, 5, 6)
    exchange = make("ring_overlapped", replica, comm, bucket_mb=1e-6)
    for number in range(3 * comm.size):
        absent = (number + comm.rank) % 3  # another one on every rank
        step(replica, exchange, *(None if place == absent else torch.ones(4 + place) for place in range(3)))
    exchange.close()
    for place, part in enumerate(replica.model.parts):
        absences = sum((number + rank) % 3 == place for number in range(3 * comm.size) for rank in range(comm.size))
        expected = 1 - (3 * comm.size * comm.size - absences) / comm.size
        np.testing.assert_allclose(part.detach(), expected, atol=1e-12)


@pytest.mark.parametrize("options", [{"compression": "float16"}, {"compression": "bfloat16"}])
def test_halves_follow_the_full_gradients_on_the_digits(comm, options):
    full, _, _ = run(comm, exchange="mpi_allreduce", budget={"steps": 60})
    half, _, _ = run(comm, exchange={"name": "mpi_allreduce", **options}, budget={"steps": 60})
    np.testing.assert_allclose(half.losses, full.losses, rtol=0.05)
    assert list(half.losses) != list(full.losses)


def test_a_tenth_of_the_gradients_with_error_feedback_learns_the_digits_as_well(comm):
    full, _, _ = run(comm, exchange="mpi_allreduce", budget={"steps": 200})
    exchange = {"name": "mpi_allreduce", "compression": "top_k", "kept": 0.1}
    part, replica, _ = run(comm, exchange=exchange, budget={"steps": 200})
    assert part.evaluations[-1][1] > full.evaluations[-1][1] - 0.05  # accuracy
    assert all(np.array_equal(replica.weights, other) for other in comm.allgather(replica.weights.numpy()))
