"""How noisy the loss of each run is in its steady state, and after how many steps it has come there.

The loss of a step is the mean over its ranks; the steady state is the second half of a run. What a running mean says is
over the last fiftieth of the run's steps: of 10,000 steps the last 200.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, varying
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import not_complete
from ddp_hpc.analysis.tables._loss_noise import CLOSE, NEAR, SHARE, Losses, first_within, steady
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Noise: mean and standard deviation of the loss in the second half of each run, and when it has settled."
ON_REQUEST = True
LEFT_OUT = ("run",)
FEWEST_STEPS = 2 * SHARE

_COLUMNS = columns(
    "loss_mean loss_sd loss_least loss_largest settle_step settle_5_percent_step difference difference_steady",
    "run reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned run, in the order of the plan.

    `loss_mean`, `loss_sd`, `loss_least` and `loss_largest` are of the loss in the steady state.
    `settle_step`: the first step at which the running mean cannot be told from the steady mean by eye, within a tenth
    of `loss_sd`; so it is the later, the less noise there is. `settle_5_percent_step`: the first at which it is
    within 5 % of the steady mean, whatever the noise.
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
        loss = losses.of(str(row["run"]))
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
