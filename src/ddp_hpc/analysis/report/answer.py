"""The answer that the page begins with: what was found and how sure that is, in sentences made from the tables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ddp_hpc.analysis.claim_verdict import summary
from ddp_hpc.analysis.columns import (
    DISTURBED,
    ERRORS,
    crowded,
    decisive,
    key_of,
    rows_of,
    show_component,
    slow_steps_share,
)
from ddp_hpc.analysis.formatting import heading
from ddp_hpc.analysis.report.publishable import WITHIN_ONE, groups_named, of_itself, point, rows_named
from ddp_hpc.analysis.report.row_runs import runs_of_rows
from ddp_hpc.analysis.report.units import digits, time
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

MOST = 3  # sentences of a kind on the first screen
ROUNDED = 0.02  # by how much the ratio of two times may differ from the speedup beside them
Row = dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A sentence, the section that has all of its kind, and the runs that it is made from."""

    text: str
    section: str = ""
    runs: list[int] = field(default_factory=list)


def found(study_runs: StudyRuns, tables: Mapping[str, pd.DataFrame]) -> list[Sentence]:
    """Return what was found: the verdicts on claims, speedups, winners, exchanges and pairs compared."""
    runs = study_runs.runs
    parts = (
        _of_claims(tables),
        _speedups(tables, runs),
        _of_winners(study_runs, tables),
        _of_exchanges(tables, runs),
        _of_pairs(tables, runs),
        _of_cost(tables),
    )
    disturbed = _disturbed(runs)
    timeless = "winners" if decisive(study_runs.study.rules) == "test_metric" else None
    findings = [finding for part in parts for finding in part]
    return [finding if finding.section == timeless else _doubted(finding, disturbed) for finding in findings]


def _disturbed(runs: pd.DataFrame) -> list[bool]:
    """Return for each run whether something else used its cores, which had one for each thread."""
    with_cores = ~runs["oversubscribed"].fillna(False).astype(bool)
    return list(with_cores & ((slow_steps_share(runs) > DISTURBED) | crowded(runs)))


def _doubted(finding: Sentence, disturbed: list[bool]) -> Sentence:
    """Return a sentence that says of times from disturbed runs that they are not reliable."""
    if not (count := sum(disturbed[number - 1] for number in finding.runs)):
        return finding
    why = f"Not reliable: something else used the cores in {count} of {counted(len(finding.runs), 'run')}."
    return replace(finding, text=f"{finding.text} {why}")


def _at_most(findings: list[Sentence], section: str) -> list[Sentence]:
    """Return the first few, and how many there are besides."""
    more = len(findings) - MOST
    return findings if more <= 0 else [*findings[:MOST], Sentence(f"And {more} more.", section)]


def _speedups(tables: Mapping[str, pd.DataFrame], runs: pd.DataFrame) -> list[Sentence]:
    """Return a sentence per exchange and world size: of the winner's point where there is one, else of the first."""
    if "scaling" not in tables:
        return []
    table = tables["scaling"].reset_index(drop=True)
    links = runs_of_rows(table, runs)
    chosen: dict[tuple[Any, ...], tuple[bool, int]] = {}
    fields, won = _winning_keys(tables, table)
    rows = rows_of(table)
    for place, row in enumerate(rows):
        if row["world_size"] == 1 or pd.isna(row["speedup"]) or row["oversubscribed"]:
            continue
        key = (row["exchange"], str(row.get("exchange_options")), row["world_size"])
        wins = key_of(row, fields) in won
        if key not in chosen or (wins and not chosen[key][0]):
            chosen[key] = (wins, place)
    named = len({key[:2] for key in chosen}) > 1
    order = list(chosen.values())
    if len(order) > MOST:
        order.sort(key=lambda one: -rows[one[1]]["world_size"])
    of_what = rows_named(table)
    findings = [
        Sentence(_speedup(rows[at], of_what(rows[at]), named, wins), "scaling", links[at]) for wins, at in order
    ]
    return _at_most(findings, "scaling") or _no_speedup(rows)


