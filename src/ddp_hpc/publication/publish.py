"""`ddp-hpc publish STUDY`: refuses what cannot be published, with what to do; else makes the pack."""

import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.config.publication import Publication
from ddp_hpc.publication import anew, derived, evidence
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack, PackError, folder_name, opened, own_code_of, sums, write_zip
from ddp_hpc.publication.private import Private
from ddp_hpc.runs import identity
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.statuses import FAILED, in_words
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

FOLDERS = (f"{names.RUNS}/", f"{names.CODE}/", f"{names.PROJECT}/")
EVIDENCE = (*FOLDERS, names.LOCK, names.STUDY, names.MACHINE, names.PUBLICATION)


@dataclass(frozen=True)
class PackOptions:
    """How a study is to be published."""

    to: Path | None = None  # a folder, or a file .zip; None: results/packs/STUDY-DATE
    runs: str = "all"  # whose records the pack holds: all, winners, none
    steps: str = "all"  # what of their steps: all, losses (of the first rank alone, and when each step ended)
    check: bool = False  # only say what stands against it
    redact: bool = False  # put other words in place of what looks private
    allow_private: bool = False  # publish what looks private as it is
    machine: str | None = None  # the machine of config/machines to be told of


def publish(project: Project, study: str, asked: PackOptions) -> int:
    """Make the pack of a study and say where it is; return 1, and say why and what to do, if it cannot be published."""
    study_runs = project.study_runs(study)
    said = project.publication(study_runs.study)
    if asked.to:
        _check_place(asked.to)
    problems = list(refusals(project, study_runs, said))
    if problems:
        return _refused(study, problems)
    packs = project.root / "results" / "packs"
    packs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=packs) as folder:
        root = Path(folder) / "pack"
        machine = project.root / "config" / "machines" / f"{asked.machine}.yaml" if asked.machine else None
        if machine:
            project.machine(str(asked.machine))  # it is there, and can be read
        evidence.copy(study_runs, project.study_file(study), machine, said, root)
        if problems := _private(root, asked):
            return _refused(study, problems)
        if asked.steps == "losses" and (lacking := _keep_losses(root)):
            return _refused(study, [_needs_all_steps(lacking)])
        if asked.check:
            print(f"{study} can be published")
            return 0
        with own_code_of(root):  # what is not in the pack is missed here, not by its readers
            pack = _made(root, asked.runs)
            print(_put(pack, asked.to or packs / folder_name(pack)))
    return 0


def publish_anew(given: Path) -> int:
    """Make all of a pack that is made from its records anew, by the code of now, in its place."""
    with opened(given) as old, tempfile.TemporaryDirectory(prefix=".making-", dir=given.parent) as folder:
        if not old.whole:
            raise PackError(
                f"{given}: holds the records of {len(old.runs)} runs, expected: all, to make anything of them"
            )
        root = Path(folder) / "pack"
        for name in old.files:
            if name.startswith(EVIDENCE):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(old.root / name, root / name)
        with own_code_of(root):
            print(_put(_made(root, "all"), given))
    return 0


def refusals(project: Project, study_runs: StudyRuns, said: Publication) -> Iterator[str]:
    """Yield what keeps a study from being published, and what to do."""
    name = study_runs.study.name
    for key in said.lacking:
        example = {"creators": "[{name: 'Family, Given'}]", "licence": "CC-BY-4.0"}[key]
        where = f"`publication: {{{key}: {example}}}` in the study, or `{key}: {example}` in config/publication.yaml"
        yield f"no {key}: write {where}"
    states = {planned.run: state_of(study_runs.store, planned.run) for planned in study_runs.lacking}
    missing = {run: state.status for run, state in states.items() if state.status not in FAILED}
    if missing:
        kinds = ", ".join(f"{number} {in_words(status)}" for status, number in Counter(missing.values()).items())
        others = _of_other_code(study_runs, set(missing))
        told = (
            f"; {others} of them are there, trained by other code: publish from a checkout of that code"
            if others
            else ""
        )
        all_runs = counted(len(study_runs.planned), "run")
        yield f"{len(missing)} of {all_runs} missing: {kinds}; `ddp-hpc run {name}` trains them{told}"


def _of_other_code(study_runs: StudyRuns, missing: set[str]) -> int:
    """Return how many of these runs have ended with other code than that of now."""
    specs = {identity.parts(run)[1] for run in missing}
    there = {folder.path.name for folder in study_runs.store.finished_runs() if folder.path.name.count("-") > 1}
    return len(specs & {identity.parts(run)[1] for run in there})


