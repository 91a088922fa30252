"""Offsets of the ranks' monotonic clocks, measured over MPI (Cristian's algorithm)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

ROUND_TRIPS = 50  # of each rank


@dataclass(frozen=True)
class ClockReading:
    """When, on this rank's clock, by how many ns it was ahead of rank 0's, and how wrong that may be."""

    at_ns: int
    offset_ns: float
    error_ns: float


def on_first_clock(times_ns: NDArray[np.int64], before: ClockReading, after: ClockReading) -> NDArray[np.int64]:
    """Return times of this rank's clock on rank 0's, -1 for those that are not between the two readings.

    Clocks of two hosts differ in rate, by some 1e-5: the offset is taken to change evenly.
    """
    took_ns = max(1, after.at_ns - before.at_ns)
    share = (times_ns - before.at_ns) / took_ns
    ahead_ns = before.offset_ns + share * (after.offset_ns - before.offset_ns)
    moved = times_ns - np.rint(ahead_ns).astype(np.int64)
    between = (times_ns >= before.at_ns) & (times_ns <= after.at_ns)
    return np.where(between, moved, -1)


def reading(comm: MPI.Intracomm, clock: Callable[[], int] = time.perf_counter_ns) -> ClockReading:
    """Return how far this rank's clock, in ns, is ahead now. All ranks must call.

    Rank 0 asks every other rank for its time, again and again. Of the fastest round trip the middle is taken for the
    moment of the answer: it is off by half of that trip at most, however the way there and back differ
    (Cristian, Distributed Computing 3, 1989).
    """
    there, back = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    found = np.zeros(2)
    for other in range(1, comm.size):
        best = np.array([0.0, np.inf])
        for _ in range(ROUND_TRIPS):
            if comm.rank == 0:
                sent = clock()
                comm.Send(there, other)
                comm.Recv(back, other)
                trip = clock() - sent
                if trip / 2 < best[1]:
                    best[:] = back[0] - (sent + trip / 2), trip / 2
            elif comm.rank == other:
                comm.Recv(there, 0)
                back[0] = clock()
                comm.Send(back, 0)
        if comm.rank == 0:
            comm.Send(best, other)
        elif comm.rank == other:
            comm.Recv(found, 0)
    return ClockReading(clock(), *found.tolist())
