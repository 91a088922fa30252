"""Exchanges that average all gradients on all ranks before each rank takes the same step."""

from collections.abc import Callable

from mpi4py import MPI
from torch import Tensor

from ddp_hpc.exchange._pinned import when_ready
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

Average = Callable[[], None]  # says when this rank's gradients are complete, then overwrites them with the mean of all


class AverageThenStep:
    """The exchange: averages the gradients, then takes the optimiser's step.

    `state` returns what `average` keeps from step to step, `close` gives back what it holds.
    """

    def __init__(
        self,
        replica: Replica,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        average: Average,
        *,
        state: Callable[[], list[Tensor]] = list,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._timers, self._average = timers, average
        self._optimizer = make_optimizer(replica.weights, replica.gradients)
        self.state, self.close = state, close

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        self._average()
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")


def where_they_lie(
    replica: Replica, comm: MPI.Intracomm, timers: Timers, average: Callable[[Tensor, MPI.Intracomm], None]
) -> Average:
    """Return the average of gradients given to MPI as they lie, if on a GPU by an MPI that is CUDA-aware.

    `execution.cuda_aware_check` has tried that before the start. `average` is that of a flat tensor, in place.
    """

    def average_gradients() -> None:
        when_ready(replica.gradients)
        timers.arrived()
        average(replica.gradients, comm)

    return average_gradients