def _refused(study: str, problems: list[str]) -> int:
    print(f"ddp-hpc: {study} cannot be published:", file=sys.stderr)
    print(*(f"- {problem}" for problem in problems), sep="\n", file=sys.stderr)
    return 1


def _private(root: Path, asked: PackOptions) -> list[str]:
    """Redact, if that is asked for; return what keeps the evidence from leaving: what looks private without consent."""
    found = Private()
    fixed = evidence.private_in(root, found)
    if asked.redact:
        evidence.redact(root, found)
        found = Private()
        evidence.private_in(root, found)  # what is left
    if not found.places or asked.allow_private:
        return []
    what = "`--allow-private` publishes it as it is"
    if not asked.redact:
        what = f"`--redact` puts other words in its place, {what}"
    if fixed:
        what += "; study.yaml, code/ and project/ decide the hashes of runs, so nothing in them is replaced"
    return [*(f"this looks private: {line}" for line in found.lines()), what]


def _made(root: Path, runs: str) -> Pack:
    """Make all else of a pack of its evidence."""
    for folder in Store(root).runs.iterdir():
        evidence.seal(Store(root).run(folder.name))
    pack = Pack(root)
    _draw(pack)
    (root / names.FACTS).write_text(derived.facts(pack), encoding="utf-8")
    (root / names.MADE_BY).write_text(derived.in_json(anew.made_by(pack)), encoding="utf-8")
    kept = _kept(pack, runs)
    for run in pack.runs:
        if run not in kept:
            shutil.rmtree(root / names.RUNS / run)
    for name, text in derived.descriptions(Pack(root)).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    pack = Pack(root)
    (root / names.SUMS).write_text(sums(pack), encoding="utf-8")
    return pack


def _keep_losses(root: Path) -> list[str]:
    """Keep of the steps in a pack their losses alone; return the tables that are others then, but for slow ranks."""

    def cells(file: Path) -> pd.DataFrame:
        return pd.read_parquet(file).drop(columns="slow_ranks", errors="ignore")

    with tempfile.TemporaryDirectory(dir=root.parent) as folder, own_code_of(root):
        before, after = Path(folder) / "before", Path(folder) / "after"
        derived.make_tables(Pack(root), before)
        evidence.keep_losses(root)
        derived.make_tables(Pack(root), after)
        files = sorted((before / names.TABLES).glob("*.parquet"))
        return [file.stem for file in files if not cells(file).equals(cells(after / names.TABLES / file.name))]


def _needs_all_steps(tables: list[str]) -> str:
    which = ", ".join(tables)
    return f"--steps losses: tables that need more than the losses of steps: {which}; `--steps all` publishes them"


def _draw(pack: Pack) -> None:
    """Make tables, figures and page; a PackError if code of the project needs more than the pack holds."""
    try:
        derived.make_tables(pack, pack.root)
        derived.make_figures(pack, pack.root)
    except Exception as error:
        own = sorted(name.removeprefix(identity.OWN) for name in pack.own_outputs)
        if not own:
            raise
        why = f"{type(error).__name__}: {error}".replace(f"{pack.root}/{names.PROJECT}/", "")
        raise PackError(
            f"{', '.join(own)}: cannot make tables and figures from what a pack holds: {why}; "
            "expected: they read no files of the project but those beside them, by their name"
        ) from error


def _kept(pack: Pack, runs: str) -> set[str]:
    """Return the runs whose records stay in a pack."""
    if runs == "all":
        return set(pack.runs)
    won = rows_of(pack.tables.get("winners", pd.DataFrame())) if runs == "winners" else []
    return {run for row in won for run in str(row["winner_runs"] or "").split()}


def _check_place(to: Path) -> None:
    """Raise a PackError if something stands in the place of a pack that is none."""
    if not to.exists() or (to.is_dir() and not _zipped(to) and not any(to.iterdir())):
        return
    try:
        with zipfile.ZipFile(to) as archive:
            inside = [Path(name).name for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile):
        inside = [] if _zipped(to) or not to.is_dir() else [file.name for file in to.iterdir()]
    if names.SUMS not in inside or to.is_file() != _zipped(to):
        raise PackError(f"{to} is there and is no pack; expected: a new folder or file .zip, or an earlier pack")


def _zipped(to: Path) -> bool:
    return to.suffix.lower() == ".zip"


def _put(pack: Pack, to: Path) -> Path:
    """Put a pack in its place, of an earlier one too."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if _zipped(to):
        write_zip(pack, pack.root.parent / "pack.zip")
        shutil.move(pack.root.parent / "pack.zip", to)
        return to
    place = to.resolve()  # of a link what it leads to
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(pack.root, place)
    return to
