"""Each point of a study through its versions: its value in each, and whether it is another than in the one before."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import decisive, key_of, rows_of, show, varying
from ddp_hpc.analysis.compare.result_sets import ResultSet
from ddp_hpc.analysis.compare.significance import BETTER, OPEN, POINT, SMALL, WORSE, Finding, judge
from ddp_hpc.analysis.intervals import Array, Interval, of_median, over_runs
from ddp_hpc.analysis.report.publishable import groups_named, point, rows_named
from ddp_hpc.analysis.tables import scaling, winners
from ddp_hpc.publication.history.versions import Version
from ddp_hpc.system.terminal import counted

TOLERANCE, CHANGE = 0.01, 0.05  # as `compare` has them by default
METRICS = {"step_s": "step time", "final_loss": "final loss", "test_metric": "test metric"}
CHANGED = (WORSE, BETTER, SMALL)
OTHER_WINNER, MAYBE_SAME = "another than before", "another than before, but not told apart from that"
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Value:
    """What a line has in a version."""

    value: float
    low: float = np.nan
    high: float = np.nan
    basis: str = ""
    text: str = ""  # where it is no number: the winner
    against: str = ""  # the version that it is compared with, the last one before that has the point
    verdict: str = ""
    change_percent: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Track:
    """A point, or a group of points that compete, through the versions: None where it was not trained."""

    name: str
    values: Sequence[Value | None]


@dataclass(frozen=True)
class Developed:
    """A study through its versions."""

    study: str
    versions: Sequence[Version]
    lines: Mapping[str, Sequence[Track]]  # by quantity: those of METRICS, `winner`, `efficiency`
    broken: Sequence[Sequence[str]]  # by version: points that break, or break no more, in words

    def found(self, metric: str, at: int) -> list[tuple[Track, Value]]:
        """Return the lines that a version has and that could be compared with one before."""
        return [(one, value) for one in self.lines[metric] if (value := one.values[at]) and value.verdict]


def develop(found: Sequence[Version]) -> Developed:
    """Follow each point through the versions.

    A point is compared with the last version before that has it, all points of a version in one comparison, so that a
    false alarm among them has a chance of 5 % at most. Efficiency has its interval, and no comparison.
    """
    frames = [version.results.runs for version in found]
    every = pd.concat(frames, ignore_index=True)
    fields = [name for name in varying(every) if name != "seed"]
    names: dict[Key, str] = {}
    for row in rows_of(every):
        told = ", ".join(f"{name.replace('_', ' ')} {show(row[name])}" for name in fields)
        names.setdefault(key_of(row, POINT), told or "the only point")
    values: dict[tuple[str, Key], list[Value | None]] = {}
    broken: list[list[str]] = []
    latest: dict[Key, int] = {}
    for at, version in enumerate(found):
        here = version.results
        judged = _judged(found, latest, here)
        broken.append(
            [f"{names[key_of(dict(one.spec), POINT)]}: {one.reason}" for one in judged if one.metric == "status"]
        )
        findings = {(one.metric, key_of(dict(one.spec), POINT)): one for one in judged}
        for key, rows in _points(here.runs).items():
            for metric in METRICS:
                if interval := _interval(here, rows, metric):
                    line = values.setdefault((metric, key), [None] * len(found))
                    line[at] = _value(interval, findings.get((metric, key)), found, latest.get(key))
        latest |= dict.fromkeys(_points(here.runs), at)
    lines = {
        metric: [Track(names[key], line) for (of, key), line in values.items() if of == metric] for metric in METRICS
    }
    return Developed(
        found[0].study_runs.study.name,
        found,
        lines | {"winner": _winners(found), "efficiency": _efficiencies(found)},
        broken,
    )


def _points(runs: pd.DataFrame) -> dict[Key, list[dict[str, Any]]]:
    points: dict[Key, list[dict[str, Any]]] = {}
    for row in rows_of(runs):
        points.setdefault(key_of(row, POINT), []).append(row)
    return points


@dataclass(frozen=True)
class _Before(ResultSet):
    """The newest runs of each point before a version, from several result sets."""

    of_run: Mapping[str, ResultSet] = field(default_factory=dict)

    def step_times(self, run: str) -> Array | None:
        return self.of_run[run].step_times(run)


def _judged(found: Sequence[Version], latest: Mapping[Key, int], here: ResultSet) -> Sequence[Finding]:
    """Return what `compare` finds of a version's points and the newest runs of these before."""
    parts, of_run = [], dict[str, ResultSet]()
    for at in sorted(set(latest.values())):
        before = found[at].results
        keep = [latest[key_of(row, POINT)] == at for row in rows_of(before.runs)]
        parts.append(before.runs[keep])
        of_run |= dict.fromkeys(parts[-1]["run"], before)
    if not parts:
        return ()
    return judge(
        _Before("before", pd.concat(parts, ignore_index=True), of_run=of_run), here, TOLERANCE, CHANGE
    ).findings


