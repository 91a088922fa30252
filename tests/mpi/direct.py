"""Gradients averaged where they lie: the code is the same for tensors of a GPU, which an MPI must be able to read."""

import numpy as np
import pytest
import torch
from exchange import make, replica_of, step

from ddp_hpc.exchange import ring
from ddp_hpc.execution import cuda_aware_check

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["ring", "ring_overlapped", "mpi_allreduce", "parameter_server"])
@pytest.mark.parametrize("shapes", [(1,), (7, (30, 7)), (1 << 20,)])
def test_a_step_is_that_of_the_path_through_host_memory(comm, name, shapes):
    weights = []
    for path in ("host", "direct"):
        replica = replica_of(*shapes)
        exchange = make(name, replica, comm, gpu_path=path)
        for _ in range(2):
            step(replica, exchange, *(torch.arange(np.prod(shape)).view(shape) + comm.rank for shape in shapes))
        exchange.close()
        weights.append(replica.weights.numpy())
    assert not np.array_equal(weights[0], np.ones_like(weights[0]))
    np.testing.assert_allclose(*weights, rtol=1e-12)


def test_what_the_trial_finds_on_memory_that_mpi_reads(comm):
    assert cuda_aware_check.wrong_averages(comm, CPU) is None


def test_the_trial_finds_what_was_not_moved(comm, monkeypatch):
    monkeypatch.setattr(ring, "ring_average", lambda buffer, comm: None)
    found = cuda_aware_check.wrong_averages(comm, CPU)
    assert found is None if comm.size == 1 else found.startswith("<lambda> of ")  # on every rank
