"""Our number for a claim, with its interval: a value, a ratio, a trend or a prediction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddp_hpc.analysis.columns import show
from ddp_hpc.analysis.intervals import CONFIDENCE, Array, Interval, of_ratio, over_runs
from ddp_hpc.analysis.tables._claim_rows import NotTestable, Number, take
from ddp_hpc.config.claims import DIRECTIONS, Ours, Ratio, Trend
from ddp_hpc.runs.study_runs import StudyRuns

Frames = Callable[[str], pd.DataFrame]
FEWEST_FITTED = 3  # points of a straight line that leave something to judge it by


@dataclass(frozen=True)
class Found:
    """Our number with its interval, the rows that it is made of, and what a reader has to know of them.

    `nulls` are the remarks on cells of runs that ended well, but hold no number.
    """

    interval: Interval
    rows: list[Mapping[str, Any]]
    remarks: list[str]
    nulls: list[str]


def number_of(ours: Ours, frames: Frames, study_runs: StudyRuns) -> Found:
    """Return our number.

    Args:
        ours: how it is computed.
        frames: gives a table by its name.
        study_runs: of the study.

    Raises:
        NotTestable: there is no such number; it says why.
    """
    if ours.predicted:
        return Found(Interval(ours.predicted.number, None, None, "computed, not measured"), [], [], [])
    taken = [take(cells, frames(cells.table), study_runs) for cells in ours.cells.values()]
    remarks = list(dict.fromkeys(remark for one in taken for remark in one.remarks))
    rows = [number.row for one in taken for number in one.numbers]
    nulls = [null for one in taken for null in one.nulls]
    numbers = taken[0].numbers
    if ours.ratio:
        return Found(_ratio(ours.ratio, numbers, taken[1].numbers, remarks), rows, remarks, nulls)
    if ours.trend:
        return Found(_trend(ours.trend, numbers, remarks), rows, remarks, nulls)
    return Found(_combined(numbers), rows, remarks, nulls)


def _combined(numbers: Sequence[Number]) -> Interval:
    """Return the median over the repeats, or the only number, each with its interval."""
    alone = numbers[0].interval if len(numbers) == 1 else None
    found = over_runs([number.value for number in numbers], alone)
    if len(numbers) == 1 and numbers[0].seed is None and alone is None:
        return Interval(found.middle, None, None, "its table has none")
    return found


def _ratio(ratio: Ratio, above: Sequence[Number], below: Sequence[Number], remarks: list[str]) -> Interval:
    if any(number.value == 0 for number in below):
        raise NotTestable(f"{ratio.to.column} is 0 below the line")
    top, bottom = _by_seed(above), _by_seed(below)
    seeds = [seed for seed in top if seed in bottom and seed is not None]
    if seeds:
        most = max(len(top), len(bottom))
        if len(seeds) < most:
            remarks.append(f"{len(seeds)} of {most} repeats stand on both sides of the ratio")
        top, bottom = {seed: top[seed] for seed in seeds}, {seed: bottom[seed] for seed in seeds}
        if len(seeds) > 1:
            return over_runs([top[seed].value / bottom[seed].value for seed in seeds])
    one, other = _combined(list(top.values())), _combined(list(bottom.values()))
    if one.middle > 0 and other.middle > 0:
        return of_ratio(one, other)
    return Interval(one.middle / other.middle, None, None, "of numbers that are not positive")


def _of_change(before: Number, after: Number, sign: float) -> Interval | None:
    """Return the relative change between two numbers whose tables give their intervals."""
    if before.interval is None or after.interval is None or before.value <= 0 or after.value <= 0:
        return None
    ratio = of_ratio(after.interval, before.interval)
    if ratio.low is None or ratio.high is None:
        return None
    ends = sorted((sign * (ratio.low - 1), sign * (ratio.high - 1)))
    return Interval(sign * (ratio.middle - 1), ends[0], ends[1], ratio.basis)


def _by_seed(numbers: Sequence[Number]) -> dict[int | None, Number]:
    return {number.seed: number for number in numbers}


def _trend(trend: Trend, numbers: Sequence[Number], remarks: list[str]) -> Interval:
    """Return the trend of a column over another: over several repeats of all its points, else of what there is."""
    repeats: dict[int | None, dict[float, Number]] = {}
    for number in numbers:
        place = number.row[trend.over]
        if isinstance(place, str) or pd.isna(place):
            raise NotTestable(f"{trend.over} is {show(place)}, which is no number")
        repeats.setdefault(number.seed, {})[float(place)] = number
    places = sorted({place for one in repeats.values() for place in one})
    if len(places) < 2:
        raise NotTestable(f"{trend.over} has one value with a result, {places[0]:g}: no trend")
    whole = [one for one in repeats.values() if len(one) == len(places)]
    if not whole:
        raise NotTestable(f"no repeat has results at all of {trend.over} {', '.join(f'{place:g}' for place in places)}")
    if len(whole) < len(repeats):
        remarks.append(f"{len(whole)} of {len(repeats)} repeats have results at each {trend.over}")
    if trend.kind in DIRECTIONS:
        return _weakest_step(trend, whole, places)
    x = np.array(places)
    ys = [np.array([one[place].value for place in places]) for one in whole]
    if trend.kind == "exponent":
        if (x <= 0).any() or any((y <= 0).any() for y in ys):
            raise NotTestable(f"an exponent needs {trend.column} and {trend.over} above 0")
        x, ys = np.log(x), [np.log(y) for y in ys]
    slopes = [float(stats.linregress(x, y).slope) for y in ys]
    return over_runs(slopes, _of_fit(x, ys[0]))


def _of_fit(x: Array, y: Array) -> Interval:
    """Return the slope of one straight line and its interval from what is left beside it (Student's, n - 2)."""
    fit = stats.linregress(x, y)
    slope, basis = float(fit.slope), f"a line through {len(x)} points"
    if len(x) < FEWEST_FITTED:
        return Interval(slope, None, None, basis)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 2)) * float(fit.stderr)
    return Interval(slope, slope - half, slope + half, f"1 fit: {basis}")


def _weakest_step(trend: Trend, repeats: Sequence[Mapping[float, Number]], places: list[float]) -> Interval:
    """Return the least relative change from one place to the next, in the direction of the trend.

    The least lies between the least of the lower and the least of the upper ends of all changes.
    """
    sign = 1.0 if trend.kind == "increasing" else -1.0
    steps: list[Interval] = []
    for before, after in pairwise(places):
        pairs = [(one[before], one[after]) for one in repeats]
        if any(first.value == 0 for first, _ in pairs):
            raise NotTestable(f"{trend.column} is 0 at {trend.over} {before:g}: no relative change")
        changes = [sign * (second.value - first.value) / abs(first.value) for first, second in pairs]
        steps.append(over_runs(changes, _of_change(*pairs[0], sign)))
    weakest = min(steps, key=lambda step: step.middle)
    lows = [step.low for step in steps if step.low is not None]
    highs = [step.high for step in steps if step.high is not None]
    if len(lows) < len(steps) or len(highs) < len(steps):
        return Interval(weakest.middle, None, None, weakest.basis)
    return Interval(weakest.middle, min(lows), min(highs), weakest.basis)
