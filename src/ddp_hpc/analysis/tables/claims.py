"""Claims: what a source states, beside our number and its interval, and whether we reproduce it here.

The verdict is `reproduced` where our number and its whole 95 % interval are as expected, `contradicted` where the whole
interval is where the study says that it would contradict the source (by default all that is not expected), and
`undecided` else, also where there is no interval; but a count is what it is. It is `not testable here`, with the
reason, where there is no number or where the study says under `applies_when` that it would mean nothing here. Repeats
are paired by seed. What the source did not measure, the arithmetic of a formula and expectations of our own, is
`confirmed` or `refuted`, and counted apart.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from ddp_hpc.analysis.claim_verdict import KINDS, NOT_TESTABLE, SIGNS, summary, verdict
from ddp_hpc.analysis.columns import (
    CROWDED,
    DISTURBED,
    DRIFTED,
    crowded,
    drift_cost,
    rows_of,
    slow_steps_share,
    standing,
)
from ddp_hpc.analysis.formatting import cell
from ddp_hpc.analysis.tables._claim_quantity import Found, Frames, NotTestable, Row, number_of, of_specs, runs_read
from ddp_hpc.analysis.tables._contenders import contenders
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.config import catalog
from ddp_hpc.config.claims import MEASURED, Cells, Claim, Sizes
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

CAPTION = "Claims: what the sources state, and what these runs say to it."
OF_CLAIMS = True
VARIED = ("world_size", "exchange", "batch_size")  # between a run and its baseline or reference
SHARES = ("slow_steps_share", "others_slow_steps_share")  # of the runs of a row, and of those they are compared with

_COLUMNS = columns(
    "id kind statement source published unit ours ours_low ours_high interval_from runs expected verdict reason"
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per claim of the study, in its order; `ours` is there whether a verdict may be given or not.

    `runs` is how many runs that the claim reads have ended well, of a `count` in any way; of a winner, all that
    compete. A count has no interval of its own, nor have several repeats with the same count: it is what it is.
    """

    @cache
    def frames(name: str) -> pd.DataFrame:
        frame: pd.DataFrame = catalog.load("table", name).build(study_runs)
        return frame

    return typed((_row(claim, frames, study_runs) for claim in study_runs.study.claims), _COLUMNS)


def lines(frame: pd.DataFrame) -> Iterator[str]:
    """Yield a few lines per claim, for a terminal: verdict and statement, the numbers, and why."""
    for row in rows_of(frame):
        unit = f" {row['unit']}" if pd.notna(row["unit"]) else ""
        numbers = {name: cell(row[name]) for name in ("published", "ours", "ours_low", "ours_high")}
        kind = "" if row["kind"] == MEASURED else f" ({KINDS[row['kind']]})"
        ours = f"ours {numbers['ours']}{unit}" if numbers["ours"] else "ours: none"
        interval = f" ({numbers['ours_low']} to {numbers['ours_high']}, {row['interval_from']})"
        published = f"; published {numbers['published']}{unit}" if numbers["published"] else ""
        yield f"{SIGNS[row['verdict']]} {row['verdict']}{kind}: {row['id']}: {row['statement']} [{row['source']}]"
        yield f"    {ours}{interval if numbers['ours_low'] else ''}{published}; expected {row['expected']}"
        if pd.notna(row["reason"]):
            yield f"    {row['reason']}"
    yield summary(zip(frame["kind"], frame["verdict"], strict=True))


