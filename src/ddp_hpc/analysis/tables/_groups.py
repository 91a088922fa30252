"""What most tables do: take runs of one kind together, find what each is compared with, and say what is not known."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import ALWAYS_GROUPED, key_of, rows_of, split_rows, standing
from ddp_hpc.analysis.intervals import Arm, Array, Interval, Noise, of_mean, of_ratio, over_runs
from ddp_hpc.analysis.tables._frame import known, largest, median, typed
from ddp_hpc.analysis.tables._steps import step_times
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import SAME_WORK, agreeing
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

Row = dict[str, Any]
WithSpec = tuple[tuple[Any, ...], Row]
_PHASES = (*PHASES, "forward_backward_s")  # a step has either this one or its parts


@dataclass(frozen=True)
class Group:
    """Runs of one kind: all that are planned, and those that have ended well, at least one."""

    study_runs: StudyRuns
    planned: list[Row]
    ended: list[Row]
    noise: Noise = field(default_factory=lambda: Noise.of([]))

    @property
    def run(self) -> str:
        """The first run that has ended well."""
        return str(self.ended[0]["run"])

    @property
    def by_itself(self) -> Row:
        """The row of an exchange whose ranks do not take their steps together; empty of any other."""
        synchronous = catalog.constants("exchange", self.ended[0]["exchange"])["SYNCHRONOUS"]
        unknown = dict.fromkeys(("slow_steps_share", "oversubscribed"))
        return {} if synchronous else unknown | {"reason": "each rank takes its steps by itself"}

    def median(self, name: str) -> float | None:
        """Return the median of a column; None if no run has it."""
        return median(row[name] for row in self.ended)

    def share(self, *parts: str) -> float | None:
        """Return the median share that phases have in the sum of all; None if no run has them."""
        return median(self._shares(*parts))

    def share_over_runs(self, *parts: str) -> Interval:
        """Return that share with its interval over the runs; of one run none is known."""
        return over_runs(self._shares(*parts))

    def _shares(self, *parts: str) -> list[float]:
        sums = [(known(row[name] for name in parts), sum(known(row[name] for name in _PHASES))) for row in self.ended]
        return [sum(found) / whole for found, whole in sums if whole > 0 and len(found) == len(parts)]

    def over_runs(
        self,
        values: Sequence[float],
        within: Callable[[Array], Interval],
        of_steps: Callable[[StudyRuns, str], Array] = step_times,
    ) -> Interval:
        """Return the median of a value per run and its interval, that within the first run if it is the only one.

        Few times of steps share the noise of time with all runs of the study that do equal work.
        """
        noise = self.noise.at(kind_of(self.ended[0])) if of_steps is step_times else None
        return over_runs(values, within(of_steps(self.study_runs, self.run)) if len(values) == 1 else None, noise)


def by_group(
    study_runs: StudyRuns,
    runs: pd.DataFrame,
    axes: list[str],
    names: Iterable[str],
    measured: Callable[[Group], Row],
) -> pd.DataFrame:
    """Return a table with a row for each group of runs with the same values of `axes`, the first columns.

    Of the other columns, `names`, `measured` returns those of a group of which some run has ended well, but for `runs`,
    `slow_steps_share` (the largest of the runs) and `oversubscribed` (any); other groups have a `reason` only.
    """
    rows, noise = [], noise_of_time(runs)
    for key, planned in split_rows(runs, axes):
        ended = [row for row in planned if row["status"] == "ok"]
        found = (
            doubt(ended) | measured(Group(study_runs, planned, ended, noise))
            if ended
            else {"reason": not_complete(planned)}
        )
        rows.append(key | {"runs": len(ended)} | found)
    return typed(rows, [*axes, *names])


def not_complete(rows: Iterable[Row]) -> str:
    """Return how runs have ended, or that they have not, as a reason."""
    return f"not complete: {statuses(rows)}"


def statuses(rows: Iterable[Row]) -> str:
    """Return the statuses of runs as people read them, each once, in alphabetical order."""
    return ", ".join(sorted({in_words(str(row["status"])) for row in rows}))


def doubt(rows: Iterable[Row]) -> Row:
    """Return the columns that tell whether times of runs are to be trusted."""
    listed = list(rows)
    return {
        "slow_steps_share": largest(row.get("slow_steps_share") for row in listed),
        "oversubscribed": any(row["oversubscribed"] for row in listed),
    }


def kind_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return by what runs are taken to scatter alike: exchange and world size."""
    return tuple(row.get(name) for name in ALWAYS_GROUPED)


def noise_of_time(runs: pd.DataFrame) -> Noise:
    """Return how the time of a step, slow ones included, differs between runs that do the same work, by `kind_of`.

    Only runs count that ended well or were beaten, where they were asked to, with a core for every thread.
    """
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows_of(runs[standing(runs).isin(["ok", "beaten"])]):
        if not row["oversubscribed"] and row["steps"] and (row["train_s"] or 0) > 0:
            cells.setdefault(key_of(row, agreeing(SAME_WORK)), []).append(row)
    return Noise.of((kind_of(rows[0]), [row["train_s"] / row["steps"] for row in rows]) for rows in cells.values())


