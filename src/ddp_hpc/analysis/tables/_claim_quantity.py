"""Our number for a claim, with its interval: a value, a ratio, a trend or a prediction, from rows of tables.

What is missing is no number: rows of runs that did not end well or not where they should, and nulls are left out, and
the claim says so.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddp_hpc.analysis.columns import DISTURBED, MISPLACED, rows_of, show, split, standing, varying
from ddp_hpc.analysis.intervals import CONFIDENCE, WITHIN, Array, Interval, of_ratio, over_runs
from ddp_hpc.analysis.tables._steps import NOT_RECORDED, why_null
from ddp_hpc.config.budget import Budget
from ddp_hpc.config.claims import DIRECTIONS, Cells, Ours, Ratio, Trend
from ddp_hpc.config.errors import unknown
from ddp_hpc.config.matching import is_option, matches, option_value
from ddp_hpc.config.spec import COMPONENTS, SPEC_COLUMNS
from ddp_hpc.config.study import listed
from ddp_hpc.runs.schema import RUN
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

Frames = Callable[[str], pd.DataFrame]  # gives a table by its name
Row = Mapping[str, Any]
FEWEST_FITTED = 3  # points of a straight line that leave something to judge it by
MOST_SHOWN = 4  # values of a column in a reason


class NotTestable(Exception):  # noqa: N818  (no error: a verdict)
    """Why there is no number of ours."""


@dataclass(frozen=True)
class Number:
    """A cell that holds a number, with what the table says of how sure it is."""

    row: Row
    seed: int | None  # the repeat; None in a table that combines the repeats
    interval: Interval

    @property
    def value(self) -> float:
        """The number, finite."""
        return self.interval.middle


@dataclass(frozen=True)
class Found:
    """Our number with its interval, the rows that it is made of, and what a reader has to know of them.

    `nulls` are the remarks on cells of runs that ended well, but hold no number.
    """

    interval: Interval
    rows: list[Row]
    remarks: list[str]
    nulls: list[str]


def number_of(ours: Ours, frames: Frames, study_runs: StudyRuns) -> Found:
    """Return our number.

    Raises:
        NotTestable: there is no such number; it says why.
    """
    if ours.predicted:
        return Found(Interval(ours.predicted.number, nan, nan, "computed, not measured"), [], [], [])
    remarks: list[str] = []
    nulls: list[str] = []
    taken = [_take(cells, frames(cells.table), study_runs, remarks, nulls) for cells in ours.cells.values()]
    if ours.ratio:
        interval = _ratio(ours.ratio, taken[0], taken[1], remarks)
    elif ours.trend:
        interval = _trend(ours.trend, taken[0], remarks)
    else:
        interval = _combined(taken[0])
    rows = [number.row for numbers in taken for number in numbers]
    return Found(interval, rows, list(dict.fromkeys(remarks)), nulls)


def _combined(numbers: Sequence[Number]) -> Interval:
    """Return the median over the repeats, or the only number, each with its interval."""
    return over_runs([number.value for number in numbers], numbers[0].interval if len(numbers) == 1 else None)


def _ratio(ratio: Ratio, above: Sequence[Number], below: Sequence[Number], remarks: list[str]) -> Interval:
    if any(number.value == 0 for number in below):
        raise NotTestable(f"{ratio.to.column} is 0 below the line")
    top, bottom = ({number.seed: number for number in numbers} for numbers in (above, below))
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
    return Interval(one.middle / other.middle, nan, nan, "of numbers that are not positive")


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
        return Interval(slope, nan, nan, basis)
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
        ratio = of_ratio(pairs[0][1].interval, pairs[0][0].interval)
        low, high = sorted((sign * (ratio.low - 1), sign * (ratio.high - 1)))
        alone = Interval(sign * (ratio.middle - 1), low, high, ratio.basis) if ratio.known else None
        steps.append(over_runs(changes, alone))
    weakest = min(steps, key=lambda step: step.middle)
    low, high = (float(np.min(ends)) for ends in zip(*((step.low, step.high) for step in steps), strict=True))
    return Interval(weakest.middle, low, high, weakest.basis)  # nan if that of any change is not known


def _take(
    cells: Cells, frame: pd.DataFrame, study_runs: StudyRuns, remarks: list[str], nulls: list[str]
) -> list[Number]:
    """Return the numbers in `cells` of a table, one at least; what a reader has to know is added to the lists."""
    over = [cells.over] if isinstance(cells, Trend) else []
    for name in (cells.column, *over):
        if name not in frame:
            raise NotTestable(f"table {cells.table}: {unknown('column', name, map(str, frame.columns))}")
    fit = selected(cells, frame, study_runs)
    if fit.empty:
        where = ", ".join(f"{name} {'null' if value is None else value}" for name, value in cells.where.items())
        raise NotTestable(f"no row of the table {cells.table}{f' has {where}' if where else ''}")
    _repeats_only(fit, cells, over)
    ended = rows_of(_ended(fit, cells, remarks))
    known = [
        Number(row, row.get("seed"), _interval(row, cells.column)) for row in ended if _is_number(row[cells.column])
    ]
    if not known:
        raise NotTestable(f"{cells.column} is null: {_why_null(ended[0], cells, study_runs)}")
    if lost := len(ended) - len(known):
        nulls.append(f"{cells.column} is null in {lost} of {len(ended)} rows")
        remarks.append(nulls[-1])
    remarks += _warnings([number.row for number in known])
    return known


def selected(cells: Cells, frame: pd.DataFrame, study_runs: StudyRuns) -> pd.DataFrame:
    """Return the rows that `where` asks for; a spec field that is the same in all runs need be no column."""
    first = study_runs.planned[0]
    shared = {name: value for name, value in first.spec.columns().items() if name not in study_runs.varying[first.run]}
    known = frame.assign(**{name: value for name, value in shared.items() if name not in frame})
    needed = list(dict.fromkeys(column for key in cells.where.items() for column in _columns(*key)))
    if lacking := [column for column in needed if column not in known]:
        raise NotTestable(f"table {cells.table}: {unknown('column', lacking[0], map(str, frame.columns))}")
    pattern = dict(cells.where)
    if "budget" in pattern:
        pattern["budget"] = [
            str(Budget.model_validate(one)) if isinstance(one, Mapping) else one for one in listed(pattern["budget"])
        ]
    fits = [matches(pattern, partial(_value, row)) for row in rows_of(known[needed])]
    return frame[pd.Series(fits, index=frame.index, dtype=bool)] if needed else frame


def runs_read(cells: Iterable[Cells], study_runs: StudyRuns, judged: Collection[str]) -> pd.DataFrame:
    """Return the planned runs that fit what `where` of the cells of one claim says of specs.

    In the tables `judged`, `where` on an axis of the search picks a winner, which all points had a part in.
    """
    runs = study_runs.runs
    read = pd.Series(False, index=runs.index)
    for one in cells:
        searched = study_runs.study.search if one.table in judged else ()
        read |= runs.index.isin(selected(of_specs(one, searched), runs, study_runs).index)
    return runs[read]


def of_specs(cells: Cells, without: Collection[str] = ()) -> Cells:
    """Return cells whose `where` names fields of specs only, but for those in `without`."""
    kept = {}
    for name, value in cells.where.items():
        field = name.partition(".")[0]
        if field in SPEC_COLUMNS and {field, name}.isdisjoint(without):
            kept[name] = value
    return Cells(table=cells.table, column=cells.column, where=kept)


def _columns(name: str, wanted: Any) -> tuple[str, ...]:
    """Return the columns that hold a key of `where`; the options of a component stand in a column of their own."""
    component = name.partition(".")[0]
    of_options = is_option(name) or (name in COMPONENTS and any(isinstance(one, Mapping) for one in listed(wanted)))
    return (component, f"{component}_options") if of_options else (name,)


def _value(row: Row, name: str) -> Any:
    """Return what a row has in a column, or of an option, e.g. `exchange.period`."""
    if is_option(name):
        kind, _, option = name.partition(".")
        options = row[f"{kind}_options"]
        return option_value(kind, row[kind], {} if pd.isna(options) else json.loads(options), option)
    value = row[name]
    return None if pd.isna(value) else bool(value) if isinstance(value, np.bool_) else value


def _repeats_only(rows: pd.DataFrame, cells: Cells, over: list[str]) -> None:
    """Check that rows differ in the seed alone; those of a trend, where they have the same place in it."""
    for place, those in split(rows, over):
        apart = [name for name in varying(those) if name != "seed"]
        repeats = those["seed"].nunique(dropna=False) if "seed" in those else 1
        if (not apart and repeats == len(those)) or any(map(pd.isna, place.values())):  # no place: it has not ended
            continue
        facts = those.drop(columns="seed", errors="ignore").select_dtypes(exclude="float64")
        apart = apart or [str(name) for name in facts if facts[name].nunique(dropna=False) > 1]
        listed = "; ".join(f"{name}: {_few(those[name].unique())}" for name in apart[:MOST_SHOWN])
        at = "".join(f" at {name} {show(value)}" for name, value in place.items())
        raise NotTestable(
            f"{len(those)} rows of the table {cells.table} fit{at}, where one is needed, or one per seed; "
            f"they differ in {listed or 'nothing but what was measured'}"
        )


def _few(values: Collection[Any]) -> str:
    return ", ".join(map(show, list(values)[:MOST_SHOWN])) + (", ..." if len(values) > MOST_SHOWN else "")


def _ended(rows: pd.DataFrame, cells: Cells, remarks: list[str]) -> pd.DataFrame:
    """Return the rows of runs that ended well, or as `where` asks, where they were asked to; remark on others."""
    if "status" not in rows:
        return rows
    states = standing(rows) if "placement_verified" in rows else rows["status"]
    fits = states != MISPLACED if "status" in cells.where else states == "ok"
    others = Counter(in_words(str(state)) for state in states[~fits])
    counts = ", ".join(f"{count} {state}" for state, count in others.items())
    if not fits.any():
        raise NotTestable(f"no run has a result: {counts}")
    if others:
        remarks.append(f"{others.total()} of {len(rows)} runs have no result: {counts}")
    return rows[fits]


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool | np.bool_ | str) and pd.notna(value) and bool(np.isfinite(value))


def _interval(row: Row, column: str) -> Interval:
    """Return a number with its interval: in `ratio_low` beside `ratio`, `step_low_s` beside `step_s`."""
    middle = float(row[column])
    stem, _, unit = column.rpartition("_")
    for low, high in ((f"{column}_low", f"{column}_high"), (f"{stem}_low_{unit}", f"{stem}_high_{unit}")):
        if low in row and high in row and pd.notna(row[low]) and pd.notna(row[high]):
            said = [row.get(name) for name in (f"{column}_from", "interval_from", "judged_by")]
            basis = next((one for one in said if pd.notna(one)), WITHIN if "run" in row else "its table")
            return Interval(middle, min(float(row[low]), middle), max(float(row[high]), middle), str(basis))
    return Interval(middle, nan, nan, "its table has none" if row.get("seed") is None else "1 run")


def _why_null(row: Row, cells: Cells, study_runs: StudyRuns) -> str:
    if pd.notna(said := row.get("reason")):
        return str(said)
    if "run" in row and cells.column in RUN.names and study_runs.store.finished(str(row["run"])):
        return why_null(study_runs, str(row["run"]), cells.column)
    return NOT_RECORDED


def _warnings(rows: list[Row]) -> list[str]:
    """Return what makes times of these rows doubtful."""
    crowded = sum(bool(row.get("oversubscribed")) for row in rows)
    disturbed = sum((row.get("slow_steps_share") or 0.0) > DISTURBED for row in rows)
    counts = {
        "more threads than cores in {} of {} rows: no time of theirs counts": crowded,
        "{} of {} rows were disturbed: no time of theirs is to be trusted": disturbed,
    }
    return [words.format(count, len(rows)) for words, count in counts.items() if count]
