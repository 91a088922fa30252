"""How noisy the loss of each run is in its steady state, and after how many steps it has come there.

The loss of a step is the mean over its ranks; the steady state is the second half of a run. What a running mean says is
over the last fiftieth of the run's steps: of 10,000 steps the last 200.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, varying
from ddp_hpc.analysis.intervals import Array
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Counterparts, not_complete
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.config.comparability import SAME_LOSSES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Noise: mean and standard deviation of the loss in the second half of each run, and when it has settled."
LEFT_OUT = ("run",)

SHARE = 50  # a running mean is over this part of a run: of 10,000 steps the last 200
FEWEST_STEPS = 2 * SHARE
STEADY = 2  # the steady state is the second of so many parts of a run
NEAR = 0.1  # standard deviations of a step
CLOSE = 0.05  # of the steady mean

_COLUMNS = columns(
    "loss_mean loss_sd loss_least loss_largest settle_step settle_5_percent_step difference difference_steady",
    "run reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned run, in the order of the plan.

    `loss_mean`, `loss_sd`, `loss_least` and `loss_largest` are of the loss in the steady state.
    `settle_step`: the first step at which the running mean cannot be told from the steady mean by eye, within a tenth
    of `loss_sd`; so it is the later, the less noise there is. `settle_5_percent_step`: the first at which it is
    within 5 % of the steady mean; noise brings it there sooner by luck, the more so the fewer steps a run has. Both are
    to be compared between runs of as many steps.
    `difference`: the largest difference of any step's loss to that of the reference, the run that differs in the
    exchange alone and has the study's `reference_exchange`; `difference_steady` in the steady state. Null where there
    is none. A run that has not ended well, or has fewer than 100 steps, has a `reason` and nulls.
    """
    axes = ordered({*varying(study_runs.runs), "exchange", "world_size", "seed"})
    return typed(_rows(study_runs, axes), [*axes, *_COLUMNS])


def _rows(study_runs: StudyRuns, axes: list[str]) -> Iterator[dict[str, Any]]:
    losses = Losses(study_runs)
    for row in rows_of(study_runs.runs):
        known = {name: row[name] for name in [*axes, "run"]}
        if row["status"] != "ok":
            yield known | {"reason": not_complete([row])}
            continue
        loss = losses.of(row["run"])
        if len(loss) < FEWEST_STEPS:
            yield known | {"reason": f"{len(loss)} steps: fewer than {FEWEST_STEPS} show no steady state"}
            continue
        rest, difference = steady(loss), losses.difference(row)
        yield known | {
            "loss_mean": float(rest.mean()),
            "loss_sd": float(rest.std(ddof=1)),
            "loss_least": float(rest.min()),
            "loss_largest": float(rest.max()),
            "settle_step": first_within(loss, NEAR * float(rest.std(ddof=1))),
            "settle_5_percent_step": first_within(loss, CLOSE * abs(float(rest.mean()))),
            "difference": None if difference is None else float(np.max(difference)),
            "difference_steady": None if difference is None else float(np.max(steady(difference))),
        }


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
        self.of = cache(lambda run: whole_curve(study_runs, run).loss)
        runs = study_runs.runs
        ended = runs[(runs["exchange"] == study_runs.study.rules.reference_exchange) & (runs["status"] == "ok")]
        defaults_last = ended.sort_values("exchange_options", key=lambda options: options == "{}", kind="stable")
        self._references = Counterparts(defaults_last, SAME_LOSSES)

    def difference(self, row: dict[str, Any]) -> Array | None:
        """Return step by step by how much a run's loss is off its reference's; None where there is nothing else."""
        reference = self._references.of(row)
        if reference is None or reference["run"] == row["run"]:
            return None
        own, other = self.of(row["run"]), self.of(reference["run"])
        return np.asarray(np.abs(own - other)) if len(own) == len(other) else None
