"""Gradients averaged by a hand-written ring: reduce-scatter, then allgather, in place."""

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ddp_hpc.exchange._helpers import MakeOptimizer, Timers
from ddp_hpc.exchange._host import HostGradients
from ddp_hpc.replica import Replica

SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False

Chunks = list[NDArray[Any]]


def split(buffer: NDArray[Any], n: int) -> Chunks:
    """Return `buffer` as n adjoining views, the longest first; some are empty if it is shorter than n.

    Raises:
        ValueError: `buffer` is not 1-D and contiguous.
    """
    if buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ValueError(f"need a flat buffer, got shape {buffer.shape}, strides {buffer.strides}")
    return np.array_split(buffer, n)


def reduce_scatter(chunks: Chunks, comm: MPI.Intracomm, inbox: NDArray[Any]) -> NDArray[Any]:
    """Sum `chunks` over the ranks of `comm`, each rank one of them, in place; return the chunk that this rank summed.

    Args:
        chunks: one per rank, as `split` gives them; the same lengths and dtype on every rank.
        comm: the ring; all its ranks must call.
        inbox: as long as the longest chunk; overwritten.
    """
    rank, n = comm.rank, comm.size
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):
        outgoing, incoming = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        arrived = inbox[: len(incoming)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=arrived, source=left)
        incoming += arrived
    return chunks[right]


def allgather(chunks: Chunks, comm: MPI.Intracomm) -> None:
    """Give every rank all `chunks`, in place; each rank brings the one that `reduce_scatter` returned to it."""
    rank, n = comm.rank, comm.size
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):
        outgoing, incoming = chunks[(rank - step + 1) % n], chunks[(rank - step) % n]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)


def ring_allreduce(buffer: NDArray[Any], comm: MPI.Intracomm) -> None:
    """Sum `buffer` over the ranks of `comm`, in place.

    Args:
        buffer: 1-D, contiguous; same length and dtype on every rank.
        comm: the ring; all its ranks must call.

    Raises:
        ValueError: `buffer` is not 1-D and contiguous.

    Each rank sends 2 (n-1)/n of the buffer, the least any allreduce can
    (Patarasuk and Yuan, JPDC 69(2), 2009).
    """
    chunks = split(buffer, comm.size)
    reduce_scatter(chunks, comm, inbox=np.empty_like(chunks[0]))
    allgather(chunks, comm)


class Ring:
    """One ring allreduce per step, then the optimiser."""

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._gradients = HostGradients(replica.gradients)
        self._chunks = split(self._gradients.array, comm.size)
        self._inbox = np.empty_like(self._chunks[0])
        self._comm, self._timers = comm, timers
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        self._gradients.fetch(self._timers)
        mine = reduce_scatter(self._chunks, self._comm, self._inbox)
        mine /= self._comm.size  # here each rank divides its own part only
        allgather(self._chunks, self._comm)
        self._gradients.put_back()
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Nothing is held."""


def make(replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> Ring:
    """Return the exchange; all ranks of `comm` must call. GPU gradients go through pinned host memory."""
    return Ring(replica, comm, timers, make_optimizer)
