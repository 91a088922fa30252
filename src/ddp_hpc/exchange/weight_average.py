"""Each rank steps on its own; every `period` steps the weights are averaged. The optimiser's state stays apart."""

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.exchange._pinned import Pinned, when_ready
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "weight averaging"
COMPUTES = "all ranks, each for its own model"
MOVES_GRADIENTS = "nobody"
MOVES_MODEL = "MPI, the mean of all weights every `period` steps"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = False
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "periodic_allreduce"
COST_OPTIONS = ("period",)
INDEPENDENT_INITIALIZATION = {"different_starts": (True,)}


class WeightAverage(Exchange):
    """w <- mean over ranks of (w_i - learning rate x g_i): Biswas, SHM-Learn-Dist (2017), equation 2.2.

    With SGD, momentum or not, and `period` 1 that is gradient averaging, from the mean of the weights at the start.
    GPU weights go through pinned host memory.

    Args:
        period: the weights are averaged after so many steps of each rank; above 1, ranks differ in between.
        different_starts: the ranks draw different weights to start from, which `components.assemble` sees to.
    """

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        *,
        period: PositiveInt = 1,
        different_starts: bool = False,
    ) -> None:
        self._replica, self._comm, self._timers, self._period = replica, comm, timers, period
        self._weights = Pinned(replica.weights)
        self._optimizer = make_optimizer(replica.weights, replica.gradients)
        self._steps = torch.zeros((), dtype=torch.int64)

    def update(self) -> None:
        """Step, and average the weights if it is time."""
        self._optimizer.step()
        self._timers.mark("update_s")
        self._steps += 1
        if self._steps % self._period == 0:
            when_ready(self._replica.weights)
            self._timers.arrived()
            self.synchronize()
            self._timers.mark("exchange_exposed_s")

    def synchronize(self) -> None:
        """Give all ranks the mean of their weights. All ranks must call."""
        self._weights.pull()
        self._comm.Allreduce(MPI.IN_PLACE, self._weights.array)
        self._weights.array /= self._comm.size
        self._weights.push()

    def state(self) -> list[Tensor]:
        """Return the number of steps, which says when to average."""
        return [self._steps]


make = WeightAverage