def _row(claim: Claim, frames: Frames, study_runs: StudyRuns) -> dict[str, Any]:
    said = claim.model_dump(include={"id", "statement", "source", "published"})
    said |= {"kind": claim.of_kind, "unit": claim.unit or None, "expected": claim.in_words}
    try:
        found = number_of(claim.ours, frames, study_runs)
    except NotTestable as none:
        reasons = [str(none), *_lacking(claim, None, _read_by(claim, frames, study_runs), frames, study_runs)]
        return said | {"verdict": NOT_TESTABLE, "reason": "; ".join(dict.fromkeys(reasons))}
    ours, read = found.interval, _read_by(claim, frames, study_runs)
    ends = {} if ours.counted else {"ours_low": ours.low, "ours_high": ours.high}
    said |= {"ours": ours.middle, **ends, "interval_from": ours.basis}
    if read.cells:  # a count is of all that have ended, however they did
        said["runs"] = len(found.rows) if claim.ours.count else int((standing(read.runs) == "ok").sum())
    lacking = list(dict.fromkeys(_lacking(claim, found, read, frames, study_runs)))
    if lacking:
        return said | {"verdict": NOT_TESTABLE, "reason": "; ".join(lacking)}
    said["verdict"], why = verdict(claim, ours)
    alone = (
        "judged on 1 run: how the next one would differ is not known" if ours.known and said.get("runs") == 1 else ""
    )
    return said | {"reason": "; ".join(filter(None, (why, alone, *found.remarks))) or None}


@dataclass(frozen=True)
class _Read:
    """The planned runs that the cells of a claim read."""

    cells: list[Cells]
    ranked: bool  # whether some are of a winner: all points of its search had a part in it
    by_cells: list[pd.DataFrame]  # the runs of each of them
    runs: pd.DataFrame  # of any of them


def _read_by(claim: Claim, frames: Frames, study_runs: StudyRuns) -> _Read:
    cells = list(claim.ours.cells.values())
    ranked = [one.table for one in cells if one.winner or "winner" in frames(one.table)]
    by_cells = [runs_read(one, study_runs, ranked) for one in cells]
    return _Read(cells, bool(ranked), by_cells, _any_of(by_cells, study_runs))


def _any_of(parts: Iterable[pd.DataFrame], study_runs: StudyRuns) -> pd.DataFrame:
    """Return the planned runs that are in any of the parts, each once."""
    found = {number for part in parts for number in part.index}
    return study_runs.runs[study_runs.runs.index.isin(found)]


def _lacking(
    claim: Claim, found: Found | None, of_claim: _Read, frames: Frames, study_runs: StudyRuns
) -> Iterator[str]:
    """Yield what `applies_when` asks for and is not there; `found` is None where there is no number of ours."""
    rows, ranked, read = found.rows if found else [], of_claim.ranked, of_claim.runs
    ended = study_runs.runs[standing(study_runs.runs) == "ok"]
    for of_one in of_claim.by_cells if rows else ():
        yield from _nothing_ran(of_one)
    if ranked and rows and "complete" not in claim.applies_when:
        yield from _incomplete(read, FINISHED)  # nobody wins against points that have not run
    for condition in claim.applies_when:
        if isinstance(condition, Sizes):
            yield from _of_other_size(condition, read[standing(read) == "ok"])
        elif condition == "complete" and found and rows:
            yield from _incomplete(read, FINISHED if ranked or claim.ours.count else {"ok"})
            said = [] if claim.ours.count else [row["reason"] for row in rows if pd.notna(row.get("reason"))]
            yield from (f"not complete: {reason}" for reason in said)
            yield from (f"not complete: {null}" for null in found.nulls)
        elif condition == "within_cores":
            yield from _crowded([*rows, *rows_of(read)])
        elif condition == "quiet":
            heeded = (
                read[read["run"].isin(contenders(study_runs, frames("winners"), frames("runs")))] if ranked else read
            )
            yield from _disturbed(of_claim.cells, rows, heeded, frames, study_runs)
        elif condition == "gpu":
            devices = set((read if rows else ended)["device_used"].dropna())  # a run that failed had none
            if devices - {"cuda"} or (rows and not devices):
                yield "no GPU: the runs used the CPU"