def _winning_keys(tables: Mapping[str, pd.DataFrame], table: pd.DataFrame) -> tuple[list[str], set[tuple[Any, ...]]]:
    """Return the fields of specs that the tables of winners and of scaling share, and their values of each winner."""
    if "winners" not in tables:
        return [], set()
    winners = tables["winners"]
    won = winners[winners["winner_runs"].notna() & (winners["points"] > 1)]
    fields = [name for name in SPEC_COLUMNS if name in won and name in table]
    return fields, {key_of(row, fields) for row in rows_of(won[fields])}


def _speedup(row: Row, of: str, named: bool, wins: bool) -> str:
    ranks, speedup = row["world_size"], interval(row, "speedup")
    sure = _between(row, "speedup", row["interval_from"])
    if row["kind"] == "weak":
        did = f"{ranks} ranks train {speedup} times as many samples per second as one rank"
    elif abs(row["baseline_train_s"] / row["train_s"] / row["speedup"] - 1) > ROUNDED:
        did = f"{ranks} ranks train {speedup} times as fast as one rank"  # the median over rounds, which differ
    else:
        did = f"{ranks} ranks train in {time(row['train_s'])} what one rank trains in {time(row['baseline_train_s'])}: "
        did += f"{speedup} times as fast"
    start = f"With {row['exchange']}, " if named else ""
    point = of.partition(f"{ranks} ranks")[2].strip(", ")
    at = f" At {point}{f', the winner of {ranks} ranks' if wins else ''}." if point else ""
    return f"{start}{did} ({sure}), efficiency {100 * row['efficiency']:.0f} %.{at}"


def _no_speedup(rows: list[Row]) -> list[Sentence]:
    several = [row for row in rows if row["world_size"] > 1]
    if not several:
        return []
    reasons = Counter(
        "more threads than cores" if row["oversubscribed"] and pd.notna(row["speedup"]) else row["reason"] or "unknown"
        for row in several
    )
    (reason, count), *_ = reasons.most_common()
    return [Sentence(f"No speedup can be told: {reason} ({count} of {counted(len(several), 'point')}).", "scaling")]


def interval(row: Row, name: str) -> str:
    """Return the middle in the digits that its interval allows."""
    return digits(row[name], (row[f"{name}_high"] - row[f"{name}_low"]) / 2)


def _between(row: Row, name: str, basis: Any) -> str:
    """Return e.g. `95 %: 1.46 to 1.56`, whether only one run says so, and whether it may be no difference at all."""
    if pd.isna(row[f"{name}_low"]):
        return "no interval"
    half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2
    low, high = (digits(row[f"{name}_{end}"], half) for end in ("low", "high"))
    alone = ", within one run" if WITHIN_ONE in str(basis) else ""
    nothing = ": may be no difference" if row[f"{name}_low"] <= 1 <= row[f"{name}_high"] else ""
    return f"95 %: {low} to {high}{alone}{nothing}"


def _of_exchanges(tables: Mapping[str, pd.DataFrame], runs: pd.DataFrame) -> list[Sentence]:
    """Return a sentence per exchange: how it compares with the reference at the most ranks."""
    if "exchanges" not in tables:
        return []
    table = tables["exchanges"].reset_index(drop=True)
    links = runs_of_rows(table, runs)
    last: dict[tuple[Any, ...], tuple[Row, list[int]]] = {}
    for row, own in zip(rows_of(table), links, strict=True):
        counts = pd.notna(row["times_as_fast"]) and not row["oversubscribed"]
        if counts and not of_itself("exchanges", row) and row["world_size"] > 1:
            key = (row["exchange"], str(row.get("exchange_options")))
            if key not in last or row["world_size"] > last[key][0]["world_size"]:
                last[key] = (row, own)
    of_what = rows_named(table)
    findings = [
        Sentence(
            f"{of_what(row)}: {interval(row, 'times_as_fast')} times as fast as {row['reference']} "
            f"({_between(row, 'times_as_fast', row['times_as_fast_from'])}).",
            "exchanges",
            own,
        )
        for row, own in sorted(last.values(), key=lambda one: -one[0]["times_as_fast"])
    ]
    return _at_most(findings, "exchanges")


