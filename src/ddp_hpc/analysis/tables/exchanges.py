"""How fast each exchange is: the time of a step, side by side and against a reference, for each model and world size.

The time of a step is the training time over the steps, of a global batch each: that is there for asynchronous exchanges
too, whose ranks may take different numbers of steps, and nothing that a slow step costs is left out. Runs of one round,
which have the same seed and lie near one another in time, are compared with one another; the median over the rounds
counts, with the least and the largest beside it, and its 95 % interval, low to high: over the rounds
(`intervals.over_runs`), or of one round within its runs.
"""

from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import key_of, ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.intervals import Interval, of_ratio, over_runs
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, largest, median, typed, types_of
from ddp_hpc.analysis.tables._stationarity import of_mean_step
from ddp_hpc.config.comparability import EFFICIENCY_BASELINE, EXCHANGE, FASTER_EXCHANGE, SAME_WORK, agreeing
from ddp_hpc.config.study import Study
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Exchanges: training time per step, and against the reference in the same round; medians over the rounds."
COMPARES_EXCHANGES = True

_TYPES = {
    "runs": INT,
    "step_us": FLOAT,
    "step_least_us": FLOAT,
    "step_largest_us": FLOAT,
    "step_low_us": FLOAT,
    "step_high_us": FLOAT,
    "samples_per_s": FLOAT,
    "reference": TEXT,
    "pairs": INT,
    "times_as_fast": FLOAT,
    "times_as_fast_least": FLOAT,
    "times_as_fast_largest": FLOAT,
    "times_as_fast_low": FLOAT,
    "times_as_fast_high": FLOAT,
    "interval_from": TEXT,
    "weak_efficiency": FLOAT,
    "weak_efficiency_low": FLOAT,
    "weak_efficiency_high": FLOAT,
    "slow_steps_share": FLOAT,
    "others_slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}
Pairs = dict[tuple[Any, ...], dict[str, Any]]


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per exchange, with its options, of each model, batch size and world size that the study plans.

    `times_as_fast` is the reference's step over this one's, by pairs of runs that differ in the exchange alone (and in
    the budget); `weak_efficiency` that of one rank with exchange none and the same batch per rank. Both are null where
    there is no such run, the first with its `reason`. Of a reference with several options that with its defaults
    counts, else the first. `slow_steps_share` is the largest of the row's runs (`columns.slow_steps_share`),
    `others_slow_steps_share` of those that they are compared with.
    """
    runs = with_standing(study_runs.runs)
    batches = runs["samples_seen"] / (runs["world_size"] * runs["batch_size"])
    runs["mean_step_us"] = 1e6 * (runs["train_s"] / batches).astype("float64")
    axes = ordered({*varying(runs), "model", "batch_size", "world_size", *EXCHANGE} - SAME_WORK)
    reference = study_runs.study.rules.reference_exchange
    is_reference = _reference(runs, reference)
    is_alone = (runs["exchange"] == "none") & (runs["world_size"] == 1)
    pairs = _by_key(runs[is_reference], FASTER_EXCHANGE)
    alone = _by_key(runs[is_alone], EFFICIENCY_BASELINE)
    types = types_of(axes) | _TYPES
    return typed((key | _row(study_runs, rows, pairs, alone, reference) for key, rows in split(runs, axes)), types)


def _reference(runs: pd.DataFrame, name: str) -> "pd.Series[bool]":
    named = runs["exchange"] == name
    options = list(runs[named]["exchange_options"].unique())
    return named & (runs["exchange_options"] == ("{}" if "{}" in options else next(iter(options), "{}")))


def _by_key(runs: pd.DataFrame, may_differ: frozenset[str]) -> Pairs:
    """Return runs by what they share with those they are compared with; of several, one that has ended well."""
    rows = sorted(rows_of(runs), key=lambda row: row["status"] == "ok")
    return {key_of(row, agreeing(may_differ)): row for row in rows}


def _row(study_runs: StudyRuns, rows: pd.DataFrame, references: Pairs, alone: Pairs, reference: str) -> dict[str, Any]:
    ended = rows_of(rows[(rows["status"] == "ok") & rows["mean_step_us"].notna()])
    if not ended:
        return {"runs": 0, "pairs": 0, "reason": f"not complete: {_statuses(rows)}"}
    steps = [row["mean_step_us"] for row in ended]
    against = [references.get(key_of(row, agreeing(FASTER_EXCHANGE))) for row in ended]
    ratios = _ratios(ended, against)
    one_rank = [alone.get(key_of(row, agreeing(EFFICIENCY_BASELINE))) for row in ended]
    efficiencies = _ratios(ended, one_rank)
    others = [row for row in (*against, *one_rank) if row is not None and row["status"] == "ok"]
    own = of_mean_step(study_runs, ended[0]["run"]) if len(ended) == 1 else None
    step = over_runs(steps, own)
    ratio = _interval(study_runs, ended, own, against, ratios)
    efficiency = _interval(study_runs, ended, own, one_rank, efficiencies)
    return {
        "runs": len(ended),
        "step_us": float(np.median(steps)),
        "step_least_us": min(steps),
        "step_largest_us": max(steps),
        "step_low_us": step.low,
        "step_high_us": step.high,
        "samples_per_s": float(np.median([row["samples_per_s"] for row in ended])),
        "reference": reference if ratios else None,
        "pairs": len(ratios),
        "times_as_fast": median(ratios),
        "times_as_fast_least": min(ratios, default=None),
        "times_as_fast_largest": max(ratios, default=None),
        "times_as_fast_low": ratio.low,
        "times_as_fast_high": ratio.high,
        "interval_from": step.basis,
        "weak_efficiency": median(efficiencies),
        "weak_efficiency_low": efficiency.low,
        "weak_efficiency_high": efficiency.high,
        "slow_steps_share": max(row["slow_steps_share"] for row in ended),
        "others_slow_steps_share": largest([row["slow_steps_share"] for row in others]),
        "oversubscribed": any(pd.notna(row["oversubscribed"]) and row["oversubscribed"] for row in ended),
        "reason": _why(ratios, len(rows), against, reference) or _of_some(efficiencies, len(rows)),
    }


def _interval(
    study_runs: StudyRuns,
    ended: list[dict[str, Any]],
    own: Interval | None,
    against: list[dict[str, Any] | None],
    ratios: list[float],
) -> Interval:
    """Return the interval of ratios; of one run, whose mean step is `own`, within it and the other."""
    other = against[0] if own and ratios else None
    if own is None or other is None or other["run"] == ended[0]["run"]:
        return over_runs(ratios)
    return over_runs(ratios, of_ratio(of_mean_step(study_runs, other["run"]), own))


def _ratios(rows: list[dict[str, Any]], others: list[dict[str, Any] | None]) -> list[float]:
    """Return the other's step over the own one, of all pairs in which both have ended well."""
    return [
        other["mean_step_us"] / row["mean_step_us"]
        for row, other in zip(rows, others, strict=True)
        if other is not None and other["status"] == "ok" and pd.notna(other["mean_step_us"])
    ]


def _why(ratios: list[float], planned: int, against: list[dict[str, Any] | None], reference: str) -> str | None:
    if ratios:
        return f"only {len(ratios)} of {planned} rounds" if len(ratios) < planned else None
    found = [row for row in against if row is not None]
    if not found:
        remedy = "name another in rules: reference_exchange"
        return f"nothing to compare with: exchange {reference} is not planned here; {remedy}"
    return f"nothing to compare with: {reference} is {_statuses(pd.DataFrame(found))}"


def _of_some(efficiencies: list[float], planned: int) -> str | None:
    few = 0 < len(efficiencies) < planned
    return f"weak efficiency of only {len(efficiencies)} of {planned} rounds" if few else None


def _statuses(rows: pd.DataFrame) -> str:
    return ", ".join(in_words(str(name)) for name in rows["status"].unique())


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    spread = ["step_least_us", "step_largest_us", "times_as_fast_least", "times_as_fast_largest"]
    return [
        "pairs",
        "slow_steps_share",
        "others_slow_steps_share",
        *spread,
        "weak_efficiency_low",
        "weak_efficiency_high",
    ]
