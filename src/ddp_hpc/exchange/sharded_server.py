"""Several ranks serve a part of the model each: gather that part of all gradients, average, step, send the weights."""

from mpi4py import MPI

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.exchange._pinned import Pinned, when_ready
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer, Timers
from ddp_hpc.exchange._server import WEIGHTS, Collector, parts, send, serving_ranks
from ddp_hpc.models._replica import Replica

SCHEME = "several parameter servers"
COMPUTES = "all ranks; k of them serve too"
MOVES_GRADIENTS = "all ranks to k servers, a k-th part to each"
MOVES_MODEL = "k servers to all ranks, a k-th part each"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "sharded_server"
COST_OPTIONS = ("servers",)
UP_TO_WORLD_SIZE = ("servers",)


class ShardedServer(Exchange):
    """As `parameter_server`, by so many servers; each keeps the optimiser's state of its own part only.

    With a server on every rank, each rank sends 2 (n-1)/n of the buffer, as in a ring, but in one step each way.

    Args:
        servers: so many ranks serve, every k-th; None: every rank.

    Source: the multiple parameter servers of Li et al., OSDI 2014, with ranks that compute as servers.
    """

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        *,
        servers: PositiveInt | None = None,
    ) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        self._weights, self._gradients = Pinned(replica.weights), Pinned(replica.gradients)
        servers = servers or comm.size
        shards = zip(serving_ranks(comm.size, servers), parts(len(replica.weights), servers), strict=True)
        self._shards = {rank: part for rank, part in shards if part.start < part.stop}  # an empty one needs no server
        self._own = self._shards.pop(comm.rank, None)
        if self._own is not None:
            self._optimizer = make_optimizer(replica.weights[self._own], replica.gradients[self._own])
            self._collector = Collector(self._gradients.array[self._own], comm)

    def update(self) -> None:
        """Go from fresh gradients to the next weights. Nobody waits before all that it sends or needs is under way."""
        if self._own is not None:
            self._collector.listen()
        weights, shards = self._weights.array, self._shards.items()
        arriving = [self._comm.Irecv(weights[part], rank, WEIGHTS) for rank, part in shards]
        when_ready(self._replica.gradients)
        self._timers.arrived()
        self._gradients.pull()
        leaving = [one for rank, part in shards for one in send(self._gradients.array[part], self._comm, rank)]
        if self._own is not None:
            leaving += self._serve(self._own)
        MPI.Request.Waitall(leaving)
        self._timers.mark("exchange_exposed_s", "gather_s" if self._own is None else "distribute_s")
        MPI.Request.Waitall(arriving)
        for part in self._shards.values():
            self._weights.push(part)
        self._timers.mark("exchange_exposed_s", "distribute_s")

    def _serve(self, own: slice) -> list[MPI.Request]:
        """Average this rank's part, step on it, and begin to send its weights to all others."""
        self._collector.mean(self._timers)
        self._gradients.push(own)
        self._optimizer.step()
        self._timers.mark("update_s")
        self._weights.pull(own)
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        return [self._comm.Isend(self._weights.array[own], rank, WEIGHTS) for rank in others]


make = ShardedServer
