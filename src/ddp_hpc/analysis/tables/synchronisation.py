"""Synchronisation of the gradients, per step and per epoch, over the ranks, and what it costs at one rank.

A step synchronises once, so an epoch does as often as it has batches: more ranks make each synchronisation longer and
need fewer of them (P. Orlob, Parallelization of GPUs based on Horovod, TU Dresden, 2022).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import key_of, ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.intervals import Interval, of_median, of_ratio, over_runs
from ddp_hpc.analysis.tables._epochs import UNKNOWN, doubt, ended_well, spread, steps_per_epoch
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, median, typed, types_of
from ddp_hpc.analysis.tables._ranks import provenance, rank_steps, why_null
from ddp_hpc.analysis.tables._stationarity import of_mean_step
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import SAME_WORK, SYNCHRONISATION_BASELINE, agreeing
from ddp_hpc.config.study import Study
from ddp_hpc.profiling.phases import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Synchronisation of the gradients: exposed exchange per step and per epoch; medians over the complete runs."
ON_REQUEST = True

_TYPES = {
    "runs": INT,
    **dict.fromkeys(("sync_s", "sync_low_s", "sync_high_s", "wait_s", "move_s", "exchange_busy_s"), FLOAT),
    "steps_per_epoch": FLOAT,
    **dict.fromkeys(("sync_per_epoch_s", "sync_per_epoch_low_s", "sync_per_epoch_high_s"), FLOAT),
    **dict.fromkeys(("sync_share", "data_share", "over_none", "over_none_low", "over_none_high"), FLOAT),
    "interval_from": TEXT,
    "slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}
Row = dict[str, Any]


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step with an exchange.

    `sync_s` is exchange_exposed_s of a step, waiting for the slowest rank included, mean over the ranks, median over
    the steps; what overlaps the backward pass is in `exchange_busy_s` only. `sync_per_epoch_s` is that times
    `steps_per_epoch`. `sync_share` and `data_share` are the shares of exchange, and of data with their copy to the
    device, in the sum of the phases. `over_none` is the mean step over that of one rank with exchange none, the same
    batch per rank and seed: at one rank, what the exchange costs by itself. Intervals as in the table of phases.
    """
    runs = with_standing(study_runs.runs)
    axes = ordered({*varying(runs), "exchange", "world_size", "batch_size"} - SAME_WORK)
    alone = runs[(runs["exchange"] == "none") & (runs["world_size"] == 1) & (runs["status"] == "ok")]
    baselines = {_key(row): row for row in rows_of(alone)}
    groups = split(runs[runs["exchange"] != "none"], axes)
    return typed((key | _row(study_runs, group, baselines) for key, group in groups), types_of(axes) | _TYPES)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return key_of(row, agreeing(SYNCHRONISATION_BASELINE))


def _row(study_runs: StudyRuns, group: pd.DataFrame, baselines: Mapping[tuple[Any, ...], Row]) -> Row:
    rows, reason = ended_well(group)
    if not rows:
        return {"runs": 0, "reason": reason}
    if not catalog.constants("exchange", rows[0]["exchange"])["SYNCHRONOUS"]:
        return {"runs": len(rows), "reason": "each rank takes its steps by itself"}
    known = [float(row["exchange_exposed_s"]) for row in rows if pd.notna(row["exchange_exposed_s"])]
    steps = steps_per_epoch(study_runs, rows)
    sync = over_runs(known, _within(study_runs, rows[0]["run"]) if len(known) == 1 else None)
    reasons = [] if steps else [UNKNOWN]
    if not known:
        reasons.append(why_null(provenance(study_runs, rows[0]["run"]), "exchange_exposed_s"))
    return {
        "runs": len(rows),
        **spread("sync", "_s", sync),
        **{name: median(row[name] for row in rows) for name in ("wait_s", "move_s", "exchange_busy_s")},
        "steps_per_epoch": steps,
        **spread("sync_per_epoch", "_s", sync, steps),
        "sync_share": median(_share(row, ["exchange_exposed_s"]) for row in rows),
        "data_share": median(_share(row, ["data_s", "h2d_s"]) for row in rows),
        **spread("over_none", "", _over_none(study_runs, rows, baselines)),
        "interval_from": sync.basis if known else None,
        **doubt(rows),
        "reason": "; ".join(reasons) or None,
    }


def _within(study_runs: StudyRuns, run: str) -> Interval:
    """Return the median exposed exchange of a step and its interval within a run."""
    return of_median(
        np.asarray(rank_steps(study_runs, run, ("exchange_exposed_s",))["exchange_exposed_s"].mean(axis=1))
    )


def _share(row: Mapping[str, Any], parts: Sequence[str]) -> float | None:
    whole = sum(float(row[name]) for name in (*PHASES, "forward_backward_s") if pd.notna(row[name]))
    found = [row[name] for name in parts]
    return sum(map(float, found)) / whole if whole > 0 and all(map(pd.notna, found)) else None


def _over_none(study_runs: StudyRuns, rows: list[Row], baselines: Mapping[tuple[Any, ...], Row]) -> Interval:
    pairs = [(row, baselines[_key(row)]) for row in rows if _key(row) in baselines]
    ratios = [_mean_step_s(row) / _mean_step_s(base) for row, base in pairs]
    if len(pairs) != 1:
        return over_runs(ratios)
    return over_runs(ratios, of_ratio(*(of_mean_step(study_runs, run["run"]) for run in pairs[0])))


def _mean_step_s(row: Mapping[str, Any]) -> float:
    return float(row["train_s"]) / float(row["steps"])


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    return ["wait_s", "move_s", "exchange_busy_s", "over_none_low", "over_none_high"]
