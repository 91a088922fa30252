"""Which runs can win: the same rules for tables and for runs that stop when they are beaten."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.runs.statuses import in_words

AREA = "loss_area_loss_s"
NO_NUMBER = "test metric not finite"
NEVER = "never reached the test metric"
LACKING = {AREA: "without a loss area", "test_metric": "without a test metric", "time_to_s": NEVER}


def exclusion(row: Mapping[str, Any], loss_threshold: float | None, by: str = AREA) -> str:
    """Return the first reason why a run may not win, an empty text if it may.

    A run competes if it ended well, saw all samples it was asked for, has what decides (the column `by`), a test metric
    that is a number if it was evaluated, reached the threshold (inclusive; None: any does), and had a core for every
    thread. By area alone a short run wins, however poor its final loss.

    Args:
        row: of the run record, with `min_loss` over the window of the rules; what is null is None or NaN.
        loss_threshold: of the rules.
        by: the column that decides.

    Source: Biswas, SHM-Learn-Dist (2017), section 5.
    """
    if row["status"] != "ok":
        return in_words(str(row["status"])).replace("_", " ")
    if not _null(row["samples_asked"]) and row["samples_seen"] != row["samples_asked"]:
        return "incomplete"
    if _null(row[by]) or not -float("inf") < row[by] < float("inf") or (by == AREA and row[by] <= 0):
        return LACKING[by]
    if without_number(row):
        return NO_NUMBER
    if loss_threshold is not None and _null(row["min_loss"]):
        return "shorter than the loss window"
    if loss_threshold is not None and row["min_loss"] > loss_threshold:
        return "above threshold"
    return "oversubscribed" if row["oversubscribed"] else ""


def without_number(row: Mapping[str, Any]) -> bool:
    """Return whether the evaluation of a run that ended well gave no number: no record says that it diverged."""
    if row["status"] != "ok" or _null(row.get("test_metric_name")):
        return False
    metric: Any = row.get("test_metric")
    return _null(metric) or not isfinite(metric)


def _null(value: Any) -> bool:
    return value is None or bool(value != value)


def least_mean(loss: NDArray[np.float64], window: int) -> float:
    """Return the least mean loss of any `window` consecutive steps; nan if there are fewer steps."""
    means = np.lib.stride_tricks.sliding_window_view(loss, window).mean(axis=1) if len(loss) >= window else loss[:0]
    return float(np.nanmin(means)) if np.isfinite(means).any() else float("nan")
