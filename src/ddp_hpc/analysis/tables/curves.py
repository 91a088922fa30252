"""The loss of each run over time, thinned to what a figure can show."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import rows_of, run_columns
from ddp_hpc.analysis.tables._frame import typed
from ddp_hpc.analysis.tables._steps import thinned, whole_curve
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Loss curves: loss of the steps over the time since time zero, thinned."
GENERAL = True
FOR_READING = False
MOST_POINTS = 400


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return up to 400 steps of each finished run, its first, last and least loss among them."""
    runs = study_runs.runs
    own = ["run", *run_columns(runs, study_runs.study), "status", "oversubscribed"]
    return typed(_points(study_runs, runs, own), [*own, "step", "t_s", "loss"])


def _points(study_runs: StudyRuns, runs: pd.DataFrame, columns: list[str]) -> Iterator[dict[str, Any]]:
    for row in rows_of(runs[runs["status"].isin(FINISHED)][columns]):
        curve = whole_curve(study_runs, str(row["run"]))
        for place in thinned(curve.loss, MOST_POINTS):
            yield row | {"step": curve.step[place], "t_s": curve.t_s[place], "loss": curve.loss[place]}
