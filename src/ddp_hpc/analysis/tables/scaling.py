"""Speedup, parallel efficiency and Karp-Flatt's serial fraction of each point, against one rank without exchange.

- fixed samples: the same batch per rank and the same samples; the ratio of times (as in SHM-Learn-Dist).
- strong: the same global batch and the same samples; the ratio of times.
- weak: the same batch per rank; the ratio of rates. Where all runs see the same samples it equals fixed samples.

The baseline is the run of the same spec with world_size 1 and exchange none. Runs pair by seed; the median over the
pairs counts, with the least and the largest and its 95 % interval beside it, over the pairs (`intervals.over_runs`) or,
of one pair, within its two runs. Without a baseline the speedup is null, and the reason given.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import key_of, ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.intervals import Interval, of_ratio, over_runs
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, largest, median, typed, types_of
from ddp_hpc.analysis.tables._stationarity import of_mean_step
from ddp_hpc.config.comparability import SPEEDUP_BASELINE, agreeing
from ddp_hpc.config.study import Study
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Scaling: against one rank without exchange."

_TYPES = {
    "kind": TEXT,
    "global_batch_size": INT,
    "pairs": INT,
    "train_s": FLOAT,
    "samples_per_s": FLOAT,
    "baseline_train_s": FLOAT,
    "baseline_samples_per_s": FLOAT,
    "speedup": FLOAT,
    "speedup_least": FLOAT,
    "speedup_largest": FLOAT,
    "speedup_low": FLOAT,
    "speedup_high": FLOAT,
    "interval_from": TEXT,
    "efficiency": FLOAT,
    "efficiency_low": FLOAT,
    "efficiency_high": FLOAT,
    "karp_flatt": FLOAT,
    "slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}


@dataclass(frozen=True)
class Kind:
    """A way to scale: what a run has in common with its baseline, and what is compared."""

    name: str
    same: tuple[str, ...]  # columns that are equal, beside all those of the spec that are not replaced or left out
    left_out: tuple[str, ...]
    quantity: str

    def columns(self) -> list[str]:
        """Return the columns in which a run equals its baseline."""
        return [*agreeing(SPEEDUP_BASELINE.union(self.left_out)), *self.same]


KINDS = (
    Kind("fixed samples", ("samples_planned",), (), "train_s"),
    Kind("strong", ("samples_planned", "global_batch_size"), ("batch_size",), "train_s"),
    Kind("weak", (), (), "samples_per_s"),
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point and kind of scaling for which the study plans any pair.

    A study without any pair gets rows of one kind, which say what baseline is not planned. `slow_steps_share` is the
    largest of all runs that the speedup is made from, baselines too (`columns.slow_steps_share`).
    """
    runs = _planned(study_runs)
    axes = ordered(
        {*varying(runs), "exchange", "world_size", "batch_size", "learning_rate"} - {"seed", "evaluate_every_steps"}
    )
    rows = [row for kind, those in _kinds(runs) for row in _rows(study_runs, those, kind, axes)]
    types = {"kind": TEXT} | types_of(axes) | _TYPES
    return typed(rows, types)


def _planned(study_runs: StudyRuns) -> pd.DataFrame:
    """Return all runs; what the plan knows of a run is there whether it has run or not."""
    runs = with_standing(study_runs.runs)
    specs = [planned.spec for planned in study_runs.planned]
    runs["global_batch_size"] = pd.array([spec.global_batch_size for spec in specs], dtype="Int64")
    runs["samples_planned"] = pd.array([spec.samples_asked for spec in specs], dtype="Int64")
    return runs


def _kinds(runs: pd.DataFrame) -> list[tuple[Kind, pd.DataFrame]]:
    """Return the kinds to report, each with the runs that it can be told of."""
    counted = runs[runs["samples_planned"].notna()]  # of a training for a given time only rates can be compared
    usable = [(kind, counted if kind.quantity == "train_s" else runs) for kind in KINDS]
    usable = [(kind, rows) for kind, rows in usable if len(rows)]
    return [(kind, rows) for kind, rows in usable if _has_pairs(rows, kind)] or usable[:1]


def _is_baseline(runs: pd.DataFrame) -> "pd.Series[bool]":
    return (runs["world_size"] == 1) & (runs["exchange"] == "none")


def _has_pairs(runs: pd.DataFrame, kind: Kind) -> bool:
    first = _is_baseline(runs)
    planned = {key_of(row, kind.columns()) for row in rows_of(runs[first])}
    return any(key_of(row, kind.columns()) in planned for row in rows_of(runs[runs["world_size"] > 1]))


def _rows(study_runs: StudyRuns, runs: pd.DataFrame, kind: Kind, axes: list[str]) -> Iterator[dict[str, Any]]:
    baselines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows_of(runs[_is_baseline(runs)]):
        baselines.setdefault(key_of(row, kind.columns()), []).append(row)
    for key, repeats in split(runs, axes):
        rows = rows_of(repeats)
        found = baselines.get(key_of(rows[0], kind.columns()), [])
        # several budgets may share a rate; the same budget is the nearest
        nearest_last = sorted(found, key=lambda base: bool(base["budget"] == rows[0]["budget"]))
        yield (
            {"kind": kind.name} | key | _compare(study_runs, rows, {base["seed"]: base for base in nearest_last}, kind)
        )


