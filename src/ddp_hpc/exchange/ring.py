"""Gradients averaged by a hand-written ring: reduce-scatter, then allgather, in place."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.exchange._average import Average, AverageThenStep, where_they_lie
from ddp_hpc.exchange._pinned import PinnedPieces, when_ready
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "ring all-reduce"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "each rank to its neighbour, around the ring"
MOVES_MODEL = "nobody: each rank updates its own"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "ring"
CUDA_AWARE = {"gpu_path": ("direct",)}

# A long buffer goes round piece by piece, in messages of so many bytes, so that what has arrived is still in the cache
# when it is added and sent on.
CHUNK_BYTES = 1 << 20


Step = tuple[NDArray[Any], NDArray[Any]]  # what to send to the right, and where to receive from the left
Flat = TypeVar("Flat", NDArray[Any], Tensor)


def ring(buffer: Flat, rank: int, n: int, inbox: Flat, divisor: int = 1) -> Iterator[tuple[Flat, Flat]]:
    """Sum `buffer` over n ranks and divide by `divisor`, in place, step by step.

    Args:
        buffer: 1-D, contiguous; same length and dtype on every rank.
        rank: of n; its neighbours are `rank + 1` to the right and `rank - 1` to the left, modulo n.
        n: ranks; all must take all steps.
        inbox: as long as the longest of n parts of the buffer, or longer; overwritten.
        divisor: 1 leaves the sum.

    Yields:
        The messages of a step: send the one, receive the other, then ask for the next step.

    Each rank sends 2 (n-1)/n of the buffer, the least any allreduce can
    (Patarasuk and Yuan, JPDC 69(2), 2009).
    """
    # views, the longest first; the last are empty if there are too few elements
    chunks = buffer.tensor_split(n) if isinstance(buffer, Tensor) else np.array_split(buffer, n)

    for step in range(n - 1):  # reduce-scatter
        outgoing, incoming = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        arrived = inbox[: len(incoming)]
        yield outgoing, arrived
        incoming += arrived

    if divisor != 1:
        mine = chunks[(rank + 1) % n]  # here each rank divides its own part only
        mine /= divisor

    for step in range(n - 1):  # allgather
        outgoing, incoming = chunks[(rank - step + 1) % n], chunks[(rank - step) % n]
        yield outgoing, incoming


def ring_in_pieces(buffer: NDArray[Any], rank: int, n: int, inbox: NDArray[Any], divisor: int = 1) -> Iterator[Step]:
    """Do as `ring`, but in messages of at most `CHUNK_BYTES`; `inbox`: see `make_inbox`."""
    length = _piece(buffer, n)
    for start in range(0, len(buffer), length):
        yield from ring(buffer[start : start + length], rank, n, inbox, divisor)


def _piece(buffer: NDArray[Any], n: int) -> int:
    """Return how many numbers of `buffer` go round at once."""
    return n * (CHUNK_BYTES // buffer.itemsize)


def make_inbox(buffer: NDArray[Any], n: int) -> NDArray[Any]:
    """Return room for what arrives in one step of `ring_in_pieces` of `buffer` on n ranks."""
    return np.empty(-(-min(len(buffer), _piece(buffer, n)) // n), buffer.dtype)


def ring_allreduce(
    buffer: NDArray[Any], comm: MPI.Intracomm, divisor: int = 1, inbox: NDArray[Any] | None = None
) -> None:
    """Sum `buffer` over the ranks of `comm` and divide by `divisor`, in place; see `ring`.

    Whoever calls often gives the same `inbox`, of `make_inbox`: receiving in memory never touched before is slow.
    """
    if buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ValueError(f"need a flat buffer, got shape {buffer.shape}, strides {buffer.strides}")
    rank, n = comm.rank, comm.size
    right, left = (rank + 1) % n, (rank - 1) % n
    inbox = make_inbox(buffer, n) if inbox is None else inbox
    for outgoing, incoming in ring_in_pieces(buffer, rank, n, inbox, divisor):
        comm.Sendrecv(outgoing, right, 0, incoming, left, 0)


def ring_average(buffer: Tensor, comm: MPI.Intracomm, inbox: Tensor | None = None) -> None:
    """Average a flat tensor over the ranks of `comm`, in place, where it lies, as a whole; `inbox`: as of `ring`."""
    inbox = buffer.new_empty(-(-len(buffer) // comm.size)) if inbox is None else inbox
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for outgoing, incoming in ring(buffer, comm.rank, comm.size, inbox, divisor=comm.size):
        when_ready(outgoing)  # what it was added to has only been queued, as have the readers of `incoming`
        comm.Sendrecv(outgoing, right, 0, incoming, left, 0)


def in_host_memory(replica: Replica, comm: MPI.Intracomm, timers: Timers) -> Average:
    """Return the average by one ring allreduce, or one per piece of what is staged from a GPU."""
    gradients = PinnedPieces(replica.gradients)
    inbox = make_inbox(gradients.array, comm.size)

    def average() -> None:
        for piece in gradients.in_pieces(timers):
            ring_allreduce(piece, comm, divisor=comm.size, inbox=inbox)

    return average


def make(
    replica: Replica,
    comm: MPI.Intracomm,
    timers: Timers,
    make_optimizer: MakeOptimizer,
    *,
    gpu_path: Literal["host", "direct"] = "host",
) -> AverageThenStep:
    """Return the exchange; all ranks of `comm` must call.

    Args:
        gpu_path: of the gradients of a GPU: through pinned host memory, or given to MPI as they lie, which must be
            CUDA-aware; that is tried before the training starts.
    """
    if gpu_path == "direct":
        inbox = replica.gradients.new_empty(-(-len(replica.gradients) // comm.size))
        average = where_they_lie(replica, comm, timers, partial(ring_average, inbox=inbox))
    else:
        average = in_host_memory(replica, comm, timers)
    return AverageThenStep(replica, timers, make_optimizer, average)
