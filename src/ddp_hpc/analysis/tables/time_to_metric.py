"""How fast the test metric is gained: its value at the end, its best, and when each run came to what all came to.

SHM-Learn-Dist (Biswas, 2017), section 6, calls that number of workers the best whose accuracy at the end, over the time
it took, is the highest: `metric_per_s`. That rewards a short run, however poor its end; `common_t_s` compares times to
one and the same metric.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import group_columns, higher_is_better, rows_of, search_columns, split, with_standing
from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables._frame import columns
from ddp_hpc.analysis.tables._groups import Group, Row, by_group, spread
from ddp_hpc.analysis.tables._winner_selection import as_metric
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Test metric over time: at the end, at its best, and how long it took to what all points came to."
LEFT_OUT = columns(
    "evaluations test_metric_low test_metric_high metric_per_s_low metric_per_s_high common_t_low_s common_t_high_s"
)

_COLUMNS = columns(
    "runs test_metric test_metric_low test_metric_high train_s metric_per_s metric_per_s_low metric_per_s_high",
    "best_metric best_t_s common_metric common_t_s common_t_low_s common_t_high_s evaluations interval_from",
    "oversubscribed reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point: medians over its complete repeats, some with intervals; times from time zero.

    `metric_per_s` is test_metric / train_s, null where a low metric is better. `best_t_s` is when the best evaluation
    was, the first of equals; `common_metric` the worst of the best of all runs with the same searched values, and
    `common_t_s` when the first evaluation was at least as good: as near as `evaluate_every_steps` allows.
    """
    runs = with_standing(study_runs.runs)
    search = search_columns(study_runs.study)
    ended = [str(run) for run in runs[runs["status"] == "ok"]["run"]]
    read = {run: study_runs.evaluations(run) for run in ended if study_runs.store.file(run, "evaluations").is_file()}
    curves = {run: curve[curve["metric"].notna()] for run, curve in read.items()}
    curves = {run: curve for run, curve in curves.items() if len(curve)}
    judged = rows_of(runs[runs["test_metric_name"].notna()])
    sign = 1.0 if all(map(higher_is_better, judged)) else -1.0
    common: dict[str, float] = {}  # by run
    for _, alike in split(runs, search):
        bests = [float((sign * curves[run]["metric"]).max()) for run in alike["run"] if run in curves]
        common |= dict.fromkeys(alike["run"], min(bests, default=float("nan")))

    def measured(group: Group) -> Row:
        evaluated = [row for row in group.ended if row["run"] in curves]
        if not evaluated:
            never = "never evaluated" if group.run not in read else "no evaluation gave a number"
            return {"runs": 0, "oversubscribed": None, "reason": never}
        found = [_of(row, curves[row["run"]], sign, common[row["run"]]) for row in evaluated]
        over = {name: over_runs([one[name] for one in found]) for name in found[0]}
        return {name: interval.middle for name, interval in over.items()} | {
            **spread("test_metric", "", as_metric(over["test_metric"], runs)),
            **spread("metric_per_s", "", over["metric_per_s"]),
            **spread("common_t", "_s", over["common_t_s"]),
            "interval_from": over["test_metric"].basis,
            "runs": len(evaluated),
            "common_metric": sign * common[group.run],
            "evaluations": min(len(curves[row["run"]]) for row in evaluated),
            "oversubscribed": any(row["oversubscribed"] for row in evaluated),
        }

    axes = [*group_columns(runs, study_runs.study), *search]
    return by_group(study_runs, runs, axes, _COLUMNS, measured).sort_values(axes, kind="stable", ignore_index=True)


def _of(row: Mapping[str, Any], curve: pd.DataFrame, sign: float, common: float) -> dict[str, float]:
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
