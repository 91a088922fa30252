"""Our number for a claim, with its interval: a value, a ratio, a trend, a count or a prediction, from rows of tables.

What is missing is no number: rows of runs that did not end well or not where they should, and nulls are left out, and
the claim says so.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddp_hpc.analysis.columns import DISTURBED, MISPLACED, key_of, rows_of, show, split, standing, varying
from ddp_hpc.analysis.intervals import CONFIDENCE, COUNTED, WITHIN, Array, Interval, of_ratio, over_runs
from ddp_hpc.analysis.tables import _from_runs
from ddp_hpc.analysis.tables._frame import INT
from ddp_hpc.analysis.tables._steps import NOT_RECORDED, why_null
from ddp_hpc.analysis.tables._winner_selection import NO_WINNER, ranked_points
from ddp_hpc.config.budget import Budget
from ddp_hpc.config.claims import DIRECTIONS, Cells, Count, Ours, Ratio, Trend
from ddp_hpc.config.errors import unknown
from ddp_hpc.config.matching import is_option, matches, option_value
from ddp_hpc.config.spec import COMPONENTS, SPEC_COLUMNS
from ddp_hpc.config.study import listed
from ddp_hpc.runs.schema import RUN
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

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
    rows: Sequence[Row]
    remarks: list[str]
    nulls: list[str]


@dataclass(frozen=True)
class Side:
    """The numbers of some cells, one per repeat; of a winner also those of each point that may be the winner."""

    numbers: list[Number]
    rivals: list[list[Number]] = field(default_factory=list)

    @property
    def each(self) -> list[list[Number]]:
        """The numbers of all points that may be meant, first those of the winner."""
        return [self.numbers, *self.rivals]


def number_of(ours: Ours, frames: Frames, study_runs: StudyRuns) -> Found:
    """Return our number.

    Raises:
        NotTestable: there is no such number; it says why.
    """
    if ours.predicted:
        return Found(Interval(ours.predicted.number, nan, nan, "computed, not measured"), [], [], [])
    if ours.count:
        return _count(ours.count, study_runs)
    if ours.from_runs:
        found = _from_runs.predicted(ours.from_runs, study_runs)
        if isinstance(found, str):
            raise NotTestable(found)
        return Found(found[0], found[1], [], [])
    remarks: list[str] = []
    nulls: list[str] = []
    sides = [_take(cells, frames, study_runs, remarks, nulls) for cells in ours.cells.values()]
    if ours.ratio:
        ratio = ours.ratio
        interval = _ratio(ratio, sides[0].numbers, sides[1].numbers, remarks)
        others = [_ratio(ratio, *pair, []) for pair in product(sides[0].each, sides[1].each)]
        interval = _widened(interval, others) if len(others) > 1 else interval
    elif ours.trend:
        numbers = sides[0].numbers
        interval = _trend(ours.trend, _over(numbers, sides[1].numbers, remarks) if ours.trend.to else numbers, remarks)
    else:
        interval = _combined(sides[0].numbers)
        if sides[0].rivals:
            interval = _widened(interval, [_combined(numbers) for numbers in sides[0].each])
    rows = [number.row for side in sides for number in side.numbers]
    return Found(interval, rows, list(dict.fromkeys(remarks)), nulls)


def _widened(interval: Interval, others: Sequence[Interval]) -> Interval:
    """Return an interval that holds those of all points that may be the winner; unknown if one of them is."""
    low, high = (float(np.min([one.low for one in others])), float(np.max([one.high for one in others])))
    return replace(interval, low=low, high=high)


def _count(count: Count, study_runs: StudyRuns) -> Found:
    """Return how many runs of a repeat are so; all must have ended, however they did."""
    runs = study_runs.runs.assign(status=standing(study_runs.runs))
    asked = selected(Cells(table="runs", column="world_size", where=count.where), runs, study_runs)
    if asked.empty:
        raise NotTestable("no run of the study is as `where` asks")
    if others := Counter(in_words(str(state)) for state in asked["status"] if state not in FINISHED):
        counts = ", ".join(f"{number} {state}" for state, number in others.items())
        raise NotTestable(f"not complete: {others.total()} of {len(asked)} runs have not ended: {counts}")
    so = selected(Cells(table="runs", column="world_size", where=count.having), asked, study_runs)
    found = dict.fromkeys(asked["seed"], 0) | so["seed"].value_counts().to_dict()
    repeats = over_runs([float(number) for number in found.values()])
    if len(set(found.values())) == 1:  # it is not known how others would differ
        repeats = Interval(repeats.middle, nan, nan, f"{COUNTED} in {counted(len(found), 'repeat')}")
    return Found(repeats, rows_of(asked), [f"{len(so)} of {len(asked)} runs"], [])


def _combined(numbers: Sequence[Number]) -> Interval:
    """Return the median over the repeats, or the only number, each with its interval."""
    return over_runs([number.value for number in numbers], numbers[0].interval if len(numbers) == 1 else None)


def _over(numbers: Sequence[Number], bases: Sequence[Number], remarks: list[str]) -> list[Number]:
    """Return the numbers over those of a baseline, by seed."""
    by_seed = {base.seed: base for base in bases}
    paired = [(number, by_seed[number.seed]) for number in numbers if number.seed in by_seed]
    if not paired or any(base.value <= 0 or number.value <= 0 for number, base in paired):
        raise NotTestable("no repeat has a number above 0 on both sides of the ratio")
    if len(paired) < len(numbers):
        remarks.append(f"{len(paired)} of {len(numbers)} numbers have a baseline of their repeat")
    return [replace(number, interval=of_ratio(number.interval, base.interval)) for number, base in paired]


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


def _take(cells: Cells, frames: Frames, study_runs: StudyRuns, remarks: list[str], nulls: list[str]) -> Side:
    """Return the numbers in `cells` of a table, one at least; what a reader has to know is added to the lists."""
    frame, over = frames(cells.table), [cells.over] if isinstance(cells, Trend) else []
    for name in (cells.column, *over):
        if name not in frame:
            raise NotTestable(f"table {cells.table}: {unknown('column', name, map(str, frame.columns))}")
    fit = selected(cells, frame, study_runs)
    if fit.empty:
        where = ", ".join(f"{name} {'null' if value is None else value}" for name, value in cells.where.items())
        raise NotTestable(f"no row of the table {cells.table}{f' has {where}' if where else ''}")
    rivals: list[pd.DataFrame] = []
    if cells.winner:
        fit, rivals = _of_winner(fit, study_runs, frames)
    elif chosen := _chosen(cells, frame, study_runs):
        remarks.append(f"of the search it is read at {chosen} alone, whoever wins")
    _repeats_only(fit, cells, over)
    ended = rows_of(_ended(fit, cells, remarks))
    whole = "run" not in frame and "seed" not in frame and frame[cells.column].dtype == INT
    known = _numbers(ended, cells.column, whole)
    if not known:
        raise NotTestable(f"{cells.column} is null: {_why_null(ended[0], cells, study_runs)}")
    if lost := len(ended) - len(known):
        nulls.append(f"{cells.column} is null in {lost} of {len(ended)} rows")
        remarks.append(nulls[-1])
    remarks += _warnings([number.row for number in known])
    others = [_numbers(rows_of(_ended(one, cells, [])), cells.column, whole) for one in rivals]
    if others := [numbers for numbers in others if numbers]:
        remarks.append(f"the winner cannot be told from {len(others)} of its rivals: the interval holds theirs")
    return Side(known, others)


def _numbers(rows: Iterable[Row], column: str, whole: bool) -> list[Number]:
    return [Number(row, row.get("seed"), _interval(row, column, whole)) for row in rows if _is_number(row[column])]


def _chosen(cells: Cells, frame: pd.DataFrame, study_runs: StudyRuns) -> str:
    """Return at which point of the search cells are read, where the study looks for winners; else nothing."""
    study, varying_ = study_runs.study, varying(study_runs.runs)
    if "winners" not in study.table_names or "winner" in frame:
        return ""
    fixed = {name: cells.where[name] for name in study.search if name in cells.where and name in varying_}
    return ", ".join(f"{name} {value}" for name, value in fixed.items())


def _of_winner(fit: pd.DataFrame, study_runs: StudyRuns, frames: Frames) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Return those rows that are of the winner, and of each point that cannot be told from it, of the same groups."""
    candidates, groups, _, _ = ranked_points(study_runs)
    points = {(key_of(row, groups), row["point"]): row["runs"] for row in rows_of(candidates)}
    won, rivals, none = [], [], set()
    for row in rows_of(frames("winners")):
        key = key_of(row, groups)
        if row["winner"] == NO_WINNER or pd.isna(row["winner"]):
            none.add(row["judged_by"] or row["excluded_because"])
            continue
        mine = _of_runs(fit, str(row["winner_runs"]).split(), study_runs)
        if len(mine):
            won.append(mine)
            names = filter(None, str(row["cannot_be_told_from"]).split("; "))
            rivals += [_of_runs(fit, points[key, name], study_runs) for name in names if (key, name) in points]
    if not won:
        why = "; ".join(filter(pd.notna, none))
        raise NotTestable(f"no row is of a winner{f': {why}' if why else ''}")
    return pd.concat(won), [one for one in rivals if len(one)]


