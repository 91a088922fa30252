"""Hogwild: all ranks of a node step on one model in shared memory, without locks and without waiting."""

import os

import torch
from mpi4py import MPI

from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.exchange._shared_window import make_private, share
from ddp_hpc.models._replica import Replica

SCHEME = "asynchronous in one memory"
COMPUTES = "all ranks, each at its own pace"
MOVES_GRADIENTS = "nobody: each rank steps on the one model"
MOVES_MODEL = "nobody: all read and write the one in host memory, without locks"
SYNCHRONOUS = False
EXACT = False
DETERMINISTIC = False
OVERLAPS = False
CAPTURABLE = False
COST = "shared_model"
ONE_NODE = True
DEVICES = ("cpu",)


class Hogwild:
    """Each rank's gradient is a step of its own on the one model, whatever the others do to it meanwhile.

    Two ranks that write the same number at the same time may lose one of the two updates, and a rank may compute with a
    model of which a part is newer than the rest: as in the paper, which shows that this is harmless where gradients
    are sparse. Those of dense networks are not, so what it costs there is to be measured. The optimiser's state
    (momentum, moments, number of steps) is each rank's own. Every gradient is a step, so n ranks take n times as many
    as one, and want a smaller learning rate.

    Source: Niu, Recht, Re and Wright, arXiv:1106.5730.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        shared, weights = share(comm, len(replica.weights), replica.weights.dtype, ranks=1)
        counters, steps = share(comm, 1, torch.int64)  # each written by its rank only, in a cache line of its own
        self._windows, self._steps = (counters, shared), steps.numpy()[:, 0]
        replica.move(weights=weights[0])
        self._optimizer = make_optimizer(replica.weights, replica.gradients)
        self._gradients, self._staleness, self._staleness_max = 0, 0, 0  # since training began or went on
        self._synchronized = False
        comm.Barrier()  # everybody has written the same weights there
        self._seen = self._by_others()

    def _by_others(self) -> int:
        """Return how many updates the other ranks have made so far."""
        return int(self._steps.sum() - self._steps[self._comm.rank])

    def update(self) -> None:
        """Step along this rank's gradients, on the weights as they are now."""
        if self._synchronized:
            self._gradients = self._staleness = self._staleness_max = 0
            self._synchronized = False
        missed = self._by_others() - self._seen
        self._gradients += 1
        self._staleness += missed
        self._staleness_max = max(self._staleness_max, missed)
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")
        self._steps[self._comm.rank] += 1
        os.sched_yield()  # where ranks share a core, one that never waits would leave the others' gradients to age
        self._seen = self._by_others()
        self._timers.mark("exchange_exposed_s")

    def synchronize(self) -> None:
        """Wait until every rank has made its updates: all see the same weights then."""
        self._comm.Barrier()
        self._seen = self._by_others()
        self._synchronized = True

    def metrics(self) -> dict[str, float | None]:
        """Return how many updates of others lay, in the mean and at most, between a gradient's weights and its use."""
        mean = self._staleness / self._gradients if self._gradients else None
        return {"staleness": mean, "staleness_max": float(self._staleness_max) if self._gradients else None}

    def close(self) -> None:
        """Move the weights to memory of their own, and give the shared memory back; call after `synchronize`."""
        make_private(self._replica)
        del self._steps, self._optimizer
        self._comm.Barrier()  # all have their copies
        for window in self._windows:
            window.Free()


make = Hogwild
