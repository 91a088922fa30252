"""The noise of a loss around its steady state, and the step at which the steady state begins."""

import numpy as np

from ddp_hpc.analysis.intervals import Array
from ddp_hpc.analysis.tables._groups import Counterparts
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.config.comparability import SAME_LOSSES
from ddp_hpc.runs.study_runs import StudyRuns

SHARE = 50  # a running mean is over this part of a run: of 10,000 steps the last 200
STEADY = 2  # the steady state is the second of so many parts of a run
NEAR = 0.1  # standard deviations of a step
CLOSE = 0.05  # of the steady mean


def steady(loss: Array) -> Array:
    """Return the steps of the steady state: the second half of a run."""
    return loss[len(loss) // STEADY :]


def running_mean(loss: Array) -> Array:
    """Return for each step the mean of the last fiftieth of a run's steps up to it, nan before there are so many."""
    window = max(1, len(loss) // SHARE)
    total = np.concatenate([[0.0], np.cumsum(loss)])
    mean = np.full(len(loss), np.nan)
    mean[window - 1 :] = (total[window:] - total[:-window]) / window
    return mean


def first_within(loss: Array, tolerance: float) -> int | None:
    """Return the first step, from 1, whose running mean is within `tolerance` of the steady mean; None if none is."""
    near = np.flatnonzero(np.abs(running_mean(loss) - steady(loss).mean()) <= tolerance)
    return int(near[0]) + 1 if len(near) else None


class Losses:
    """The losses of the steps of a study's runs that have ended well, each read once, and what they are compared with.

    A run is compared with the one that differs from it in the exchange alone, and has the study's
    `reference_exchange`, with its default options if it has them.
    """

    def __init__(self, study_runs: StudyRuns) -> None:
        self._study_runs = study_runs
        self._read: dict[str, Array] = {}
        reference = study_runs.study.rules.reference_exchange
        runs = study_runs.runs
        ended = runs[(runs["exchange"] == reference) & (runs["status"] == "ok")]
        defaults_last = ended.sort_values("exchange_options", key=lambda options: options == "{}", kind="stable")
        self._references = Counterparts(defaults_last, SAME_LOSSES)

    def of(self, run: str) -> Array:
        """Return the loss of each counted step, the mean over its ranks."""
        if run not in self._read:
            self._read[run] = whole_curve(self._study_runs, run).loss
        return self._read[run]

    def difference(self, row: dict[str, object]) -> Array | None:
        """Return step by step by how much a run's loss is off its reference's; None where there is nothing else."""
        reference = self._references.of(row)
        if reference is None or reference["run"] == row["run"]:
            return None
        own, other = self.of(str(row["run"])), self.of(str(reference["run"]))
        return np.asarray(np.abs(own - other)) if len(own) == len(other) else None
