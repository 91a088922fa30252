"""The loss curve of a run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.analysis.intervals import Array
from ddp_hpc.runs.study_runs import StudyRuns


@dataclass(frozen=True)
class Curve:
    """Each counted step, when it ended and its loss; all of the shape (steps,)."""

    step: NDArray[np.int64]
    t_s: Array
    loss: Array


def whole_curve(study_runs: StudyRuns, run: str) -> Curve:
    """Return the curve of a finished run, without warm-up; what is not finite stays as it is.

    Raises:
        RecordError: naming the run's steps, if they cannot be read.
    """
    steps = study_runs.steps(run)
    # loss and t_s are of all ranks together, so one rank's rows hold them
    mine = steps[(steps["rank"] == 0) & ~steps["warm_up"].astype(bool)].sort_values("step")
    return Curve(mine["step"].to_numpy(np.int64), mine["t_s"].to_numpy(np.float64), mine["loss"].to_numpy(np.float64))


def thinned(loss: Array, most: int) -> NDArray[np.int64]:
    """Return the places of at most `most` points of a curve, evenly spread, with its ends and its least loss."""
    n = len(loss)
    if n <= most:
        return np.arange(n)
    places = np.linspace(0, n - 1, most - 1).round().astype(np.int64)
    least = [int(np.nanargmin(loss))] if np.isfinite(loss).any() else []
    return np.unique(np.concatenate([places, np.array(least, dtype=np.int64)]))
