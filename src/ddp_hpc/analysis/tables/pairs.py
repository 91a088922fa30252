"""Two settings side by side: how many times as fast the second is, round by round, with its interval.

The runs of a pair have the same seed, and are trained one after the other, first and second in turns (A B, B A, ...):
what slows the machine for a while slows both, and a trend cancels out. So only their ratio is given. Where long times
lie between them, as after one of them was run again, that does not hold, and nothing is told apart.
"""

from collections.abc import Iterator
from datetime import datetime
from math import nan

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.intervals import Arm, contrast
from ddp_hpc.analysis.tables._frame import columns, largest, typed
from ddp_hpc.analysis.tables._groups import Row, doubt, not_complete, over_pairs, spread
from ddp_hpc.analysis.variance_model import ALPHA, holm
from ddp_hpc.config import pairs as pairing
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.runs.records import hosts_of
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import duration

CAPTION = "Pairs: how many times as fast the second setting is as the first in the same round."
COMPARES_PAIRS = True
LEFT_OUT = ("slow_steps_share", "apart_s")
NEAR_S = 600.0  # beyond their own lengths: the two of a round with more between them are no neighbours

_COLUMNS = columns(
    "first second rounds ratio ratio_low ratio_high ratios told_apart interval_from slow_steps_share oversubscribed",
    "same_hosts apart_s reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per point of the study without the axis of its pairs; no row if it has no `pairs`.

    `ratios` are samples per second of the second over the first, a ratio per round in the order of the seeds; `ratio`
    is their median, `ratio_low` and `ratio_high` its 95 % interval over the rounds, or of one round within its two runs
    (`interval_from`). `same_hosts`: in every round both ran on the same hosts; else their difference may be that of the
    hosts. `apart_s`: the longest time in a round from the end of one to the start of the other. `told_apart`: over
    several rounds, the interval excludes 1, and still does where as many points are compared (Holm, at 5 % in all);
    null where the two of a round were no neighbours in time.
    `slow_steps_share` is the largest of all runs in the row (`columns.slow_steps_share`).
    """
    runs, pairs = with_standing(study_runs.runs), study_runs.study.pairs
    if pairs is None:
        return typed([], _COLUMNS)
    row_of = {row["spec_hash"]: row for row in rows_of(runs)}
    both = [
        (row_of[first.hash], row_of[second.hash])
        for first, second in pairing.sides(pairs, (planned.spec for planned in study_runs.planned)).values()
        if first is not None and second is not None
    ]
    axis = {pairs.axis, *([f"{pairs.axis}_options"] if pairs.axis in COMPONENTS else [])}
    axes = [name for name in ordered({*varying(runs), "world_size", "batch_size"} - {"seed"}) if name not in axis]
    first, second = map(str, pairing.values(pairs))
    firsts = pd.DataFrame([first | {"pair": number} for number, (first, _) in enumerate(both)])
    rows = [
        key
        | {"first": first, "second": second}
        | _row(study_runs, [both[number] for number in part.sort_values("seed")["pair"]])
        for key, part in split(firsts, axes)
    ]
    return typed(_corrected(rows), [*axes, *_COLUMNS])


def _corrected(rows: list[Row]) -> list[Row]:
    """Return the rows, with those told apart alone that are so beside all others that are judged."""
    judged = [row for row in rows if row.get("told_apart") is not None]
    for row, p in zip(judged, holm([row.pop("p") for row in judged]), strict=True):
        if row["told_apart"] and p >= ALPHA:
            why = f"told apart only if it were the only point, not as one of {len(judged)}"
            row |= {"told_apart": False, "reason": "; ".join(filter(None, [row["reason"], why]))}
    return rows


def _row(study_runs: StudyRuns, planned: list[tuple[Row, Row]]) -> Row:
    ended = [pair for pair in planned if all(run["status"] == "ok" for run in pair)]
    if not ended:
        return {"rounds": 0, "reason": not_complete(run for pair in planned for run in pair)}
    ratios = [float(second["samples_per_s"] / first["samples_per_s"]) for first, second in ended]
    found = over_pairs(study_runs, ratios, ended)
    hosts = [[hosts_of(study_runs.store.file(run["run"])) for run in pair] for pair in ended]
    between_s = [_apart_s(*pair) for pair in ended]
    apart = [
        seconds
        for seconds, pair in zip(between_s, ended, strict=True)
        if seconds > NEAR_S + pair[0]["wall_s"] + pair[1]["wall_s"]
    ]
    return {
        "rounds": len(ended),
        **spread("ratio", "", found),
        "ratios": " ".join(f"{ratio:.3f}" for ratio in ratios),
        "p": contrast([Arm.of(np.log(ratios))]).p if len(ended) > 1 else None,
        "told_apart": not found.low <= 1 <= found.high if len(ended) > 1 and found.known and not apart else None,
        "interval_from": found.basis.replace("runs", "rounds"),
        **doubt(run for pair in ended for run in pair),
        # not known where a record does not say the hosts
        "same_hosts": all(a == b for a, b in hosts) if all(one for pair in hosts for one in pair) else None,
        "apart_s": largest(between_s),
        "reason": "; ".join(_doubts(len(ended), len(planned), apart)) or None,
    }


def _doubts(ended: int, planned: int, apart: list[float]) -> Iterator[str]:
    if ended < planned:
        yield f"only {ended} of {planned} rounds"
    if apart:
        yield (
            f"in {len(apart)} of {ended} rounds the two are no neighbours, up to {duration(max(apart))} lie between "
            "them: the difference may be that of the time; run both again"
        )


def _apart_s(first: Row, second: Row) -> float:
    """Return the seconds from the end of one run to the start of the other; below 0 if together, nan if not known."""
    if any(pd.isna(run["ended_at"]) or pd.isna(run["wall_s"]) for run in (first, second)):
        return nan
    ends = [datetime.fromisoformat(run["ended_at"]).timestamp() for run in (first, second)]
    starts = [end - run["wall_s"] for end, run in zip(ends, (first, second), strict=True)]
    return float(max(starts) - min(ends))
