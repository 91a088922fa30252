"""The loss of each run over time, thinned to what a figure can show."""

import pandas as pd

from ddp_hpc.analysis.columns import run_columns
from ddp_hpc.analysis.intervals import Array
from ddp_hpc.analysis.tables._frame import of_runs
from ddp_hpc.analysis.tables._steps import thinned, whole_curve
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Loss curves: loss of the steps over the time since time zero, thinned."
GENERAL = True
FOR_READING = False
MOST_POINTS, FEWEST_POINTS = 400, 50  # of a curve
MOST_IN_ALL = 1_000_000  # points of all curves: of many runs each has fewer


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return up to 400 steps of each finished run, its first, last and least loss among them; fewer of many runs."""
    runs = study_runs.runs
    own = ["run", *run_columns(runs, study_runs.study), "status", "oversubscribed"]
    ended = runs.loc[runs["status"].isin(FINISHED), own]
    most = min(MOST_POINTS, max(FEWEST_POINTS, MOST_IN_ALL // max(len(ended), 1)))
    return of_runs(ended, [_points(study_runs, str(run), most) for run in ended["run"]], ["step", "t_s", "loss"])


def _points(study_runs: StudyRuns, run: str, most: int) -> dict[str, Array]:
    curve = whole_curve(study_runs, run)
    places = thinned(curve.loss, most)
    return {name: values[places] for name, values in vars(curve).items()}
