"""What was given, as versions: the runs of one study that one state of the code has trained, in the order of time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_hpc.analysis.compare.result_sets import ResultSet
from ddp_hpc.analysis.report.provenance import of_runs
from ddp_hpc.config.grid import Expansion
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import opened, planned
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import StudyRuns

Training = dict[str, Any]  # what tells a run apart: its name, spec, end, time, commit

COMMIT_LETTERS = 8
PLACES = ("", "results")  # where the folder `runs` may lie below a given folder
EXPECTED = "expected: packs, as `ddp-hpc publish` makes them, studies, or folders of results"
OF_MACHINE = ("hosts", "processors", "GPUs", "machine.", "software.", "gradient_path")  # what may change times, too


@dataclass(frozen=True)
class Version:
    """Runs that one state of the code has trained."""

    name: str
    commit: str | None
    dirty: bool
    began: str  # when the first and the last of its runs ended, as ISO 8601
    ended: str
    study_runs: StudyRuns  # of the study, only these runs
    facts: Mapping[str, str]  # machine and software, by name

    @property
    def results(self) -> ResultSet:
        """Its runs, to be compared."""
        return ResultSet(self.name, self.study_runs.runs, self.study_runs.store.runs)

    def changed_since(self, before: "Version") -> list[str]:
        """Return what of machine and software is another than before: what may have changed times, beside the code."""
        both = self.facts.keys() & before.facts.keys()
        return [
            f"{name}: {before.facts[name]}, now {self.facts[name]}"
            for name in sorted(both)
            if before.facts[name] != self.facts[name]
        ]


@dataclass(frozen=True)
class _Source:
    """Runs that were given, and the study that asks for them."""

    given: str
    expansion: Expansion
    store: Store

    def trainings(self) -> Iterator[Training]:
        """Yield what tells the finished runs that the study asks for apart."""
        finished = {run.path.name: run for run in self.store.finished_runs()}
        asked = {one.spec.hash for one in planned(self.expansion, list(finished))}
        for run in finished.values():
            row = records.read_run(run.record(), ["run", "spec_hash", "ended_at", "train_s"]).to_pylist()[0]
            if row["spec_hash"] in asked:
                source = records.read_metadata(run.record()).get("provenance", {}).get("source") or {}
                yield row | {"commit": source.get("commit"), "dirty": bool(source.get("dirty"))}


@contextmanager
def versions(given: Sequence[str]) -> Iterator[list[Version]]:
    """Give the versions in what was given, the oldest first; packs are unpacked for as long.

    A version is the runs of one commit and one pack, study or folder. Where a commit has trained a spec twice, by code
    with changes that were not committed, or where no commit is known, the second one begins the next version. A run
    that several packs hold is of the first of them.
    """
    with ExitStack() as stack:
        parts = _parts(_sources(given, stack))
        if not parts:
            raise ValueError(f"{', '.join(given)}: no finished run of the study in it; {EXPECTED}")
        labels = [_label(source, rows) for source, rows in parts]
        numbered = [
            f"{label} #{labels[: place + 1].count(label)}" if labels.count(label) > 1 else label
            for place, label in enumerate(labels)
        ]
        yield [_version(name, *part) for name, part in zip(numbered, parts, strict=True)]


def _parts(sources: Sequence[_Source]) -> list[tuple[_Source, list[Training]]]:
    """Return the runs of each version, those of the oldest first, each with where they lie."""
    parts: list[tuple[_Source, list[Training]]] = []
    seen: set[tuple[Any, ...]] = set()
    for source in sources:
        of_commits: dict[tuple[str | None, bool], list[Training]] = {}
        for row in sorted(source.trainings(), key=lambda row: (str(row["ended_at"]), row["run"])):
            same = (row["run"], row["ended_at"], row["train_s"])
            if same not in seen:
                of_commits.setdefault((row["commit"], row["dirty"]), []).append(row)
            seen.add(same)
        parts += [(source, part) for rows in of_commits.values() for part in _split(rows)]
    return sorted(parts, key=lambda one: str(one[1][0]["ended_at"]))


def _sources(given: Sequence[str], stack: ExitStack) -> list[_Source]:
    """Return what was given; a folder of results is of the study of the others."""
    found = {one: source for one in given if (source := _with_study(one, stack))}
    first = next(iter(found.values()), None)
    for one in given:
        if one in found:
            continue
        if not Path(one).is_dir():
            raise ValueError(f"{one}: no such pack, study or folder; {EXPECTED}")
        if first is None:
            raise ValueError(
                f"{one}: a folder of results does not say of which study it is; give a study or a pack, too"
            )
        place = next((Path(one) / place for place in PLACES if (Path(one) / place / "runs").is_dir()), None)
        if place is None:
            raise ValueError(f"{one}: has no folder `runs` or `results/runs`; {EXPECTED}")
        found[one] = _Source(one, first.expansion, Store(place))
    studies = {source.expansion.study.name for source in found.values()}
    if len(studies) > 1:
        raise ValueError(f"given the studies {', '.join(sorted(studies))}; expected: results of one study")
    return [found[one] for one in given]


def _with_study(given: str, stack: ExitStack) -> _Source | None:
    """Return a pack or a study; None for what is neither."""
    path = Path(given)
    if (path.is_file() and path.suffix == ".zip") or (path / names.STUDY).is_file():
        pack = stack.enter_context(opened(path))
        return _Source(given, pack.expansion, Store(pack.root))
    if path.suffix != ".yaml" and (path.exists() or "/" in given):
        return None
    project = Project.here()
    return _Source(given, project.expansion(given), project.store)


def _split(rows: list[Training]) -> list[list[Training]]:
    """Return runs in the order of time, cut where a spec comes again."""
    parts: list[list[Training]] = [[]]
    for row in rows:
        if any(row["spec_hash"] == other["spec_hash"] for other in parts[-1]):
            parts.append([])
        parts[-1].append(row)
    return parts


def _label(source: _Source, rows: list[Training]) -> str:
    commit, dirty = rows[0]["commit"], rows[0]["dirty"]
    return f"{commit[:COMMIT_LETTERS]}{'+' * dirty}" if commit else Path(source.given).stem


def _version(name: str, source: _Source, rows: list[Training]) -> Version:
    runs = [row["run"] for row in rows]
    study_runs = StudyRuns(source.expansion.study, source.store, tuple(planned(source.expansion, runs)))
    told = of_runs(study_runs)
    facts = {**told.differing, **told.common}
    return Version(
        name,
        rows[0]["commit"],
        rows[0]["dirty"],
        str(rows[0]["ended_at"] or ""),
        str(rows[-1]["ended_at"] or ""),
        study_runs,
        {
            fact: "; ".join(sorted(text for text, _ in values))
            for fact, values in facts.items()
            if fact.startswith(OF_MACHINE)
        },
    )
