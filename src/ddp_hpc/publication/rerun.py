"""`ddp-hpc rerun PACK`: trains runs of a pack again, in a new folder, and says whether their results are reproduced.

Results are reproduced if each run ends as it did and has the losses that it had: bit for bit, where the same code,
versions and a deterministic exchange promise it, else without a significant difference. Times are those of a machine:
they are compared, and decide nothing.
"""

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.compare import result_sets
from ddp_hpc.analysis.compare.significance import ALIKE, BETTER, OPEN, QUALITIES, SMALL, WORSE, Finding, judge
from ddp_hpc.config import catalog
from ddp_hpc.data._download import fetch
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack, PackError, opened
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.system.process import path_with_own_scripts
from ddp_hpc.system.terminal import counted
from ddp_hpc.workflow import plan

REPRODUCED, DIFFERS, NOT_TOLD = "reproduced", "differs", "cannot be told"
CODES = {REPRODUCED: 0, DIFFERS: 1, NOT_TOLD: 2}
TOLERANCE, CHANGE = 0.01, 0.05  # as `compare` has them by default


@dataclass
class Verdict:
    """What came out for results, and why."""

    word: str = REPRODUCED
    lines: list[str] = field(default_factory=list)
    untrained: int = 0

    def note(self, word: str, line: str) -> None:
        """Note what came out for a run: what differs outweighs what cannot be told."""
        self.lines.append(f"{word}: {line}")
        self.word = max(self.word, word, key=[REPRODUCED, NOT_TOLD, DIFFERS].index)


def rerun(given: Path, to: Path, points: str, launcher: str) -> int:
    """Train runs of a pack again below the folder `to`, those that are missing there, and return the exit code.

    `points`: all, or winners. `launcher` starts the ranks; `-n` is added.
    """
    os.environ["PATH"] = path_with_own_scripts()  # an MPI that came with us is found
    with opened(given) as pack:
        _copy_own(pack, to)
        pairs = [(old, Planned(identity.run_id(old.spec), old.spec)) for old in _chosen(pack, points)]
        study_runs = StudyRuns(pack.study, Store(to / "results"), tuple(new for _, new in pairs))
        for name in sorted({new.spec.dataset.name for _, new in pairs if new.spec.dataset}):
            if "URL" in catalog.constants("dataset", name):
                fetch(name, to / "results" / "data", None)
        plan.prepare(study_runs)
        for planned in study_runs.lacking:
            words = [*shlex.split(launcher), "-n", str(planned.spec.world_size)] if planned.spec.world_size > 1 else []
            ended = supervise(study_runs.store.run(planned.run).path, words, to / "results" / "data")
            print(f"{planned.run}: {ended.status}{f': {ended.reason}' if ended.reason else ''}", flush=True)
        found = _judged(pack, study_runs.store, pairs)
        times = list(_times(pack, study_runs.store, pairs))
    print(*found.lines, *times, sep="\n")
    print(f"{counted(len(pairs) - found.untrained, 'run')} trained again: results {found.word}")
    return CODES[found.word]


