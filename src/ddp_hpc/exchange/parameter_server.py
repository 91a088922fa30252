"""Rank 0 serves beside computing: it gathers all gradients, averages them, steps, and broadcasts the weights."""

from mpi4py import MPI

from ddp_hpc.exchange._helpers import MakeOptimizer, Timers
from ddp_hpc.exchange._host import Hosted, when_ready
from ddp_hpc.exchange._serving import Collector, send
from ddp_hpc.replica import Replica

SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False


class ParameterServer:
    """The scheme of SHM-Learn-Dist (Biswas, 2017), section 6, steps 3 to 6, with the three times that it publishes.

    All goes through rank 0, which takes in (n-1) times the gradients. What it waits for counts as gathering; elsewhere
    gathering is sending, and distributing is to wait for the weights and to receive them.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        self._weights, self._gradients = Hosted(replica.weights), Hosted(replica.gradients)
        if comm.rank == 0:
            self._optimizer = make_optimizer(replica.weights, replica.gradients)
            self._collector = Collector(self._gradients.array, comm)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        when_ready(self._replica.gradients)
        self._timers.arrived()
        self._gradients.pull()
        if self._comm.rank == 0:
            self._serve()
        else:
            MPI.Request.Waitall(send(self._gradients.array, self._comm, server=0))
            self._timers.mark("exchange_exposed_s", "gather_s")
        self._comm.Bcast(self._weights.array)
        if self._comm.rank != 0:
            self._weights.push()
        self._timers.mark("exchange_exposed_s", "distribute_s")

    def _serve(self) -> None:
        """Average the gradients of all ranks, and step."""
        self._collector.listen()
        self._collector.mean(self._timers)
        self._gradients.push()
        self._optimizer.step()
        self._timers.mark("update_s")
        self._weights.pull()

    def close(self) -> None:
        """Nothing is held."""


def make(replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> ParameterServer:
    """Return the exchange; all ranks of `comm` must call. What lies on a GPU goes through pinned host memory."""
    return ParameterServer(replica, comm, timers, make_optimizer)