def _disturbed(
    cells: Sequence[Cells], rows: Sequence[Row], read: pd.DataFrame, frames: Frames, study_runs: StudyRuns
) -> Iterator[str]:
    """Yield what slowed the runs that cells read, or those that they are compared with, first of all."""
    both = pd.concat([read, _references(cells, frames, study_runs)])
    shares = [*slow_steps_share(read), *(row.get(name) for row in rows for name in SHARES)]
    known = [share for share in shares if pd.notna(share)]
    of_runs = frames("runs")
    drifting = of_runs[of_runs["run"].isin(both["run"]) & (drift_cost(of_runs) > DRIFTED)]
    if any(share > DISTURBED for share in known):
        yield "disturbed: more than a third of a training went to steps slower than its median step"
    elif crowded(both).any():
        yield f"disturbed: threads waited for cores that others used, in over {CROWDED:.0%} of a training"
    elif (both["other_trainings"].astype("float64") > 0).any():
        yield "disturbed: other trainings ran on a node of a run"
    elif (both["throttled_by_quota_share"].astype("float64") > CROWDED).any():
        yield f"disturbed: a quota of CPU time was used up in over {CROWDED:.0%} of its periods"
    elif len(drifting):
        yield f"disturbed: the steps of {counted(len(drifting), 'run')} became slower or faster all the time"
    elif rows and not known:
        yield "it is not known whether the machine was quiet: no run has a median step"


def _nothing_ran(read: pd.DataFrame) -> Iterator[str]:
    """Say that no run has ended: a table may have numbers without one, such as counts of what is missing."""
    if not read["status"].isin(FINISHED).any():
        counts = Counter(in_words(str(state)) for state in read["status"])
        yield f"no run has a result: {', '.join(f'{count} {state}' for state, count in counts.items())}"


def _references(cells: Sequence[Cells], frames: Frames, study_runs: StudyRuns) -> pd.DataFrame:
    """Return the runs with which the rows of cells may have been compared: those of other world sizes and exchanges."""
    wider = [of_specs(one, VARIED) for one in cells if SHARES[1] in frames(one.table)]
    return _any_of((runs_read(one, study_runs, ()) for one in wider), study_runs)


def _of_other_size(sizes: Sizes, ended: pd.DataFrame) -> Iterator[str]:
    """Say which size the runs that a claim reads do not have."""
    name, bounds = sizes.asked
    known = {"nodes": ended["hosts"], "ranks": ended["world_size"]}
    found = known.get(name, -(-ended["world_size"] // ended["hosts"]))  # on the fullest node, at least
    largest, words = int(max(found.dropna(), default=0)), name.replace("_", " ")
    if bounds.at_least is not None and largest < bounds.at_least:
        yield f"needs {bounds.at_least} {words}, the largest complete run that it reads has {largest}"
    if bounds.at_most is not None and largest > bounds.at_most:
        yield f"needs at most {bounds.at_most} {words}, a run that it reads has {largest}"


def _incomplete(read: pd.DataFrame, ended: Collection[str]) -> Iterator[str]:
    """Say what is missing of the runs. Of a judgement nothing is, if some diverged: they have lost."""
    short = (read["samples_asked"].notna() & (read["samples_seen"] != read["samples_asked"])).fillna(False)
    states = standing(read).mask((read["status"] == "ok") & short.astype(bool), "incomplete")
    others = Counter(in_words(str(state)) for state in states if state not in ended)
    if others:
        listed = ", ".join(f"{count} {state}" for state, count in others.items())
        yield f"not complete: of {counted(len(read), 'run')} {listed}"


def _crowded(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    crowded = [row for row in rows if row.get("oversubscribed")]
    if crowded:
        ranks = max((int(row["world_size"]) for row in crowded if pd.notna(row.get("world_size"))), default=None)
        cores = next((int(row["cores"]) for row in crowded if pd.notna(row.get("cores"))), None)
        where = f" ({ranks} ranks, {cores} cores)" if ranks and cores else ""
        yield f"oversubscribed: more threads than cores{where}"
