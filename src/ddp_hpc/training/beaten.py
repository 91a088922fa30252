"""A training that can no longer win stops: at agreed steps, off the clock, by what rank 0 knows of the others."""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult

LOOK_EVERY = 1.1  # from one look to the next the steps grow by this factor: few looks, and little is trained too much

# by the kind of the device, on rank 0: the area of the best run that has ended, from where on another is beaten, whose
Limit = Callable[[str], tuple[float, float, str] | None]


def why_beaten(comm: MPI.Intracomm, result: TrainResult, limit: Limit) -> str | None:
    """Return by which run a training is beaten, the same on all ranks, which must call; None if by none so far.

    The area is that of the record: of the mean loss of the ranks, over the time at which the slowest ended each step.
    """
    history = result.history()
    losses, t_s = history.losses[WARM_UP_STEPS:], np.cumsum(history.timings.phases_s[WARM_UP_STEPS:].sum(axis=1))
    steps = min(len(losses), len(t_s))
    mean, latest = losses[:steps] / comm.size, t_s[:steps].copy()
    if comm.size > 1:
        at_root = comm.rank == 0
        comm.Reduce(MPI.IN_PLACE if at_root else mean, mean if at_root else None, MPI.SUM)
        comm.Reduce(MPI.IN_PLACE if at_root else latest, latest if at_root else None, MPI.MAX)
    told = None
    if comm.rank == 0 and steps > 1 and mean.min() >= 0 and (found := limit(result.device)):
        least, beyond, run = found
        area = float(np.trapezoid([mean[0], *mean], [0.0, *latest]))
        if area > beyond:
            told = f"its loss area is {area:.4g} loss x s after step {steps}, all of {run} is {least:.4g}"
    return comm.bcast(told) if comm.size > 1 else told
