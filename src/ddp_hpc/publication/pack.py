"""What lies in a pack, and where: only here its files are named.

README.md                  the answer, how sure it is, what each file is, how to verify it and to run it again
appendix.tex               the artifact description and evaluation, for a paper
study.yaml, machine.yaml   the study as it ran, and the cluster's description if it is given
publication.yaml           title, creators, licence, as the files below say them in their languages
runs/RUN/                  the records of a run, its spec.json, its seal.json, how its attempts ended
code/                      the files of ddp-hpc that decide results, as they were when the runs were trained
project/                   the files of the project that do, or that make tables and figures, each in its place there
environment/               versions of packages, what the records say of machine and software, what made the tables
tables/ figures/ report/   made from the records
ro-crate-metadata.json     Workflow Run RO-Crate: an action per training
datapackage.json           Frictionless Data Package: columns with types, units, meanings
datacite.json, CITATION.cff, .zenodo.json, LICENSES/
SHA256SUMS                 of all other files; `sha256sum -c SHA256SUMS` reads it
"""

import hashlib
import re
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pandas as pd

from ddp_hpc.config import catalog, publication
from ddp_hpc.config.grid import Expansion, expand
from ddp_hpc.config.publication import Publication
from ddp_hpc.config.study import Study
from ddp_hpc.config.yaml_file import read_mapping
from ddp_hpc.runs import identity
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.workflow.targets import figure_tables

SUMS = "SHA256SUMS"
README, APPENDIX = "README.md", "appendix.tex"
STUDY, MACHINE, PUBLICATION = "study.yaml", "machine.yaml", "publication.yaml"
RUNS, CODE, PROJECT, TABLES, FIGURES, REPORT = "runs", "code", "project", "tables", "figures", "report"
LOCK, FACTS = "environment/requirements.lock", "environment/provenance.json"
MADE_BY = "environment/made_by.json"
CRATE, DATA_PACKAGE, DATACITE = "ro-crate-metadata.json", "datapackage.json", "datacite.json"
CITATION, ZENODO = "CITATION.cff", ".zenodo.json"


class PackError(ValueError):
    """What cannot be read as a pack."""


