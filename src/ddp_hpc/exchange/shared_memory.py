"""Gradients averaged in memory that the ranks of a node share, each rank its part, for one model that all look at."""

from mpi4py import MPI

from ddp_hpc.exchange._helpers import MakeOptimizer, Timers
from ddp_hpc.exchange._shared import mean_of, share, slices
from ddp_hpc.replica import Replica

SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
ONE_NODE = True
DEVICES = ("cpu",)

BLOCK_BYTES = 1 << 20  # averaged, then stepped along, while it is in the cache


class SharedMemory:
    """Two barriers per step; between them each rank averages its n-th of all gradients, and updates that of the model.

    No gradient is sent or copied: backward writes into the window. The weights are there once for all ranks, so each
    optimiser has a part of the work, and of the state.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        length, dtype = len(replica.weights), replica.weights.dtype
        self._gradients = share(comm, length, dtype)
        self._weights = share(comm, length, dtype, ranks=1)
        replica.move(weights=self._weights.rows[0], gradients=self._gradients.rows[comm.rank])
        comm.Barrier()  # everybody has written the same weights there
        mine = slices(length, comm.size, dtype.itemsize)[comm.rank]
        block = BLOCK_BYTES // dtype.itemsize
        starts = range(mine.start, mine.stop, block)
        self._blocks = [slice(start, min(start + block, mine.stop)) for start in starts]
        mean = replica.weights.new_zeros(min(block, mine.stop - mine.start))
        self._means = [mean[: part.stop - part.start] for part in self._blocks]
        self._optimizers = [
            make_optimizer(replica.weights[part], mean) for part, mean in zip(self._blocks, self._means, strict=True)
        ]

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        timers, rows, ranks = self._timers, self._gradients.rows, self._comm.size
        timers.arrived()
        self._comm.Barrier()
        timers.mark("exchange_exposed_s")
        for part, mean, optimizer in zip(self._blocks, self._means, self._optimizers, strict=True):
            mean_of(rows, part, mean, ranks)
            timers.mark("exchange_exposed_s")
            optimizer.step()
            timers.mark("update_s")
        self._comm.Barrier()  # nobody computes with weights that another still writes
        timers.mark("exchange_exposed_s")

    def close(self) -> None:
        """Move weights and gradients to memory of their own, and give the shared memory back."""
        replica = self._replica
        replica.move(weights=replica.weights.clone(), gradients=replica.gradients.clone())
        self._optimizers.clear()
        self._comm.Barrier()
        self._gradients.free()
        self._weights.free()


def make(replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> SharedMemory:
    """Return the exchange; the ranks of `comm` must sit on one node, and all must call.

    Raises:
        LaunchError: the node has too little shared memory.
    """
    return SharedMemory(replica, comm, timers, make_optimizer)
