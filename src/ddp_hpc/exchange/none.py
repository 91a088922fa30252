"""No exchange: one rank on its own, without any MPI call in the step. The baseline of every speedup."""

from mpi4py import MPI

from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "one device"
COMPUTES = "the one rank"
MOVES_GRADIENTS = "nobody"
MOVES_MODEL = "nobody"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = True
COST = "nothing"
GRADIENT_PATH = "none"
MAX_WORLD_SIZE = 1


class Alone:
    """The optimiser's step and nothing else."""

    def __init__(self, replica: Replica, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._optimizer = make_optimizer(replica.weights, replica.gradients)
        self._timers = timers

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Nothing is held."""


def make(replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> Alone:
    """Return the exchange of one rank; `comm` is not used."""
    return Alone(replica, timers, make_optimizer)