@dataclass(frozen=True)
class Pack:
    """A pack as a folder."""

    root: Path
    trusted: bool = False  # whether the code of tables and figures that it brings may run

    @cached_property
    def files(self) -> list[str]:
        """All files but the sums, by their paths in the pack, sorted."""
        return sorted(
            file.relative_to(self.root).as_posix()
            for file in self.root.rglob("*")
            if (file.is_file() or file.is_symlink()) and file != self.root / SUMS
        )

    @cached_property
    def expansion(self) -> Expansion:
        """The specs of its study, in their order."""
        name = str(read_mapping(self.root / STUDY, PackError).values.get("name"))
        if not re.fullmatch("[a-z0-9_]{1,64}", name):
            raise PackError(f"{self.root / STUDY}: name: given {name!r}, expected: the name of a study")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.yaml"  # a study is called as its file is
            file.write_bytes((self.root / STUDY).read_bytes())
            return expand(file)

    @property
    def study(self) -> Study:
        """Its study."""
        return self.expansion.study

    @cached_property
    def publication(self) -> Publication:
        """Its title, creators, licence."""
        return publication.read(self.root / PUBLICATION)

    @cached_property
    def runs(self) -> list[str]:
        """The names of the runs that it has, sorted."""
        return sorted(folder.name for folder in (self.root / RUNS).glob("*") if folder.is_dir())

    @cached_property
    def study_runs(self) -> StudyRuns:
        """The planned runs, of which it has records or an end."""
        return StudyRuns(self.study, Store(self.root), tuple(planned(self.expansion, self.runs)))

    @property
    def table_names(self) -> list[str]:
        """Its tables: those of its study, those that its figures read, and that of all runs."""
        read = (table for name in self.study.figure_names for table in figure_tables(name))
        return list(dict.fromkeys([*self.study.table_names, "runs", *read]))

    @property
    def own_outputs(self) -> dict[str, str]:
        """The files of the project that make tables and figures, by their names (`identity.file_of`), and hashes."""
        roots = [catalog.path("table", name) for name in self.table_names]
        roots += [catalog.path("figure", name) for name in self.study.figure_names]
        own = [file for file in roots if not file.is_relative_to(catalog.PACKAGE)]
        return {name: hashed for name, hashed in identity.closure(own).items() if name.startswith(identity.OWN)}

    @property
    def whole(self) -> bool:
        """Whether it has all runs of its table of runs, from which all else can be made again."""
        return set(self.tables["runs"]["run"]) <= set(self.runs)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Its tables by name, sorted."""
        return {file.stem: pd.read_parquet(file) for file in sorted((self.root / TABLES).glob("*.parquet"))}

    @cached_property
    def newest(self) -> datetime:
        """When the newest of its runs ended: its date, whenever it is made."""
        ended = self.tables["runs"]["ended_at"].dropna()
        if ended.empty:
            raise PackError("no record says when its run ended: run the study first")
        return max(map(datetime.fromisoformat, ended))

    @property
    def title(self) -> str:
        """Its title."""
        return self.publication.title or self.study.description or self.study.name


def planned(expansion: Expansion, runs: Collection[str]) -> Iterator[Planned]:
    """Yield those specs of a study, in its order, of which there is a run; they tell each other by their hashes."""
    by_hash = {identity.parts(run)[1]: run for run in runs if run.count("-") > 1}
    first = min(spec.seed for spec in expansion.specs)
    looks = expansion.study.looks
    further = (
        spec.repeat(number) for spec in expansion.specs if spec.seed == first for number in range(looks[0], looks[-1])
    )
    for spec in (*expansion.specs, *further):
        if spec.hash in by_hash:
            yield Planned(by_hash[spec.hash], spec)


def place_of(name: str) -> str:
    """Return where a file lies in a pack on which runs, tables or figures depend, by its name (`identity.file_of`)."""
    return f"{PROJECT}/{name.removeprefix(identity.OWN)}" if name.startswith(identity.OWN) else f"{CODE}/{name}"


def project_of(root: Path) -> Path | None:
    """Return the folder of a pack that is as its project; None if it brings no code of one."""
    own = root.resolve() / PROJECT
    return own if own.is_dir() else None


@contextmanager
def own_code_of(root: Path) -> Iterator[None]:
    """Let the choices that a pack brings be found meanwhile, as those of a project."""
    before = catalog.project(), sys.dont_write_bytecode
    catalog.use_project(project_of(root) or before[0])
    sys.dont_write_bytecode = True  # a pack holds nothing beside what SHA256SUMS names
    try:
        yield
    finally:
        catalog.use_project(before[0])
        sys.dont_write_bytecode = before[1]


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sums(pack: Pack) -> str:
    """Return what `SHA256SUMS` has to say, as sha256sum writes it."""
    return "".join(f"{digest(pack.root / name)}  {name}\n" for name in pack.files)


def read_sums(pack: Pack) -> dict[str, str]:
    """Return the digests that `SHA256SUMS` gives, by file, or raise a PackError."""
    found = {}
    try:
        text = (pack.root / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{pack.root / SUMS} cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        hashed, _, name = line.partition("  ")
        if not re.fullmatch("[0-9a-f]{64}", hashed) or not name:
            raise PackError(
                f"{pack.root / SUMS}:{number}: given {line[:80]!r}, expected: a SHA-256, two blanks, a file"
            )
        found[name] = hashed
    return found


def write_zip(pack: Pack, file: Path) -> None:
    """Write a pack as a zip file, in which it is a folder: sorted, of one date, so its bytes are the same each time."""
    date = pack.newest.timetuple()[:6]
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted([*pack.files, SUMS]):
            entry = zipfile.ZipInfo(f"{folder_name(pack)}/{name}", date)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, (pack.root / name).read_bytes())


def folder_name(pack: Pack) -> str:
    """Return what a pack is called: by its study and its date."""
    return f"{pack.study.name}-{pack.newest:%Y-%m-%d}"


@contextmanager
def opened(given: Path, trusted: bool = False) -> Iterator[Pack]:
    """Give the pack in a folder or a zip file, which is unpacked for as long; raise a PackError if there is none.

    The choices that it brings are those of the project in use; only of a `trusted` one does `verify` run them.
    """
    with unpacked(given) as root, own_code_of(root):
        yield Pack(root, trusted)


@contextmanager
def unpacked(given: Path) -> Iterator[Path]:
    """Give the folder of a pack, of a zip file for as long; raise a PackError if there is none."""
    if given.is_dir():
        if not (given / SUMS).is_file() and not (given / STUDY).is_file():
            raise PackError(f"{given}: holds no {SUMS}; expected: a pack, as `ddp-hpc publish` makes it")
        yield given
        return
    if not given.is_file():
        raise PackError(f"{given}: no such folder or file; expected: a pack, as `ddp-hpc publish` makes it")
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-pack-") as folder:
        try:
            with zipfile.ZipFile(given) as archive:
                archive.extractall(folder)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise PackError(f"{given}: cannot be read as a zip file: {error}") from None
        roots = [file.parent for file in sorted(Path(folder).rglob(SUMS))]
        if not roots:
            raise PackError(f"{given}: holds no {SUMS}; expected: a pack, as `ddp-hpc publish` makes it")
        yield min(roots, key=lambda root: len(root.parts))