def _compare(
    study_runs: StudyRuns, rows: list[dict[str, Any]], baselines: Mapping[int, dict[str, Any]], kind: Kind
) -> dict[str, Any]:
    first = rows[0]
    ended = [row for row in rows if _complete(row)]
    own = {
        "global_batch_size": first["global_batch_size"],
        "train_s": median(row["train_s"] for row in ended),
        "samples_per_s": median(row["samples_per_s"] for row in ended),
        "slow_steps_share": largest(row["slow_steps_share"] for row in ended),
        "oversubscribed": any(map(_oversubscribed, ended)) if ended else None,
    }
    pairs = [(row, baselines[row["seed"]]) for row in ended if _complete(baselines.get(row["seed"]))]
    if not pairs:
        return own | {"pairs": 0, "reason": _why_none(first, rows, ended, baselines, kind)}
    ratios = [_speedup(row, base, kind) for row, base in pairs]
    speedup, world_size = float(np.median(ratios)), int(first["world_size"])
    bases = [base for _, base in pairs]
    interval = over_runs(ratios, _of_one_pair(study_runs, *pairs[0]) if len(pairs) == 1 else None)
    return own | {
        "pairs": len(pairs),
        "baseline_train_s": median(row["train_s"] for row in bases),
        "baseline_samples_per_s": median(row["samples_per_s"] for row in bases),
        "speedup": speedup,
        "speedup_least": min(ratios),
        "speedup_largest": max(ratios),
        "speedup_low": interval.low,
        "speedup_high": interval.high,
        "interval_from": interval.basis,
        "efficiency": speedup / world_size,
        "efficiency_low": None if interval.low is None else interval.low / world_size,
        "efficiency_high": None if interval.high is None else interval.high / world_size,
        "karp_flatt": karp_flatt(speedup, world_size),
        "slow_steps_share": largest(run["slow_steps_share"] for pair in pairs for run in pair),
        "oversubscribed": any(_oversubscribed(run) for pair in pairs for run in pair),
        "reason": f"only {len(pairs)} of {len(rows)} repeats" if len(pairs) < len(rows) else None,
    }


def _of_one_pair(study_runs: StudyRuns, row: Mapping[str, Any], base: Mapping[str, Any]) -> Interval | None:
    """Return how sure the ratio of two runs is within these; None for a run against itself."""
    if row["run"] == base["run"]:
        return None
    return of_ratio(of_mean_step(study_runs, base["run"]), of_mean_step(study_runs, row["run"]))


def _complete(row: Mapping[str, Any] | None) -> bool:
    if row is None or row["status"] != "ok" or pd.isna(row["final_loss"]) or not np.isfinite(row["final_loss"]):
        return False
    return bool(pd.isna(row["samples_asked"]) or row["samples_seen"] == row["samples_asked"])


def _oversubscribed(row: Mapping[str, Any]) -> bool:
    return bool(pd.notna(row["oversubscribed"]) and row["oversubscribed"])


def _speedup(row: Mapping[str, Any], base: Mapping[str, Any], kind: Kind) -> float:
    if kind.quantity == "train_s":
        return float(base["train_s"] / row["train_s"])
    return float(row["samples_per_s"] / base["samples_per_s"])


def karp_flatt(speedup: float, world_size: int) -> float | None:
    """Return the serial fraction that a speedup would come from; None for one rank, where there is none.

    Karp and Flatt, Communications of the ACM 33(5), 1990.
    """
    if world_size == 1:
        return None
    return (1 / speedup - 1 / world_size) / (1 - 1 / world_size)


def _why_none(
    first: Mapping[str, Any],
    rows: list[dict[str, Any]],
    ended: list[dict[str, Any]],
    baselines: Mapping[int, dict[str, Any]],
    kind: Kind,
) -> str:
    if not ended:
        return f"not complete: {_statuses(rows)}"
    if not baselines:
        batch = first["global_batch_size"] if kind.name == "strong" else first["batch_size"]
        return f"no baseline: exchange none at world_size 1 with batch_size {batch} is not planned"
    paired = [baselines[row["seed"]] for row in ended if row["seed"] in baselines]
    if not paired:
        return "no baseline: it is planned with other seeds only"
    return f"no baseline: {_statuses(paired)}"


def _statuses(rows: list[dict[str, Any]]) -> str:
    """Return e.g. `diverged` of one run, `2 diverged, 1 ok` of several."""
    counts = Counter("not yet run" if row["status"] == "missing" else str(row["status"]) for row in rows)
    if len(rows) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    of_rates = ["samples_per_s", "baseline_train_s", "baseline_samples_per_s"]
    return [*of_rates, "speedup_least", "speedup_largest", "efficiency_low", "efficiency_high"]
