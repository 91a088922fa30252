"""No exchange: one rank on its own, without any MPI call in the step. The baseline of every speedup."""

from mpi4py import MPI

from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer, Timers
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


class Alone(Exchange):
    """The optimiser's step and nothing else; `comm` is not used."""

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._optimizer = make_optimizer(replica.weights, replica.gradients)
        self._timers = timers

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        self._optimizer.step()
        self._timers.mark("update_s")


make = Alone
