"""Gradients given to MPI as they lie in a GPU's memory: by an MPI that reads it, which `gpu_direct` has tried."""

from collections.abc import Callable

from mpi4py import MPI
from torch import Tensor

from ddp_hpc.exchange._pinned import when_ready
from ddp_hpc.exchange._protocol import MakeOptimizer
from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.timers import Timers

Average = Callable[[Tensor, MPI.Intracomm], None]


class Direct:
    """One allreduce of all gradients where they lie, then the optimiser.

    Args:
        replica, timers, make_optimizer: as of every exchange.
        comm: whose ranks exchange; its MPI must be able to read the memory of `replica.gradients`.
        average: averages a flat tensor over the ranks, in place.
    """

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        average: Average,
    ) -> None:
        self._gradients, self._comm, self._timers, self._average = replica.gradients, comm, timers, average
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        when_ready(self._gradients)
        self._timers.arrived()
        self._average(self._gradients, self._comm)
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Nothing is held."""
