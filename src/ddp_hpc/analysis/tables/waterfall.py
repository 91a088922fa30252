"""Where efficiency is lost between two world sizes, bar by bar: the bars add up to the loss.

From one rank without exchange to each larger world size, and from each world size to the next with the same exchange.
A step should be as long as at the smaller world size if the batch per rank is the same (weak), and shorter by the ratio
of the ranks if the global batch is (strong). What it is longer than that, over its length, is the efficiency lost.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from math import isnan, nan

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import rows_of, split, split_rows, step_columns, with_standing
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Counterparts, Row, doubt, not_complete, one_rank
from ddp_hpc.analysis.tables._steps import rank_steps, why_null
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import EXPOSED_BASELINE
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Efficiency waterfall: where the time of a step goes that is lost at a larger world size."
GENERAL = True
LEFT_OUT = ("from_step_s", "lost_s", "pairs", "slow_steps_share")

_COLUMNS = columns(
    "kind from_exchange from_world_size pairs from_step_s step_s efficiency bar lost_s lost_efficiency sentence",
    "slow_steps_share oversubscribed reason",
)

MEANINGS = {  # of the bars, in their order
    "wrapper": "what the exchange costs on one rank, where there is nobody to exchange with",
    "data": "choosing the batch and bringing it to the device",
    "computation": "forward and backward pass, beside ranks that share memory, caches and power, or on a smaller batch",
    "clock drop": "forward and backward pass on GPUs that run at lower clocks",
    "moving": "gradients on their way while nothing is computed",
    "waiting": "until the slowest rank has arrived",
    "update": "the optimiser's step",
    "rest": "what no phase covers, and what the slowest rank's clock adds",
}


@dataclass(frozen=True)
class Split:
    """The mean step of a run: `step_s`, its parts, and the reasons for those that are not known."""

    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    wait_s: float  # of the exposed exchange; nan where it is not known
    update_s: float
    clock_mhz: float  # nan where it is not known
    why_no_wait: str = ""


@dataclass(frozen=True)
class Pair:
    """Two runs that are compared, and one between them: one rank with the exchange of the last."""

    first: Row
    alone: Row | None
    last: Row


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per bar of each pair of world sizes, in the order of `MEANINGS`.

    `lost_s` is by how much the bar makes a step longer, `lost_efficiency` that over the step: they sum to
    1 - `efficiency`. Negative bars are gains. A bar that is not known is null, and its part lies in `rest`, waiting in
    `moving`. Steps are the training time over the steps, means over the `pairs` of runs of one seed and learning rate.
    `slow_steps_share` is the largest of all those runs: means hold what a disturbance cost, the medians of other tables
    do not. A pair of world sizes that cannot be compared has one row, with the `reason`.
    """
    runs = with_standing(study_runs.runs)
    runs["global_batch_size"] = runs["world_size"] * runs["batch_size"]
    axes = step_columns(runs)
    planned = {row["run"]: row for row in rows_of(runs)}
    split_by_run = cache(lambda run: split_of(study_runs, planned[run]))
    smaller, rows = Smaller(runs), list[Row]()
    for key, group in split_rows(runs[runs["world_size"] > 1], axes):
        found = [
            {"kind": kind, **about} | bar
            for kind in ("weak", "strong")
            for about, pairs in _comparisons(smaller, group, kind)
            for bar in _rows(pairs, kind, split_by_run)
        ]
        rows += [key | row for row in found or [{"kind": "weak"} | _why_none(smaller, group)]]
    return typed(rows, [*axes, *_COLUMNS])


