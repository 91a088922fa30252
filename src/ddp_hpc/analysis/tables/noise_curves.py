"""The loss of each run over its steps, with its running mean and how far it is off the reference: for a figure."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import rows_of, run_columns
from ddp_hpc.analysis.intervals import Array
from ddp_hpc.analysis.tables._frame import columns, of_runs
from ddp_hpc.analysis.tables.noise import Losses, running_mean
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Loss over steps: range and running mean of each run, and the difference to the reference, in 250 pieces."
FOR_READING = False
PIECES = 250


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return up to 250 pieces of equally many steps of each run that has ended well.

    `step` is the last of a piece, `loss_least` and `loss_largest` are of its steps, `loss_mean` is over the last
    fiftieth of the run's steps (`noise.running_mean`), `difference` the largest to the reference's loss
    (`noise.Losses`) in the piece.
    """
    runs = study_runs.runs
    own = ["run", *run_columns(runs, study_runs.study)]
    points = columns("step loss_least loss_largest loss_mean difference")
    ended = runs[runs["status"] == "ok"]
    return of_runs(ended[own], list(_pieces(study_runs, ended)), points)


def _pieces(study_runs: StudyRuns, runs: pd.DataFrame) -> Iterator[dict[str, Array]]:
    losses = Losses(study_runs)
    for row in rows_of(runs):
        loss, difference = losses.of(row["run"]), losses.difference(row)
        ends = np.unique(np.linspace(0, len(loss), PIECES + 1).round().astype(np.int64))
        starts, mean = ends[:-1], running_mean(loss)
        yield {
            "step": ends[1:],
            "loss_least": np.minimum.reduceat(loss, starts),
            "loss_largest": np.maximum.reduceat(loss, starts),
            "loss_mean": mean[ends[1:] - 1],
        } | ({} if difference is None else {"difference": np.maximum.reduceat(difference, starts)})
