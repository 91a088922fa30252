"""What synchronous servers share: who serves which part, and the mean of what all ranks send, piece by piece."""

from itertools import pairwise
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ddp_hpc.profiling.timers import Timers

GRADIENTS, WEIGHTS = 1, 2  # tags
PIECE_BYTES = 1 << 19  # what is added up stays in the cache between its arrival and its use
UNDER_WAY = 2  # pieces of each rank for which a server has room

Array = NDArray[Any]


def parts(length: int, servers: int) -> list[slice]:
    """Return adjoining slices, one per server, the longest first; some are empty if there are fewer numbers."""
    ends = np.cumsum([length // servers + (place < length % servers) for place in range(servers)]).tolist()
    return [slice(start, end) for start, end in pairwise([0, *ends])]


def serving_ranks(world_size: int, servers: int) -> list[int]:
    """Return the ranks that serve: every k-th, beginning with rank 0, as evenly as the numbers allow."""
    return [place * world_size // servers for place in range(servers)]


def pieces(array: Array) -> list[Array]:
    """Return views of `PIECE_BYTES` each, the last one shorter; none of nothing."""
    step = PIECE_BYTES // array.itemsize
    return [array[start : start + step] for start in range(0, len(array), step)]


def send(array: Array, comm: MPI.Intracomm, server: int) -> list[MPI.Request]:
    """Begin to send gradients to a server, in the pieces in which its `Collector` takes them."""
    return [comm.Isend(piece, server, GRADIENTS) for piece in pieces(array)]


class Collector:
    """Overwrites `own`, a server's part of its own gradients, with the mean over all ranks, which `send` that part."""

    def __init__(self, own: Array, comm: MPI.Intracomm) -> None:
        self._pieces, self._comm = pieces(own), comm
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        longest = len(self._pieces[0]) if self._pieces else 0
        self._room = np.empty((UNDER_WAY, len(self._others), longest), own.dtype)
        self._arriving: list[list[MPI.Request]] = [[] for _ in range(UNDER_WAY)]

    def listen(self) -> None:
        """Be ready for the first pieces, before they come."""
        for number in range(min(UNDER_WAY, len(self._pieces))):
            self._receive(number)

    def _receive(self, number: int) -> None:
        rows, length = self._room[number % UNDER_WAY], len(self._pieces[number])
        self._arriving[number % UNDER_WAY] = [
            self._comm.Irecv(row[:length], rank, GRADIENTS) for row, rank in zip(rows, self._others, strict=True)
        ]

    def mean(self, timers: Timers) -> None:
        """Wait for all gradients, and average them in the order of the ranks: the same bits whoever comes first."""
        for number, piece in enumerate(self._pieces):
            MPI.Request.Waitall(self._arriving[number % UNDER_WAY])
            timers.mark("exchange_exposed_s", "gather_s")
            add_in_order(piece, self._room[number % UNDER_WAY, :, : len(piece)], self._comm.rank)
            piece /= self._comm.size
            timers.mark("exchange_exposed_s", "average_s")
            if number + UNDER_WAY < len(self._pieces):
                self._receive(number + UNDER_WAY)


def add_in_order(own: Array, others: Array, place: int) -> None:
    """Add rows to `own`, which belongs at `place` among them, the first to the second and so on; rows may change."""
    before, after = others[:place], others[place:]
    for row in before[1:]:
        before[0] += row
    if place:
        own += before[0]
    for row in after:
        own += row