class Smaller:
    """The runs with which those of a larger world size are compared, each kind of them put in order once."""

    def __init__(self, runs: pd.DataFrame) -> None:
        self.planned, self._done = runs, runs[runs["status"] == "ok"]
        by = ["exchange", "exchange_options"]
        self._alike = {(key["exchange"], key["exchange_options"]): rows for key, rows in split(self._done, by)}
        self.without = cache(lambda kind: _counterparts(one_rank(self._done), kind))
        self.at = cache(self._at)
        self.planned_alone = cache(lambda: _counterparts(one_rank(self.planned), "weak"))

    def world_size(self, last: Row) -> int | None:
        """Return the next smaller world size with the same exchange."""
        sizes = self._with(last["exchange"], last["exchange_options"])["world_size"]
        smaller = sizes[(sizes > 1) & (sizes < last["world_size"])]
        return int(smaller.max()) if len(smaller) else None

    def _with(self, exchange: str, options: str) -> pd.DataFrame:
        return self._alike.get((exchange, options), self._done.head(0))

    def _at(self, exchange: str, options: str, world_size: int, kind: str) -> Counterparts:
        same = self._with(exchange, options)
        same_place = ("placement", "ranks_per_node") if world_size > 1 else ()  # one rank is placed as it is placed
        return _counterparts(same[same["world_size"] == world_size], kind, same_place)


def _comparisons(smaller: Smaller, lasts: list[Row], kind: str) -> Iterator[tuple[Row, list[Pair]]]:
    """Yield with what the runs of a point are compared: one rank without exchange, and the next smaller world size."""
    ended, last = [row for row in lasts if row["status"] == "ok"], lasts[0]
    own = last["exchange"], last["exchange_options"]
    alone = smaller.at(*own, 1, kind)
    firsts = [("none", 1, smaller.without(kind))]
    if n := smaller.world_size(last):
        firsts.append((own[0], n, smaller.at(*own, n, kind)))
    for name, n, those in firsts:
        pairs = [Pair(first, alone.of(last) if name == "none" else None, last) for last, first in those.pairs(ended)]
        if pairs:
            yield {"from_exchange": name, "from_world_size": n}, pairs


def _counterparts(runs: pd.DataFrame, kind: str, same: Collection[str] = ()) -> Counterparts:
    """Return runs by what those have in common with them that can be compared: of weak scaling the batch per rank."""
    may_differ = EXPOSED_BASELINE.difference(same)
    if kind == "strong":
        return Counterparts(runs, may_differ | {"batch_size"}, ["global_batch_size"])
    return Counterparts(runs, may_differ)


def _rows(pairs: list[Pair], kind: str, split_by_run: Callable[[str], Split | None]) -> list[Row]:
    exchange = pairs[0].last["exchange"]
    if not catalog.constants("exchange", exchange)["SYNCHRONOUS"]:
        return [{"pairs": 0, "reason": f"with {exchange} each rank takes its steps by itself: no step has phases"}]
    shown, lost = [], []
    for pair in pairs:
        first, last = split_by_run(pair.first["run"]), split_by_run(pair.last["run"])
        if first and last:
            share = pair.first["world_size"] / pair.last["world_size"] if kind == "strong" else 1.0
            alone = split_by_run(pair.alone["run"]) if pair.alone else None
            shown.append((share * first.step_s, last))
            lost.append(bars_of(first, alone, last, share))
    if not lost:
        return [{"pairs": 0, "reason": "no step has phases that were told apart"}]
    should_s = float(np.mean([seconds for seconds, _ in shown]))
    step_s = float(np.mean([last.step_s for _, last in shown]))
    bars = pd.DataFrame(lost).mean(skipna=False)  # what is not known in some pair goes to the rest
    bars["rest"] = step_s - should_s - bars.drop("rest").sum()
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
            "lost_efficiency": seconds / step_s,
            "sentence": sentence(bar, seconds, step_s, reasons.get(bar, "")),
            "reason": reasons.get(bar) if isnan(seconds) else None,
        }
        for bar, seconds in zip(MEANINGS, bars, strict=True)
    ]


