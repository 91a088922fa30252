"""What the records of a run say of its steps: its loss over time, who arrived when, how long an epoch is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddp_hpc.analysis.intervals import Array
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

NOT_RECORDED = "it was not recorded"
UNKNOWN_EPOCH = "the records do not say how many samples an epoch has"


@dataclass(frozen=True)
class Curve:
    """Each counted step, when it ended and its loss; all of the shape (steps,)."""

    step: NDArray[np.int64]
    t_s: Array
    loss: Array


def whole_curve(study_runs: StudyRuns, run: str) -> Curve:
    """Return the loss curve of a finished run, without warmup; what is not finite stays as it is.

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


def rank_steps(study_runs: StudyRuns, run: str, names: tuple[str, ...]) -> dict[str, Array]:
    """Return columns of the steps record, and `step_s`, of the counted steps whose phases were told apart.

    Each is an array of steps x ranks, NaN where it is null; warmup and fused steps are left out.
    """
    steps = study_runs.steps(run)
    counted = steps[~steps["warm_up"].astype(bool)]
    if counted["sampled"].astype("boolean").fillna(False).any():
        counted = counted[counted["sampled"].astype(bool)]
    counted = counted.sort_values(["step", "rank"], kind="stable")
    ranks = int(counted["rank"].nunique()) or 1
    return {name: _matrix(counted[name], ranks) for name in {*names, "step_s"}}


def _matrix(values: "pd.Series[Any]", ranks: int) -> Array:
    return np.asarray(values.to_numpy(np.float64, na_value=np.nan)).reshape(-1, ranks)


def provenance(study_runs: StudyRuns, run: str) -> dict[str, Any]:
    """Return on what a finished run was made; empty where its record does not say."""
    return dict(records.read_metadata(study_runs.store.file(run)).get("provenance", {}))


def why_null(study_runs: StudyRuns, run: str, column: str) -> str:
    """Return the reason that a run's provenance gives for a column that is null."""
    return str(provenance(study_runs, run).get("null_columns", {}).get(column, NOT_RECORDED))


def train_samples(study_runs: StudyRuns, runs: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the samples of an epoch of finished runs; None where they differ in that, or a record does not say."""
    found = {provenance(study_runs, str(run["run"])).get("train_samples") for run in runs}
    samples = found.pop() if len(found) == 1 else None
    return int(samples) if samples else None
