"""Which rows of a table a claim reads, and the numbers in them: one for each repeat, with its interval if it has one.

What is missing is no number: rows of runs that did not end well or not where they should, and nulls are left out, and
the claim says so.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import DISTURBED, MISPLACED, rows_of, show, standing
from ddp_hpc.analysis.intervals import WITHIN, Interval
from ddp_hpc.analysis.tables._steps import NOT_RECORDED, why_null
from ddp_hpc.config.budget import Budget
from ddp_hpc.config.claims import Cells, Trend
from ddp_hpc.config.errors import unknown
from ddp_hpc.config.matching import is_option, matches, option_value
from ddp_hpc.config.spec import COMPONENTS, SPEC_COLUMNS
from ddp_hpc.config.study import listed
from ddp_hpc.runs.schema import RUN
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

MOST_SHOWN = 4  # values of a column in a reason


class NotTestable(Exception):  # noqa: N818  (no error: a verdict)
    """Why there is no number of ours."""


@dataclass(frozen=True)
class Number:
    """A cell that holds a number."""

    row: Mapping[str, Any]  # of the table
    value: float  # finite
    interval: Interval | None  # what the table says of how sure it is; None if it says nothing

    @property
    def seed(self) -> int | None:
        """The repeat; None in a table that combines the repeats."""
        return self.row.get("seed")


@dataclass(frozen=True)
class Taken:
    """The numbers that cells hold, what a reader has to know of them, and which of them are null."""

    numbers: list[Number]
    remarks: list[str]
    nulls: list[str]


def take(cells: Cells, frame: pd.DataFrame, study_runs: StudyRuns) -> Taken:
    """Return the numbers in `cells` of a table, one at least.

    Raises:
        NotTestable: there is none, or rows differ in more than the seed (and the column of a trend).
    """
    over = [cells.over] if isinstance(cells, Trend) else []
    for name in (cells.column, *over):
        if name not in frame:
            raise NotTestable(f"table {cells.table}: {unknown('column', name, map(str, frame.columns))}")
    rows = rows_of(selected(cells, frame, study_runs))
    if not rows:
        raise NotTestable(f"no row of the table {cells.table} has {_in_words(cells.where)}".removesuffix(" has "))
    _repeats_only(rows, cells)
    ended, remarks = _ended(rows, cells)
    known = [number for row in ended if (number := _number(row, cells)) is not None]
    if not known:
        raise NotTestable(f"{cells.column} is null: {_why_null(ended[0], cells, study_runs)}")
    lost = len(ended) - len(known)
    nulls = [f"{cells.column} is null in {lost} of {len(ended)} rows"] if lost else []
    return Taken(known, [*remarks, *nulls, *_warnings([number.row for number in known])], nulls)


def selected(cells: Cells, frame: pd.DataFrame, study_runs: StudyRuns) -> pd.DataFrame:
    """Return the rows that `where` asks for; a spec field that is the same in all runs need be no column.

    Raises:
        NotTestable: a column is not there.
    """
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


def runs_read(cells: Iterable[Cells], study_runs: StudyRuns, judged: Iterable[str] = ()) -> pd.DataFrame:
    """Return the planned runs that fit what `where` says of specs.

    Args:
        cells: of one claim.
        study_runs: of the study.
        judged: tables in which `where` on an axis of the search picks a winner, which all points had a part in.
    """
    runs = study_runs.runs
    read = pd.Series(False, index=runs.index)
    for one in cells:
        searched = study_runs.study.search if one.table in judged else ()
        read |= runs.index.isin(selected(of_specs(one, searched), runs, study_runs).index)
    return runs[read]


def of_specs(cells: Cells, without: Collection[str] = ()) -> Cells:
    """Return cells whose `where` names fields of specs only, but for those in `without`."""
    where = {name: value for name, value in cells.where.items() if name.partition(".")[0] in SPEC_COLUMNS}
    return Cells(
        table=cells.table,
        column=cells.column,
        where={name: value for name, value in where.items() if name not in without},
    )


def _columns(name: str, wanted: Any) -> tuple[str, ...]:
    """Return the columns that hold a key of `where`; the options of a component stand in a column of their own."""
    component = name.partition(".")[0]
    of_options = is_option(name) or (name in COMPONENTS and any(isinstance(one, Mapping) for one in listed(wanted)))
    return (component, f"{component}_options") if of_options else (name,)


def _value(row: Mapping[str, Any], name: str) -> Any:
    """Return what a row has in a column, or of an option, e.g. `exchange.period`."""
    if is_option(name):
        kind, _, option = name.partition(".")
        options = row[f"{kind}_options"]
        return option_value(kind, row[kind], {} if pd.isna(options) else json.loads(options), option)
    value = row[name]
    return None if pd.isna(value) else bool(value) if isinstance(value, np.bool_) else value


def _in_words(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'null' if value is None else value}" for name, value in where.items())


def _repeats_only(rows: list[dict[str, Any]], cells: Cells) -> None:
    """Check that rows differ in the seed alone; those of a trend, where they have the same place in it.

    Raises:
        NotTestable: naming the columns that tell them apart.
    """
    over = cells.over if isinstance(cells, Trend) else ""
    places: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        places.setdefault(_plain(row[over]) if over else "", []).append(row)
    if over:
        places.pop(None, None)  # of runs that have not ended: told later
    for place, those in places.items():
        apart = [name for name in SPEC_COLUMNS if name != "seed" and _varies(those, name)]
        if not apart and len({row.get("seed") for row in those}) == len(those):
            continue
        apart = apart or [name for name in those[0] if name != "seed" and _tells_apart(those, name)]
        listed = "; ".join(f"{name}: {_few(row[name] for row in those)}" for name in apart[:MOST_SHOWN])
        at = f" at {over} {show(place)}" if over else ""
        raise NotTestable(
            f"{len(those)} rows of the table {cells.table} fit{at}, where one is needed, or one per seed; "
            f"they differ in {listed or 'nothing but what was measured'}"
        )


def _varies(rows: list[dict[str, Any]], name: str) -> bool:
    return name in rows[0] and len({_plain(row[name]) for row in rows}) > 1


def _tells_apart(rows: list[dict[str, Any]], name: str) -> bool:
    return _varies(rows, name) and not any(isinstance(row[name], float) for row in rows)


def _few(values: Iterable[Any]) -> str:
    found = [show(value) for value in dict.fromkeys(map(_plain, values))]
    return ", ".join(found[:MOST_SHOWN]) + (", ..." if len(found) > MOST_SHOWN else "")


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else value


def _ended(rows: list[dict[str, Any]], cells: Cells) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of runs that ended well, or as `where` asks, where they were asked to; a remark on the others.

    Raises:
        NotTestable: there is none.
    """
    if "status" not in rows[0]:
        return rows, []
    frame = pd.DataFrame(rows)
    states = standing(frame) if "placement_verified" in frame else frame["status"]
    fits = [state == "ok" or ("status" in cells.where and state != MISPLACED) for state in states]
    ended = [row for row, fit in zip(rows, fits, strict=True) if fit]
    others = Counter(in_words(str(state)) for state, fit in zip(states, fits, strict=True) if not fit)
    listed = ", ".join(f"{count} {state}" for state, count in others.items())
    if not ended:
        raise NotTestable(f"no run has a result: {listed}")
    return ended, [f"{len(rows) - len(ended)} of {len(rows)} runs have no result: {listed}"] if others else []