def split_of(study_runs: StudyRuns, run: Row) -> Split | None:
    """Return the mean step of a run, as the rank sees it that waits most; None if no step has phases.

    What that rank does before it waits is nobody else's fault, so that all that a straggler costs is waiting. Where
    waiting is not known it is the mean over the ranks. The step is the training time over the steps, to the end of
    the slowest rank, and so a little more than the parts.
    """
    steps = rank_steps(study_runs, run["run"], ("wait_s", "forward_backward_s", *PHASES))
    if not np.isfinite(steps["exchange_exposed_s"]).any():
        return None
    wait = steps["wait_s"]
    waits = bool(np.isfinite(wait).any())
    view = slice(rank := int(np.nanmean(wait, axis=0).argmax()), rank + 1) if waits else slice(None)

    def mean(*names: str) -> float:
        return float(sum(np.nanmean(steps[name][:, view]) for name in names if np.isfinite(steps[name]).any()))

    return Split(
        step_s=run["train_s"] / run["steps"],
        data_s=mean("data_s", "h2d_s"),
        compute_s=mean("forward_s", "backward_s", "forward_backward_s"),
        exposed_s=mean("exchange_exposed_s"),
        wait_s=mean("wait_s") if waits else nan,
        update_s=mean("update_s"),
        clock_mhz=run["sm_clock_mean_mhz"] or nan,
        why_no_wait="" if waits else why_null(study_runs, run["run"], "wait_s"),
    )


def bars_of(first: Split, alone: Split | None, last: Split, share: float) -> dict[str, float]:
    """Return by how much each bar makes a step longer than it should be, in seconds, nan where that is not known.

    What is known sums to all of it. From `first`, a step at the smaller world size, or where that has no exchange
    `alone`, one of one rank with the exchange of `last`, to this, at the larger. `share` is what of the work of `first`
    a rank of `last` has: 1, or less where the global batch is fixed.
    """
    before = alone or first
    drop_s = last.compute_s * (1 - last.clock_mhz / before.clock_mhz)
    waiting_s = last.wait_s - share * before.wait_s
    bars = {
        "wrapper": share * (alone.step_s - first.step_s) if alone else nan,
        "data": last.data_s - share * before.data_s,
        "computation": last.compute_s - share * before.compute_s - np.nan_to_num(drop_s),
        "clock drop": drop_s,
        "moving": last.exposed_s - share * before.exposed_s - np.nan_to_num(waiting_s),
        "waiting": waiting_s,
        "update": last.update_s - share * before.update_s,
    }
    return bars | {"rest": last.step_s - share * first.step_s - float(np.nansum(list(bars.values())))}


def sentence(bar: str, seconds: float, step_s: float, reason: str) -> str:
    """Return what a bar says: `waiting: 18 % of a step (0.21 ms): until the slowest rank has arrived.`"""
    if isnan(seconds):
        return f"{bar}: not known: {reason}."
    percent = 100 * seconds / step_s
    if abs(percent) < 0.1:
        return f"{bar}: less than 0.1 % of a step."
    before = "without the exchange" if bar == "wrapper" else "at the smaller world size"
    gain = f" less than {before}" if seconds < 0 else ""
    return f"{bar}: {abs(percent):.2g} % of a step ({_time(abs(seconds))}){gain}: {MEANINGS[bar]}."


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _reasons(pairs: list[Pair], last: Split) -> dict[str, str]:
    """Return why bars may not be known."""
    exchange, first = pairs[0].last["exchange"], pairs[0].first
    wrapper = f"{exchange} on one rank has not run with the same batch"
    if first["exchange"] != "none":
        wrapper = "both world sizes have it"
    waiting = f"{last.why_no_wait}; it is part of moving" if last.why_no_wait else "it is part of moving"
    return {"wrapper": wrapper, "waiting": waiting, "clock drop": "no GPU clocks were recorded"}


def _why_none(smaller: Smaller, lasts: list[Row]) -> Row:
    if all(row["status"] != "ok" for row in lasts):
        return {"pairs": 0, "reason": not_complete(lasts)}
    if any(map(smaller.planned_alone().of, lasts)):
        return {"pairs": 0, "reason": "exchange none at world_size 1 has not ended well"}
    batch = lasts[0]["batch_size"]
    return {"pairs": 0, "reason": f"exchange none at world_size 1 with batch_size {batch} is not planned"}
