"""Which numbers of a study may be published: those that pass the rules of this program, and why the others may not."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ddp_hpc.analysis.claim_verdict import CONTRADICTED, REPRODUCED, verdict_in_words
from ddp_hpc.analysis.columns import (
    DISTURBED,
    ERRORS,
    MISPLACED,
    axes_off_the_clock,
    crowded,
    decisive,
    rows_of,
    search_columns,
    show,
    show_component,
    standing,
    told,
    told_apart_by,
)
from ddp_hpc.analysis.formatting import heading
from ddp_hpc.analysis.report.row_runs import runs_of_rows
from ddp_hpc.analysis.report.units import SECONDS, digits, unit_names
from ddp_hpc.config.comparability import OFF_THE_CLOCK
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

FIRST = 3
WITHIN_ONE = "within it only"  # so ends what an interval of one run is from
ALONE = "the interval is of one run only: a lower bound of the uncertainty"
RULES = (
    "A number passes if its 95 % interval is from several runs, its own or others that do equal work (one within a "
    "single run is only a lower bound), every thread had a core, no other program took cores from its runs, at most a "
    "third of their time went to slow steps, and their ranks sat where the study asks. A winner passes if repeats tell "
    "it apart from all other points and nothing says luck, lack of budget or other processors. A claim passes if its "
    "whole interval decides."
)
# by table: the column, what it is in words, and the column that says from what its interval is
_MEASURED = {
    "scaling": ("speedup", "speedup ({kind})", "interval_from"),
    "exchanges": ("times_as_fast", "times as fast as {reference}", "times_as_fast_from"),
    "pairs": ("ratio", "{second} over {first}: samples per second", "interval_from"),
    "phases": ("step_s", "median step", "interval_from"),
}


@dataclass(frozen=True)
class Passed:
    """A number that may be published, as text, with its interval, and the runs that it is from."""

    what: str
    of: str
    value: str
    interval: str
    basis: str
    section: str
    runs: list[int] = field(default_factory=list)
    ranks: int = 0


@dataclass(frozen=True)
class Publishable:
    """The numbers that pass, and how many do not, by reason, the most common first."""

    numbers: list[Passed]
    others: list[tuple[str, int]]

    @property
    def best(self) -> list[Passed]:
        """A few to begin with: of each section the one with the most ranks."""
        sections = dict.fromkeys(number.section for number in self.numbers)
        own = ([number for number in self.numbers if number.section == section] for section in sections)
        return [max(numbers, key=lambda number: number.ranks) for numbers in own][:FIRST]

    @property
    def count(self) -> int:
        """How many numbers were judged."""
        return len(self.numbers) + sum(count for _, count in self.others)


def publishable(study: Study, tables: Mapping[str, pd.DataFrame], runs: pd.DataFrame) -> Publishable:
    """Judge the winners, the claims, and all numbers of the tables of `_MEASURED`."""
    judged = [*_of_claims(tables), *_of_winners(study, tables, runs)]
    for name in (name for name in _MEASURED if name in tables):
        judged += _of_table(name, tables[name], runs)
    reasons = Counter(one for one in judged if isinstance(one, str))
    return Publishable([one for one in judged if isinstance(one, Passed)], reasons.most_common())


def _of_claims(tables: Mapping[str, pd.DataFrame]) -> Iterator[Passed | str]:
    for row in rows_of(tables["claims"]) if "claims" in tables else ():
        if row["verdict"] not in (REPRODUCED, CONTRADICTED):
            yield f"the claim is {row['verdict']}"
        elif pd.isna(row["ours_low"]):
            yield "the claim is decided without an interval"
        elif WITHIN_ONE in row["interval_from"]:
            yield ALONE
        else:
            half = (row["ours_high"] - row["ours_low"]) / 2
            ours, low, high = (digits(row[name], half) for name in ("ours", "ours_low", "ours_high"))
            unit = "" if pd.isna(row["unit"]) else f" {row['unit']}"
            said = f"claim {verdict_in_words(row)}"
            yield Passed(said, row["id"], ours + unit, f"{low} to {high}", row["interval_from"], "claims")


def _of_winners(study: Study, tables: Mapping[str, pd.DataFrame], runs: pd.DataFrame) -> Iterator[Passed | str]:
    if "winners" not in tables:
        return
    table, by = tables["winners"], decisive(study.rules)
    if by not in table:
        return
    of_what = groups_named(study, table)
    for row, numbers in zip(rows_of(table), runs_of_rows(table, runs), strict=True):
        if pd.isna(row["winner_runs"]):
            yield "no run may win"
        elif pd.notna(row.get("doubt")):
            yield "the winner may have won by luck, for lack of budget or on other processors"
        elif " repeats" not in row["judged_by"]:
            yield "the winner is judged by one run each" if row["eligible_points"] > 1 else "the winner has no rival"
        elif row["cannot_be_told_from_count"]:
            yield "the winner cannot be told apart from other points"
        else:
            what = f"{heading(by)} of the winner, {point(study, row)}"
            error = row[ERRORS[by]]
            told = "" if pd.isna(error) else f"standard error {error:.2g}"
            of, value, ranks = of_what(row), digits(row[by], error), row["world_size"]
            yield Passed(what, of, value, told, row["judged_by"], "winners", numbers, ranks)


def _of_table(name: str, table: pd.DataFrame, runs: pd.DataFrame) -> Iterator[Passed | str]:
    column, words, from_column = _MEASURED[name]
    if column not in table:
        return
    base, dot, unit = column.rpartition("_") if column.endswith("_s") else (column, "", "")
    ends = [f"{base}_{end}{'_s' if dot else ''}" for end in ("low", "high")]
    shown_in = unit_names(table).get(column, "").rpartition("_")[2] if dot else ""
    factor, unit = (1 / SECONDS[shown_in], f" {shown_in}") if dot else (1.0, "")
    disturbed, of_what = _disturbed(runs), rows_named(table)
    for row, numbers in zip(rows_of(table), runs_of_rows(table, runs), strict=True):
        if pd.isna(row[column]) or of_itself(name, row):
            continue
        reason = why_not(row, ends[0], from_column) or next(filter(None, (disturbed[one - 1] for one in numbers)), "")
        if reason:
            yield reason
            continue
        low, high = (factor * row[end] for end in ends)
        texts = [digits(value, (high - low) / 2) for value in (factor * row[column], low, high)]
        what = words.format_map({key: show(value) for key, value in row.items()})
        interval = f"{texts[1]} to {texts[2]}{unit}"
        of, ranks = of_what(row), row.get("world_size", 0)
        yield Passed(what, of, texts[0] + unit, interval, row[from_column], name, numbers, ranks)


def of_itself(name: str, row: Mapping[str, Any]) -> bool:
    """Return whether a row compares a baseline or a reference with itself."""
    if name == "exchanges":  # its other options are compared with it
        return bool(row["exchange"] == row["reference"] and row["times_as_fast"] == 1 == row["times_as_fast_low"])
    return bool(name == "scaling" and row["world_size"] == 1 and row["exchange"] == "none")


def why_not(row: Mapping[str, Any], low: str, from_column: str) -> str:
    """Return why a number of a table may not be published; empty if it may."""
    if row.get("oversubscribed"):
        return "more threads than cores"
    if pd.isna(row[low]) or pd.isna(row[from_column]):
        return "no interval"
    if "told_apart" in row and pd.isna(row["told_apart"]):
        return "the two of a round were no neighbours in time"
    shares = [float(str(row[name])) for name in row if name.endswith("slow_steps_share") and pd.notna(row[name])]
    if any(share > DISTURBED for share in shares):
        return "more than a third of the time went to slow steps"
    return ALONE if WITHIN_ONE in str(row[from_column]) else ""


def _disturbed(runs: pd.DataFrame) -> list[str]:
    """Return for each run why no number may be made from it; empty if that is not known."""
    taken, misplaced = crowded(runs), standing(runs) == MISPLACED
    words = ("the ranks did not sit where the study asks", "other programs took cores from the runs")
    return [words[0] if out else words[1] if busy else "" for out, busy in zip(misplaced, taken, strict=True)]


def point(study: Study, row: Mapping[str, Any]) -> str:
    """Return where in its search a winner lies: `batch size 64, learning rate 0.5`."""
    search = [name for name in search_columns(study) if not name.endswith("_options")]
    return ", ".join(f"{name.replace('_', ' ')} {told(row, name)}" for name in search) or str(row["winner"])


def groups_named(study: Study, winners: pd.DataFrame) -> Callable[[Mapping[str, Any]], str]:
    """Return what says of what group a row of the winners is."""
    return rows_named(winners.drop(columns=search_columns(study), errors="ignore"))


def rows_named(table: pd.DataFrame) -> Callable[[Mapping[str, Any]], str]:
    """Return what says of what a row is, by the fields of specs in which the rows of its table differ."""
    fields = [name for name in SPEC_COLUMNS if name in table and name not in ("exchange", "world_size")]
    known = [name for name in fields if name not in OFF_THE_CLOCK]
    asked = axes_off_the_clock(table, [*known, *(name for name in ("exchange", "world_size") if name in table)])
    fields = [name for name in fields if name in known or name in asked]
    differ = told_apart_by(table, fields)

    def of_what(row: Mapping[str, Any]) -> str:
        exchange = show_component(row["exchange"], row.get("exchange_options")) if "exchange" in row else ""
        first = ["no exchange" if exchange == "none" else exchange] if exchange else []
        ranks = [f"{row['world_size']} rank{'s' * (row['world_size'] != 1)}"] if "world_size" in row else []
        rest = (f"{name.replace('_', ' ')} {told(row, name)}" for name in differ if pd.notna(row[name]))
        return ", ".join([*first, *ranks, *rest])

    return of_what
