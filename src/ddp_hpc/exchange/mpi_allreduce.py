"""Gradients averaged by MPI's own Allreduce: blocking, in place."""

from mpi4py import MPI

from ddp_hpc.exchange._helpers import MakeOptimizer, Timers
from ddp_hpc.exchange._host import HostGradients
from ddp_hpc.replica import Replica

SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False


class MpiAllreduce:
    """One Allreduce per step, or one per piece of what is staged from a GPU, then the optimiser."""

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._gradients = HostGradients(replica.gradients)
        self._comm, self._timers = comm, timers
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        gradients = self._gradients
        gradients.begin(self._timers)
        for number in range(len(gradients.pieces)):  # one on a CPU; on a GPU the next is copied while this one is sent
            piece = gradients.ready(number)
            self._comm.Allreduce(MPI.IN_PLACE, piece)
            piece /= self._comm.size
            gradients.give_back(number)
        gradients.join()
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Nothing is held."""


def make(replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> MpiAllreduce:
    """Return the exchange; all ranks of `comm` must call. GPU gradients go through pinned host memory."""
    return MpiAllreduce(replica, comm, timers, make_optimizer)