def noise_of_ratios(
    runs: pd.DataFrame, axes: list[str], others: "Counterparts", ratio: Callable[[Row, Row], float]
) -> Noise:
    """Return how the ratios of runs to their counterparts differ between runs with the same `axes`, by `kind_of`."""
    cells = []
    for _, rows in split_rows(runs[runs["status"] == "ok"], axes):
        pairs = [(row, other) for row, other in others.pairs(rows) if row["run"] != other["run"]]
        if pairs:
            cells.append((kind_of(pairs[0][0]), [ratio(row, other) for row, other in pairs]))
    return Noise.of(cells)


def one_rank(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of one rank without exchange: what others are compared with."""
    return runs[(runs["exchange"] == "none") & (runs["world_size"] == 1)]


def with_spec(row: Row) -> WithSpec:
    """Return the columns of a run's spec, and the run: found once for each run, as each is compared with many."""
    return key_of(row, SPEC_COLUMNS), row


def likeness(run: WithSpec, other: WithSpec) -> tuple[bool, int]:
    """Return whether another run has ended well, and in how many columns of their specs the two agree."""
    return bool(other[1]["status"] == "ok"), sum(map(eq, run[0], other[0]))


def why_not(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return why a run cannot be compared with another one of its kind; empty if it can."""
    if other["status"] != "ok":
        return in_words(str(other["status"]))
    devices = [one["device_used"] for one in (other, row)]
    if any(map(pd.isna, devices)) or devices[0] == devices[1]:
        return ""
    return f"on {devices[0]}, not on {devices[1]} as this"


class Counterparts:
    """Runs, found by what others have in common with them; of several one that has ended well, the most like the other.

    Runs may differ from their counterparts in the columns `may_differ` (`config.comparability`), not in others of the
    spec, nor in those in `also`, nor in the kind of device that they had.
    """

    def __init__(self, runs: pd.DataFrame, may_differ: Collection[str], also: Sequence[str] = ()) -> None:
        self._columns = [*agreeing(may_differ), *also]
        self._found: dict[tuple[Any, ...], list[WithSpec]] = {}
        for row in rows_of(runs):
            self._found.setdefault(key_of(row, self._columns), []).append(with_spec(row))
        self._of: dict[str, Row | None] = {}

    def of(self, row: Row) -> Row | None:
        """Return the counterpart of a run, whatever became of it; None if there is none."""
        if row["run"] not in self._of:
            found, run = self._found.get(key_of(row, self._columns), []), with_spec(row)
            best = max(found, key=lambda other: likeness(run, other), default=None)
            self._of[row["run"]] = best[1] if best else None
        return self._of[row["run"]]

    def pairs(self, rows: Iterable[Row]) -> list[tuple[Row, Row]]:
        """Return those runs whose counterpart has ended well, on a device of the same kind, each with it."""
        found = ((row, self.of(row)) for row in rows)
        return [(row, other) for row, other in found if other is not None and not why_not(row, other)]

    def why_none(self, rows: Iterable[Row]) -> str | None:
        """Return why none of some runs has a counterpart to compare it with; None if nothing of the kind is planned."""
        reasons = [why_not(row, other) for row in rows if (other := self.of(row)) is not None]
        return ", ".join(sorted(set(filter(None, reasons)))) or None


def spread(name: str, unit: str, interval: Interval, values: Sequence[float] = ()) -> Row:
    """Return a middle and its ends as columns, `step_s`, `step_low_s`, `step_high_s`, and those of `values`, if any.

    `step_from` is from what the ends are, for tables with several intervals.
    """
    found: Row = {
        f"{name}{unit}": interval.middle,
        f"{name}_low{unit}": interval.low,
        f"{name}_high{unit}": interval.high,
    }
    found |= {f"{name}_from": interval.basis if interval.known else None}
    return found | ({f"{name}_least{unit}": min(values), f"{name}_largest{unit}": max(values)} if values else {})


def over_pairs(
    study_runs: StudyRuns, ratios: Sequence[float], pairs: Sequence[tuple[Row, Row]], noise: Arm | None = None
) -> Interval:
    """Return the median ratio and its interval; of one pair, from the mean steps of both runs, the first's on top.

    Few pairs share the `noise` of ratios between runs that do equal work (`intervals.over_runs`).
    """
    alone = None
    if len(pairs) == 1 and pairs[0][0]["run"] != pairs[0][1]["run"]:
        alone = of_ratio(*(of_mean(step_times(study_runs, row["run"])) for row in pairs[0]))
    return over_runs(ratios, alone, noise)