def _of_runs(frame: pd.DataFrame, runs: Collection[str], study_runs: StudyRuns) -> pd.DataFrame:
    """Return the rows of a table that are of these runs, by their names or by what the table says of their specs."""
    if "run" in frame:
        return frame[frame["run"].isin(runs)]
    names = [name for name in SPEC_COLUMNS if name in frame]
    specs = study_runs.runs[study_runs.runs["run"].isin(runs)]
    wanted = {key_of(row, names) for row in rows_of(specs)}
    return frame[[key_of(row, names) in wanted for row in rows_of(frame)]]


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


def runs_read(cells: Cells, study_runs: StudyRuns, judged: Collection[str]) -> pd.DataFrame:
    """Return the planned runs that fit what `where` of cells says of specs.

    In the tables `judged`, `where` on an axis of the search picks a winner, which all points had a part in.
    """
    searched = study_runs.study.search if cells.table in judged else ()
    return selected(of_specs(cells, searched), study_runs.runs, study_runs)


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


def _interval(row: Row, column: str, whole: bool) -> Interval:
    """Return a number with its interval: in `ratio_low` beside `ratio`, `step_low_s` beside `step_s`.

    Whole numbers of a table that combines the repeats, counts and settings, are what they are.
    """
    middle = float(row[column])
    stem, _, unit = column.rpartition("_")
    for low, high in ((f"{column}_low", f"{column}_high"), (f"{stem}_low_{unit}", f"{stem}_high_{unit}")):
        if low in row and high in row and pd.notna(row[low]) and pd.notna(row[high]):
            said = [row.get(name) for name in (f"{column}_from", "interval_from", "judged_by")]
            basis = next((one for one in said if pd.notna(one)), WITHIN if "run" in row else "its table")
            return Interval(middle, min(float(row[low]), middle), max(float(row[high]), middle), str(basis))
    if whole:
        return Interval(middle, middle, middle, f"{COUNTED} in its table: what these runs are")
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
