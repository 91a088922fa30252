"""Gradients averaged in memory that the ranks of a node share, each rank its part, for one model that all look at."""

from mpi4py import MPI

from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.exchange._shared_window import SharedModel, mean_of
from ddp_hpc.models._replica import Replica

SCHEME = "CPU parameter server"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "nobody: each averages its n-th part where all are, in host memory"
MOVES_MODEL = "nobody: all read the one in host memory, of which each updates its n-th part"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "shared_memory"
ONE_NODE = True
DEVICES = ("cpu",)


class SharedMemory:
    """Two barriers per step; between them each rank averages its n-th of all gradients, and updates that of the model.

    No gradient is sent or copied: backward writes into the window. The weights are there once for all ranks, so each
    optimiser has a part of the work, and of the state.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._comm, self._timers = comm, timers
        self._model = SharedModel(replica, comm)
        mean = replica.weights.new_zeros(max((part.stop - part.start for part in self._model.mine), default=0))
        means = [mean[: part.stop - part.start] for part in self._model.mine]
        self._work = [
            (part, mean.numpy(), make_optimizer(replica.weights[part], mean))
            for part, mean in zip(self._model.mine, means, strict=True)
        ]

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        timers = self._timers
        timers.arrived()
        self._comm.Barrier()
        timers.mark("exchange_exposed_s")
        for part, mean, optimizer in self._work:
            mean_of(self._model.gradients, part, mean, self._comm.size)
            timers.mark("exchange_exposed_s")
            optimizer.step()
            timers.mark("update_s")
        self._comm.Barrier()  # nobody computes with weights that another still writes
        timers.mark("exchange_exposed_s")

    def close(self) -> None:
        """Move weights and gradients to memory of their own, and give the shared memory back."""
        self._work.clear()
        self._model.close()


make = SharedMemory
