"""Two settings side by side: how many times as fast the second is, round by round, with its interval.

The runs of a pair have the same seed, and are trained one after the other, first and second in turns (A B, B A, ...):
what slows the machine for a while slows both, and a trend cancels out. So only their ratio is given.
"""

from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.intervals import of_ratio, over_runs
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, largest, typed, types_of
from ddp_hpc.analysis.tables._stationarity import of_mean_step
from ddp_hpc.config import pairs as pairing
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.config.study import Study
from ddp_hpc.runs.records import hosts_of
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Pairs: how many times as fast the second setting is as the first in the same round."
COMPARES_PAIRS = True

_TYPES = {
    "first": TEXT,
    "second": TEXT,
    "rounds": INT,
    "ratio": FLOAT,
    "ratio_low": FLOAT,
    "ratio_high": FLOAT,
    "ratios": TEXT,
    "told_apart": FLAG,
    "interval_from": TEXT,
    "slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "same_hosts": FLAG,
    "reason": TEXT,
}


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per point of the study without the axis of its pairs; no row if it has no `pairs`.

    `ratios` are samples per second of the second over the first, a ratio per round in the order of the seeds;
    `ratio` is their median, `ratio_low` and `ratio_high` its 95 % interval over the rounds, or of one round within its
    two runs (`interval_from`). `same_hosts`: in every round both ran on the same hosts; else their difference may be
    that of the hosts. `told_apart`: over several rounds, and the interval excludes 1.
    `slow_steps_share` is the largest of all runs in the row (`columns.slow_steps_share`).
    """
    runs, pairs = with_standing(study_runs.runs), study_runs.study.pairs
    if pairs is None:
        return typed([], _TYPES)
    row_of = {row["spec_hash"]: row for row in rows_of(runs)}
    both = [
        (row_of[first.hash], row_of[second.hash])
        for first, second in pairing.sides(pairs, (planned.spec for planned in study_runs.planned)).values()
        if first is not None and second is not None
    ]
    axis = {pairs.axis, *([f"{pairs.axis}_options"] if pairs.axis in COMPONENTS else [])}
    axes = ordered({*varying(runs), "world_size", "batch_size"} - axis - {"seed"})
    axes = [name for name in axes if name not in axis]
    words = [str(value) for value in pairing.values(pairs)]
    firsts = pd.DataFrame([first | {"pair": number} for number, (first, _) in enumerate(both)])
    rows = (
        key | _row(study_runs, [both[number] for number in part.sort_values("seed")["pair"]], words)
        for key, part in split(firsts, axes)
    )
    return typed(rows, types_of(axes) | _TYPES)


def _row(
    study_runs: StudyRuns, planned: list[tuple[dict[str, Any], dict[str, Any]]], words: list[str]
) -> dict[str, Any]:
    named = {"first": words[0], "second": words[1]}
    ended = [pair for pair in planned if all(run["status"] == "ok" for run in pair)]
    if not ended:
        statuses = dict.fromkeys(in_words(str(run["status"])) for pair in planned for run in pair)
        return named | {"rounds": 0, "reason": f"not complete: {', '.join(statuses)}"}
    ratios = [float(second["samples_per_s"] / first["samples_per_s"]) for first, second in ended]
    alone = None
    if len(ended) == 1:
        first, second = (of_mean_step(study_runs, run["run"]) for run in ended[0])
        alone = of_ratio(first, second)
    found = over_runs(ratios, alone)
    known = len(ended) > 1 and found.low is not None and found.high is not None
    runs = [run for pair in ended for run in pair]
    return named | {
        "rounds": len(ended),
        "ratio": found.middle,
        "ratio_low": found.low,
        "ratio_high": found.high,
        "ratios": " ".join(f"{ratio:.3f}" for ratio in ratios),
        "told_apart": bool(not found.low <= 1 <= found.high) if known else None,  # type: ignore[operator]
        "interval_from": found.basis.replace("runs", "rounds"),
        "slow_steps_share": largest(run["slow_steps_share"] for run in runs),
        "oversubscribed": any(pd.notna(run["oversubscribed"]) and run["oversubscribed"] for run in runs),
        "same_hosts": _same_hosts(study_runs, ended),
        "reason": f"only {len(ended)} of {len(planned)} rounds" if len(ended) < len(planned) else None,
    }


def _same_hosts(study_runs: StudyRuns, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool | None:
    """Return whether the runs of each pair had the same hosts; None if a record does not say which."""
    of = [[hosts_of(study_runs.store.file(run["run"])) for run in pair] for pair in pairs]
    return None if any(not hosts for pair in of for hosts in pair) else all(first == second for first, second in of)


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    return ["slow_steps_share"]
