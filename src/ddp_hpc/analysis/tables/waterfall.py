"""Where efficiency is lost between two world sizes, bar by bar: the bars add up to the loss.

From one rank without exchange to each larger world size, and from each world size to the next with the same exchange.
A step should be as long as at the smaller world size if the batch per rank is the same (weak), and shorter by the ratio
of the ranks if the global batch is (strong). What it is longer than that, over its length, is the efficiency lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import rows_of, split, step_columns, with_standing
from ddp_hpc.analysis.tables._bars import BARS, NO_CLOCKS, Split, bars_of, sentence, split_of
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Counterparts, Row, doubt, not_complete, one_rank
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import EXPOSED_BASELINE
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Efficiency waterfall: where the time of a step goes that is lost at a larger world size."
LEFT_OUT = ("from_step_s", "lost_s", "pairs", "slow_steps_share")

_COLUMNS = columns(
    "kind from_exchange from_world_size pairs from_step_s step_s efficiency bar lost_s lost_efficiency sentence",
    "slow_steps_share oversubscribed reason",
)


@dataclass(frozen=True)
class Pair:
    """Two runs that are compared, and one between them: one rank with the exchange of the last."""

    first: Row
    alone: Row | None
    last: Row


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per bar of each pair of world sizes, in the order of `_bars.BARS`.

    `lost_s` is by how much the bar makes a step longer, `lost_efficiency` that over the step: they sum to
    1 - `efficiency`. Negative bars are gains. A bar that is not known is null, and its part lies in `rest`, waiting in
    `moving`. Steps are the training time over the steps, means over the `pairs` of runs of one seed and learning rate.
    `slow_steps_share` is the largest of all those runs: means hold what a disturbance cost, the medians of other tables
    do not. A pair of world sizes that cannot be compared has one row, with the `reason`.
    """
    runs = with_standing(study_runs.runs)
    runs["global_batch_size"] = runs["world_size"] * runs["batch_size"]
    axes = step_columns(runs)
    splits: dict[str, Split | None] = {}
    rows: list[Row] = []
    for key, group in split(runs[runs["world_size"] > 1], axes):
        found = [
            {"kind": kind, **about} | bar
            for kind in ("weak", "strong")
            for about, pairs in _comparisons(runs, rows_of(group), kind)
            for bar in _rows(study_runs, pairs, kind, splits)
        ]
        rows += [key | row for row in found or [{"kind": "weak"} | _why_none(runs, rows_of(group))]]
    return typed(rows, [*axes, *_COLUMNS])


def _comparisons(runs: pd.DataFrame, lasts: list[Row], kind: str) -> Iterator[tuple[Row, list[Pair]]]:
    """Yield with what the runs of a point are compared: one rank without exchange, and the next smaller world size."""
    done = runs[runs["status"] == "ok"]
    ended, last = [row for row in lasts if row["status"] == "ok"], lasts[0]
    same = done[(done["exchange"] == last["exchange"]) & (done["exchange_options"] == last["exchange_options"])]
    alone = _counterparts(same[same["world_size"] == 1], kind)
    smaller = same["world_size"][(same["world_size"] > 1) & (same["world_size"] < last["world_size"])]
    firsts = [("none", 1, one_rank(done))]
    if len(smaller):
        firsts.append((last["exchange"], smaller.max(), same[same["world_size"] == smaller.max()]))
    for name, n, those in firsts:
        pairs = [
            Pair(first, alone.of(last) if name == "none" else None, last)
            for last, first in _counterparts(those, kind).pairs(ended)
        ]
        if pairs:
            yield {"from_exchange": name, "from_world_size": n}, pairs


def _counterparts(runs: pd.DataFrame, kind: str) -> Counterparts:
    """Return runs by what those have in common with them that can be compared: of weak scaling the batch per rank."""
    if kind == "strong":
        return Counterparts(runs, EXPOSED_BASELINE | {"batch_size"}, ["global_batch_size"])
    return Counterparts(runs, EXPOSED_BASELINE)


def _rows(study_runs: StudyRuns, pairs: list[Pair], kind: str, splits: dict[str, Split | None]) -> list[Row]:
    def of(run: Row) -> Split | None:
        if run["run"] not in splits:
            splits[run["run"]] = split_of(study_runs, run)
        return splits[run["run"]]

    exchange = pairs[0].last["exchange"]
    if not catalog.constants("exchange", exchange)["SYNCHRONOUS"]:
        return [{"pairs": 0, "reason": f"with {exchange} each rank takes its steps by itself: no step has phases"}]
    shown, lost = [], []
    for pair in pairs:
        first, last = of(pair.first), of(pair.last)
        if first and last:
            share = pair.first["world_size"] / pair.last["world_size"] if kind == "strong" else 1.0
            alone = of(pair.alone) if pair.alone else None
            shown.append((share * first.step_s, last))
            lost.append(bars_of(first, alone, last, share))
    if not lost:
        return [{"pairs": 0, "reason": "no step has phases that were told apart"}]
    should_s = float(np.mean([seconds for seconds, _ in shown]))
    step_s = float(np.mean([last.step_s for _, last in shown]))
    bars = _means(lost, step_s - should_s)
    reasons = _reasons(pairs, shown[-1][1])
    common = {
        "pairs": len(lost),
        "from_step_s": should_s,
        "step_s": step_s,
        "efficiency": should_s / step_s,
        **doubt(run for pair in pairs for run in (pair.first, pair.last)),
    }
    return [
        common
        | {
            "bar": bar,
            "lost_s": seconds,
            "lost_efficiency": None if seconds is None else seconds / step_s,
            "sentence": sentence(bar, seconds, step_s, reasons.get(bar, "")),
            "reason": reasons.get(bar) if seconds is None else None,
        }
        for bar, seconds in bars.items()
    ]


def _means(lost: list[dict[str, float | None]], all_s: float) -> dict[str, float | None]:
    """Return the mean of each bar over the pairs; one that is not known in all of them goes to the rest."""
    means: dict[str, float | None] = {}
    for bar in BARS[:-1]:
        known = [seconds for one in lost if (seconds := one[bar]) is not None]
        means[bar] = float(np.mean(known)) if len(known) == len(lost) else None
    return means | {"rest": all_s - sum(seconds for seconds in means.values() if seconds is not None)}


def _reasons(pairs: list[Pair], last: Split) -> dict[str, str]:
    """Return why bars may not be known."""
    exchange, first = pairs[0].last["exchange"], pairs[0].first
    wrapper = f"{exchange} on one rank has not run with the same batch"
    if first["exchange"] != "none":
        wrapper = "both world sizes have it"
    waiting = f"{last.why_no_wait}; it is part of moving" if last.why_no_wait else "it is part of moving"
    return {"wrapper": wrapper, "waiting": waiting, "clock drop": NO_CLOCKS}


def _why_none(runs: pd.DataFrame, lasts: list[Row]) -> Row:
    if all(row["status"] != "ok" for row in lasts):
        return {"pairs": 0, "reason": not_complete(lasts)}
    if any(map(_counterparts(one_rank(runs), "weak").of, lasts)):
        return {"pairs": 0, "reason": "exchange none at world_size 1 has not ended well"}
    batch = lasts[0]["batch_size"]
    return {"pairs": 0, "reason": f"exchange none at world_size 1 with batch_size {batch} is not planned"}