def _of_pairs(tables: Mapping[str, pd.DataFrame], runs: pd.DataFrame) -> list[Sentence]:
    if "pairs" not in tables:
        return []
    table = tables["pairs"].reset_index(drop=True)
    rows = zip(rows_of(table), runs_of_rows(table, runs), strict=True)
    told = [(row, own) for row, own in rows if pd.notna(row["ratio"]) and not row["oversubscribed"]]
    of_what = rows_named(table)
    findings = [Sentence(_pair(row, of_what(row) or "Pairs"), "pairs", own) for row, own in told]
    return _at_most(findings, "pairs")


def _of_cost(tables: Mapping[str, pd.DataFrame]) -> list[Sentence]:
    """Return a sentence per line over the ranks: where one more stops paying."""
    if "cost" not in tables:
        return []
    table = tables["cost"]
    lines = table[table["worth_it"].notna()].drop_duplicates(["worth_it"])
    findings = []
    for row in rows_of(lines):
        batch = "per rank" if row["kind"] == "weak" else "in all"
        of = f"{show_component(row['exchange'], row.get('exchange_options'))}, {row['kind']} scaling"
        findings.append(Sentence(f"{of}, {row['batch']} samples {batch}: {row['worth_it']}.", "cost"))
    return _at_most(findings, "cost")


def _pair(row: Row, of: str) -> str:
    apart: bool = bool(row["told_apart"]) if pd.notna(row["told_apart"]) else False
    ratio = f"{interval(row, 'ratio')} times as fast as {row['first']}"
    sure = _between(row, "ratio", row["interval_from"])
    return f"{of}: {row['second']} is {ratio} ({sure}){'' if apart else ', which does not tell them apart'}."


def _of_winners(study_runs: StudyRuns, tables: Mapping[str, pd.DataFrame]) -> list[Sentence]:
    if "winners" not in tables or not len(tables["winners"]):
        return []
    table, runs = tables["winners"].reset_index(drop=True), study_runs.runs
    names = runs["test_metric_name"].dropna().unique()
    metric = f"test {names[0]}" if len(names) == 1 else "test metric"
    links = zip(rows_of(table), runs_of_rows(table, runs), strict=True)
    none = int(table["winner_runs"].isna().sum())
    won = [(row, own) for row, own in links if pd.notna(row["winner_runs"]) and row["points"] > 1]  # others, no search
    if len(won) > MOST:
        won.sort(key=lambda one: -one[0]["world_size"])
    group_of = groups_named(study_runs.study, table)
    findings = [Sentence(_winner(study_runs.study, row, group_of(row), metric), "winners", own) for row, own in won]
    return _at_most(findings, "winners") + (
        [Sentence(f"In {none} of {counted(len(table), 'group')} no run may win.", "winners")] if none else []
    )


def _winner(study: Study, row: Row, group: str, metric: str) -> str:
    """Return e.g. `ring, 2 ranks: batch size 64, learning rate 0.5 wins: loss area 0.24 loss x s; ...`."""
    by = decisive(study.rules)
    error = row[ERRORS[by]]
    words, _, unit = heading(by).partition(" (")
    score = f"{metric} {row[by]:.3g}" if by == "test_metric" else f"{words} {row[by]:.3g} {unit.removesuffix(')')}"
    parts = [score + ("" if pd.isna(error) else f" (standard error {error:.2g})")]
    if by != "test_metric" and pd.notna(row.get("test_metric")):
        parts.append(f"{metric} {row['test_metric']:.3g}")
    if pd.notna(row["margin_percent"]):
        margin = row["margin_percent"]
        parts.append(f"{f'{margin:.0f}' if margin >= 10 else f'{margin:.2g}'} % ahead of {row['second']}")
    alike = row["cannot_be_told_from_count"]
    if row["eligible_points"] > 1:
        parts.append(f"not told apart from {counted(alike, 'other')}" if alike else "told apart from all others")
    elif row["points"] > 1:
        parts.append("no other point may win")
    return f"{group}: {point(study, row)} wins: {'; '.join(parts)}."