def _interval(results: ResultSet, rows: Sequence[Mapping[str, Any]], metric: str) -> Interval | None:
    """Return a metric of a point over its runs; of one run's step time from within it."""
    good = [row for row in rows if row["status"] == "ok" and pd.notna(row.get(metric)) and np.isfinite(row[metric])]
    if not good:
        return None
    times = results.step_times(str(good[0]["run"])) if metric == "step_s" and len(good) == 1 else None
    return over_runs([float(row[metric]) for row in good], None if times is None else of_median(times))


def _value(interval: Interval, finding: Finding | None, found: Sequence[Version], before: int | None) -> Value:
    own = (interval.middle, interval.low, interval.high, interval.basis)
    if finding is None or before is None:
        return Value(*own)
    return Value(
        *own,
        against=found[before].name,
        verdict=finding.verdict,
        change_percent=finding.change_percent,
        change_low=finding.low_percent,
        change_high=finding.high_percent,
        reason=finding.reason or "",
    )


def _winners(found: Sequence[Version]) -> list[Track]:
    """Return the winner of each group; another one is told of as such only if it is told apart from the one before."""
    lines: dict[str, list[Value | None]] = {}
    last: dict[str, tuple[str, str]] = {}  # by group: the winner before, and in which version
    for at, version in enumerate(found):
        study = version.study_runs.study
        table, by = winners.build(version.study_runs), decisive(study.rules)
        group_of = groups_named(study, table)
        for row in rows_of(table[table["winner_runs"].notna()]):
            group, text = group_of(row), point(study, row)
            before, name = last.get(group, (row["winner"], ""))
            alike = str(row["cannot_be_told_from"] or "").split("; ")
            verdict = "" if row["winner"] == before else MAYBE_SAME if before in alike else OTHER_WINNER
            ends = (row.get(f"{by}_low"), row.get(f"{by}_high"))
            low, high = (np.nan if end is None else float(end) for end in ends)
            value = Value(float(row[by]), low, high, row["judged_by"], text, name, verdict)
            lines.setdefault(group, [None] * len(found))[at] = value
            last[group] = (row["winner"], version.name)
    return [Track(group, values) for group, values in lines.items()]


def _efficiencies(found: Sequence[Version]) -> list[Track]:
    lines: dict[str, list[Value | None]] = {}
    for at, version in enumerate(found):
        table = scaling.build(version.study_runs)
        of_what = rows_named(table)
        counts = (table["world_size"] > 1) & table["efficiency"].notna()
        for row in rows_of(table[counts & ~table["oversubscribed"].fillna(False).astype(bool)]):
            value = Value(row["efficiency"], row["efficiency_low"], row["efficiency_high"], row["interval_from"])
            lines.setdefault(f"{row['kind']}: {of_what(row)}", [None] * len(found))[at] = value
    return [Track(name, values) for name, values in sorted(lines.items())]


def in_words(developed: Developed) -> Iterator[str]:
    """Yield what changed from each version to the next, a line each."""
    yield f"{developed.study}: {counted(len(developed.versions), 'version')}"
    for at, version in enumerate(developed.versions):
        runs = counted(len(version.study_runs.planned), "run")
        yield f"{version.name}, {version.ended[:10]}, {runs}"
        for line in changes(developed, at):
            yield f"  {line}"


def changes(developed: Developed, at: int) -> Iterator[str]:
    """Yield what a version has changed: of each metric how many points, and the one that changed most."""
    for metric, words in METRICS.items():
        told = developed.found(metric, at)
        counts = Counter(value.verdict for _, value in told)
        if not told:
            continue
        said = [f"{counted(number, 'point')} {verdict}" for verdict, number in counts.items() if verdict != OPEN]
        if counts[OPEN]:
            why = Counter(value.reason for _, value in told if value.verdict == OPEN).most_common(1)[0][0]
            said.append(f"{counted(counts[OPEN], 'point')} {OPEN} ({why})")
        changed = [one for one in told if one[1].verdict in (WORSE, BETTER)]
        yield f"{words}: {', '.join(said)}{_most(changed)}"
    for line in developed.lines["winner"]:
        value = line.values[at]
        if value and value.verdict:
            yield f"winner of {line.name}: {value.text}, {value.verdict}"
    yield from developed.broken[at]
    if at:
        for fact in developed.versions[at].changed_since(developed.versions[at - 1]):
            yield f"beside the code: {fact}"


def _most(changed: Sequence[tuple[Track, Value]]) -> str:
    """Return which point changed most."""
    known = [(line, value, value.change_percent) for line, value in changed if value.change_percent is not None]
    if not known:
        return ""
    line, value, change = max(known, key=lambda one: abs(one[2]))
    sure = "" if value.change_low is None else f", 95 %: {value.change_low:+.1f} to {value.change_high:+.1f} %"
    return f"; most: {line.name} {change:+.1f} %{sure}"
