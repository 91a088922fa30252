"""Rank 0 serves beside computing: MPI_Gather, then the mean, a step, MPI_Bcast of the weights, one after another."""

import numpy as np
from mpi4py import MPI

from ddp_hpc.exchange._pinned import Pinned, when_ready
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer, Timers
from ddp_hpc.exchange._server import add_in_order
from ddp_hpc.models._replica import Replica

SCHEME = "parameter server"
COMPUTES = "all ranks; rank 0 serves too"
MOVES_GRADIENTS = "MPI_Gather, all ranks to rank 0, which then averages"
MOVES_MODEL = "MPI_Bcast, rank 0 to all ranks"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "parameter_server"


class GatherServer(Exchange):
    """The scheme of SHM-Learn-Dist to the letter (Biswas, 2017), section 6, steps 3 to 6, with MPI's own collectives.

    It trains to the bit as `parameter_server`, which averages each piece while later ones arrive. Here averaging begins
    when all gradients have come, and how they come is MPI's choice, e.g. along a tree: the source explains its times by
    that. Rank 0 needs room for the gradients of all. What lies on a GPU goes through pinned host memory.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        self._weights, self._gradients = Pinned(replica.weights), Pinned(replica.gradients)
        self._all = None
        if comm.rank == 0:
            self._all = np.empty((comm.size, len(replica.gradients)), self._gradients.array.dtype)
            self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        when_ready(self._replica.gradients)
        self._timers.arrived()
        own = self._gradients.array
        self._gradients.pull()
        self._comm.Gather(own, self._all)
        self._timers.mark("exchange_exposed_s", "gather_s")
        if self._all is not None:
            add_in_order(own, self._all[1:], place=0)
            own /= self._comm.size
            self._gradients.push()
            self._timers.mark("exchange_exposed_s", "average_s")
            self._optimizer.step()
            self._timers.mark("update_s")
            self._weights.pull()
        self._comm.Bcast(self._weights.array)
        if self._comm.rank != 0:
            self._weights.push()
        self._timers.mark("exchange_exposed_s", "distribute_s")


make = GatherServer