def _of_claims(tables: Mapping[str, pd.DataFrame]) -> list[Sentence]:
    """Return the verdicts, those of each kind of claim counted apart."""
    if "claims" not in tables or not len(tables["claims"]):
        return []
    counts = summary(zip(tables["claims"]["kind"], tables["claims"]["verdict"], strict=True))
    return [Sentence(f"{counts[:1].upper()}{counts[1:]}.", "claims")]


def how_sure(study_runs: StudyRuns, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return how sure that is: how winners were judged, from what intervals are, and what was left out of them."""
    return [*_judged(tables), *_intervals(tables), *_alone(study_runs), *_left_out(study_runs.runs)]


def _judged(tables: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    won = tables["winners"] if "winners" in tables else pd.DataFrame({"winner_runs": []})
    won = won[won["winner_runs"].notna()]
    if not len(won):
        return
    found, alone = won[won["eligible_points"] > 1], int((won["eligible_points"] <= 1).sum())
    if alone:
        groups = counted(len(won), "group")
        yield f"In {alone} of {groups} no other point may win: nothing tells how good the winner is."
    if not len(found):
        return
    groups = counted(len(found), "group")
    by = Counter(
        ", ".join(part for part in text.split(", ") if "of freedom" not in part) for text in found["judged_by"]
    )
    yield f"Winners are judged by {'; '.join(f'{text} ({n} of {groups})' for text, n in by.most_common(2))}."
    apart = int((found["cannot_be_told_from_count"] == 0).sum())
    doubts = int(found["doubt"].notna().sum()) if "doubt" in found else 0
    luck = f"; in {doubts} luck, lack of budget or other processors may have decided" if doubts else ""
    yield f"In {apart} of {groups} the winner is told apart from all others{luck}."


def _intervals(tables: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Yield from what the intervals of the speedups are that count."""
    if "scaling" not in tables:
        return
    table = tables["scaling"]
    counts = ~table["oversubscribed"].fillna(False).astype(bool)
    told = table[(table["world_size"] > 1) & table["speedup"].notna() & counts]
    if not len(told):
        return
    by = Counter(_basis(basis) for basis in told["interval_from"])
    said = ", ".join(f"{count} {words}" for words, count in by.most_common())
    yield f"{'Interval' if len(told) == 1 else 'Intervals'} of {counted(len(told), 'speedup')}: {said}."


def _basis(basis: Any) -> str:
    if pd.isna(basis):
        return "unknown"
    if WITHIN_ONE in basis:
        return "within one run, a lower bound"
    return "from one run and others that do equal work" if basis.startswith("1 run") else "over several runs"


def _alone(study_runs: StudyRuns) -> Iterator[str]:
    if len({planned.spec.seed for planned in study_runs.planned}) == 1:
        yield "Each point ran once: how the loss differs between seeds is not known."


def _left_out(runs: pd.DataFrame) -> Iterator[str]:
    if many := int(runs["oversubscribed"].fillna(False).astype(bool).sum()):
        yield f"{many} of {counted(len(runs), 'run')} had more threads than cores: no sentence here is from such runs."
    if disturbed := sum(_disturbed(runs)):
        of_all = f"{disturbed} of {counted(len(runs), 'run')}"
        yield f"Something else used the cores in {of_all}: times of such runs are not reliable."