def _copy_own(pack: Pack, to: Path) -> None:
    """Put what the pack brings of its project where ranks look for it; a PackError if something else stands there."""
    own = pack.root / names.PROJECT
    for file in sorted(file for file in own.rglob("*") if file.is_file()):
        place = to / file.relative_to(own)
        if place.exists() and place.read_bytes() != file.read_bytes():
            raise PackError(f"{place} is there and is not that of the pack; expected: `--to` another folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def _chosen(pack: Pack, points: str) -> list[Planned]:
    """Return the runs to train again, of those that have records in the pack."""
    won = {
        run for row in rows_of(pack.tables.get("winners", pd.DataFrame())) for run in str(row["winner_runs"]).split()
    }
    there = [one for one in pack.study_runs.planned if pack.study_runs.store.finished(one.run)]
    chosen = [one for one in there if points == "all" or one.run in won]
    if not chosen:
        what = "no run has won" if there else "it has no records"
        raise PackError(f"no run to train again: {what}; expected: a pack with records, `--points all`")
    return chosen


def _judged(pack: Pack, store: Store, pairs: Sequence[tuple[Planned, Planned]]) -> Verdict:
    """Compare how runs ended and their losses: by bits, else by what `compare` finds."""
    found, others = Verdict(), set[str]()
    for old, new in pairs:
        row = records.read_run(pack.study_runs.store.file(old.run), ["status"]).to_pylist()[0]
        if not store.finished(new.run):
            found.note(NOT_TOLD, f"{old.run}: it was {row['status']}, now it has no result")
            continue
        status = records.read_run(store.file(new.run), ["status"]).to_pylist()[0]["status"]
        if _is_itself(pack.study_runs.store, old, store, new):
            what = "its record is that of the pack, times too; expected: `--to` a folder without it"
            found.note(NOT_TOLD, f"{old.run}: not trained again: {what}")
            found.untrained += 1
        elif status != row["status"]:
            found.note(DIFFERS, f"{old.run}: it was {row['status']}, now it is {status}")
        elif _same_losses(pack.study_runs.store, old, store, new):
            found.note(REPRODUCED, f"{old.run}: {status}, each loss the same bit for bit")
        elif promised := _promised(pack, store, old, new):
            found.note(DIFFERS, f"{old.run}: other losses, though {promised}")
        else:
            others.add(old.run)
    if others:
        _note_significance(found, pack, store, [pair for pair in pairs if pair[0].run in others])
    return found


def _same_losses(store: Store, old: Planned, other: Store, new: Planned) -> bool:
    """Return whether two runs have the same losses, to the bit."""
    return _same("loss", store, old, other, new)


def _is_itself(store: Store, old: Planned, other: Store, new: Planned) -> bool:
    """Return whether two records are of one training: no other takes the same time for each step, to the bit."""
    return _same("t_s", store, old, other, new)


def _same(column: str, store: Store, old: Planned, other: Store, new: Planned) -> bool:
    """Return whether two runs have the same in a column of their steps, to the bit, and any step at all."""
    found = []
    for place, planned in ((store, old), (other, new)):
        frame = records.read("steps", place.file(planned.run, "steps"), ["step", "rank", column, "warm_up"]).to_pandas()
        mine = frame[(frame["rank"] == 0) & ~frame["warm_up"].astype(bool)].sort_values("step")
        found.append(mine[column].to_numpy(np.float64))
    return np.array_equal(found[0], found[1], equal_nan=column == "loss") and len(found[0]) > 0


def _promised(pack: Pack, store: Store, old: Planned, new: Planned) -> str:
    """Return why the losses should be the same, to the bit; empty if nothing promises that."""
    versions = []
    for place, planned in ((pack.study_runs.store, old), (store, new)):
        about = records.read_metadata(place.file(planned.run)).get("provenance", {})
        ranks, machine, software = about.get("ranks") or [{}], about.get("machine", {}), about.get("software", {})
        # by all of these kernels are chosen; many virtual machines give several kinds of processors one name
        processor = [ranks[0].get("cpu"), machine.get("cpu_model"), machine.get("vectors")]
        versions.append([software.get("torch"), software.get("numpy"), *processor])
    deterministic = catalog.constants("exchange", new.spec.exchange.name)["DETERMINISTIC"]
    same = identity.parts(old.run)[2] == identity.parts(new.run)[2] and versions[0] == versions[1]
    return "code, versions and processor are the same" if deterministic and same and None not in versions[0] else ""


def _findings(pack: Pack, store: Store, pairs: Sequence[tuple[Planned, Planned]]) -> Iterator[Finding]:
    """Yield what `compare` finds of these runs."""
    runs = [store.file(new.run) for _, new in pairs if store.finished(new.run)]
    if runs:
        table, _ = records.read_runs(runs)
        again = result_sets.ResultSet("again", table.to_pandas(), store.runs)
        yield from judge(result_sets.read(str(pack.root / names.RUNS)), again, TOLERANCE, CHANGE).findings


def _note_significance(found: Verdict, pack: Pack, store: Store, pairs: Sequence[tuple[Planned, Planned]]) -> None:
    for finding in _findings(pack, store, pairs):
        if finding.metric in QUALITIES:
            word = {ALIKE: REPRODUCED, SMALL: REPRODUCED, OPEN: NOT_TOLD}.get(finding.verdict, DIFFERS)
            change = "" if finding.change_percent is None else f", {finding.change_percent:+.2f} %"
            found.note(word, f"{finding.point}: {finding.metric} {finding.verdict}{change}; {finding.reason or ''}")


def _times(pack: Pack, store: Store, pairs: Sequence[tuple[Planned, Planned]]) -> Iterator[str]:
    """Yield what became of the time of a step, in one line."""
    findings = [one for one in _findings(pack, store, pairs) if one.metric == "step_s"]
    words = {ALIKE: REPRODUCED, SMALL: REPRODUCED, OPEN: NOT_TOLD, WORSE: "longer", BETTER: "shorter"}
    counts = {word: sum(words[one.verdict] == word for one in findings) for word in dict.fromkeys(words.values())}
    said = ", ".join(f"{word} at {counted(number, 'point')}" for word, number in counts.items() if number)
    why = next((f": {one.reason}" for one in findings if one.verdict == OPEN and one.reason), "")
    yield f"times of steps, which are of a machine: {said or NOT_TOLD}{why}"
