"""How fast the test metric is gained: its value at the end, its best, and when each run came to what all came to.

SHM-Learn-Dist (Biswas, 2017), section 6, calls that number of workers the best whose accuracy at the end, over the time
it took, is the highest: `metric_per_s`. That rewards a short run, however poor its end; `common_t_s` compares times to
one and the same metric.
"""

from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import group_columns, rows_of, search_columns, split, standing
from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.config.study import Study
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Test metric over time: at the end, at its best, and how long it took to what all points came to."
ON_REQUEST = True

HIGHER_IS_BETTER = {"accuracy": True, "error": False}
_TYPES = {
    "runs": INT,
    "test_metric": FLOAT,
    "train_s": FLOAT,
    "metric_per_s": FLOAT,
    "best_metric": FLOAT,
    "best_t_s": FLOAT,
    "common_metric": FLOAT,
    "common_t_s": FLOAT,
    "evaluations": INT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point: medians over its complete repeats, times in seconds since time zero.

    `metric_per_s` is test_metric / train_s, null where a low metric is better. `best_t_s` is when the best evaluation
    was, the first of equals; `common_metric` the worst of the best of all runs with the same searched values, and
    `common_t_s` when the first evaluation was at least as good: as near as `evaluate_every_steps` allows.
    """
    runs = study_runs.runs.copy()
    runs["status"] = standing(runs)
    search = search_columns(study_runs.study)
    axes = [*group_columns(runs, study_runs.study), *search]
    ended = [str(run) for run in runs[runs["status"] == "ok"]["run"]]
    curves = {run: study_runs.evaluations(run) for run in ended if study_runs.store.file(run, "evaluations").is_file()}
    sign = 1.0 if all(HIGHER_IS_BETTER[name] for name in runs["test_metric_name"].dropna()) else -1.0
    rows = []
    for _, alike in split(runs, search):
        bests = [float((sign * curves[run]["metric"]).max()) for run in alike["run"] if run in curves]
        common = min(bests, default=float("nan"))
        rows += [key | _row(rows_of(repeats), curves, sign, common) for key, repeats in split(alike, axes)]
    return typed(rows, types_of(axes) | _TYPES).sort_values(axes, kind="stable", ignore_index=True)


def _row(repeats: list[dict[str, Any]], curves: dict[str, pd.DataFrame], sign: float, common: float) -> dict[str, Any]:
    ended = [row for row in repeats if row["run"] in curves]
    if not ended:
        words = ", ".join(sorted({in_words(str(row["status"])) for row in repeats}))
        return {"runs": 0, "reason": "never evaluated" if words == "ok" else f"not complete: {words}"}
    found = [_of(row, curves[row["run"]], sign, common) for row in ended]
    return {name: over_runs([one[name] for one in found]).middle for name in found[0]} | {
        "runs": len(ended),
        "common_metric": sign * common,
        "evaluations": min(len(curves[one["run"]]) for one in ended),
        "oversubscribed": any(pd.notna(one["oversubscribed"]) and one["oversubscribed"] for one in ended),
    }


def _of(row: dict[str, Any], curve: pd.DataFrame, sign: float, common: float) -> dict[str, float]:
    metric, t_s = sign * curve["metric"].to_numpy(np.float64), curve["t_s"].to_numpy(np.float64)
    end, train_s = float(row["test_metric"]), float(row["train_s"])
    return {
        "test_metric": end,
        "train_s": train_s,
        "metric_per_s": end / train_s if sign > 0 else float("nan"),
        "best_metric": float(sign * metric.max()),
        "best_t_s": float(t_s[metric.argmax()]),
        "common_t_s": float(t_s[np.flatnonzero(metric >= common)[0]]),
    }


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    return ["evaluations"]