def _number(row: Mapping[str, Any], cells: Cells) -> Number | None:
    value = row[cells.column]
    if isinstance(value, bool | np.bool_ | str) or pd.isna(value) or not np.isfinite(value):
        return None
    return Number(row, float(value), _interval(row, cells.column))


def _interval(row: Mapping[str, Any], column: str) -> Interval | None:
    """Return the interval that stands beside a number: in `ratio_low` of `ratio`, `step_low_s` of `step_s`."""
    stem, _, unit = column.rpartition("_")
    for low, high in ((f"{column}_low", f"{column}_high"), (f"{stem}_low_{unit}", f"{stem}_high_{unit}")):
        if low in row and high in row and pd.notna(row[low]) and pd.notna(row[high]):
            middle = float(row[column])
            basis = row.get("interval_from", row.get("judged_by", WITHIN if "run" in row else "its table"))
            return Interval(middle, min(float(row[low]), middle), max(float(row[high]), middle), str(basis))
    return None


def _why_null(row: Mapping[str, Any], cells: Cells, study_runs: StudyRuns) -> str:
    said = row.get("reason")
    if said is not None and not pd.isna(said):
        return str(said)
    if "run" in row and cells.column in RUN.names and study_runs.store.finished(str(row["run"])):
        return why_null(study_runs, str(row["run"]), cells.column)
    return NOT_RECORDED


def _warnings(rows: list[Mapping[str, Any]]) -> list[str]:
    """Return what makes times of these rows doubtful."""
    crowded = sum(bool(row.get("oversubscribed")) for row in rows)
    slow = [row["slow_steps_share"] for row in rows if pd.notna(row.get("slow_steps_share"))]
    disturbed = sum(share > DISTURBED for share in slow)
    words = []
    if crowded:
        words.append(f"more threads than cores in {crowded} of {len(rows)} rows: no time of theirs counts")
    if disturbed:
        words.append(f"{disturbed} of {len(rows)} rows were disturbed: no time of theirs is to be trusted")
    return words
