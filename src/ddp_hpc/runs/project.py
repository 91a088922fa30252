"""Where things lie: the folder that holds config/, workflow/ and results/."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddp_hpc.config import catalog, settings
from ddp_hpc.config.catalog import PACKAGE, did_you_mean
from ddp_hpc.config.grid import Expansion, expand
from ddp_hpc.config.machine import Machine, MachineError
from ddp_hpc.config.machine import read as read_machine
from ddp_hpc.config.publication import Publication
from ddp_hpc.config.publication import read as read_publication
from ddp_hpc.config.study import Study, StudyError
from ddp_hpc.runs import identity
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.system.files import share_like


@dataclass(frozen=True)
class Project:
    """What `ddp-hpc init` makes, or a clone: its studies, its configuration, its own code, its results."""

    root: Path

    @classmethod
    def here(cls, start: Path | None = None) -> "Project":
        """Return the project that holds the folder `start` (the current one), or raise a StudyError."""
        start = (start or Path.cwd()).resolve()
        for folder in (start, *start.parents):
            if (folder / "config" / "studies").is_dir() and (folder / "workflow" / "Snakefile").is_file():
                catalog.use_project(folder)
                _warn_of_another_package(folder / "src" / PACKAGE.name)
                share_like(folder / "results")
                return cls(folder)
        raise StudyError(
            f"{start} is in no ddp-hpc project: none of its parents has config/studies and workflow/Snakefile; "
            "`ddp-hpc init FOLDER` makes one"
        )

    @property
    def store(self) -> Store:
        """The runs of all studies."""
        return Store(self.root / "results")

    @property
    def data_folder(self) -> Path:
        """Fetched datasets, one folder each."""
        return self.root / "results" / "data"

    @property
    def studies(self) -> list[str]:
        """The names of all studies, sorted; hidden files, as editors and macOS leave, are none."""
        return _names(self.root / "config" / "studies")

    def profile(self, profile: str) -> settings.Profile:
        """Return a workflow profile, a folder relative to the project or an absolute one; raise a StudyError."""
        files = [file for file in (self.root / profile).glob("*.yaml") if file.name.startswith(("profile.", "config."))]
        if not files:
            known = sorted(f"profiles/{file.parent.name}" for file in self.root.glob("profiles/*/profile.yaml"))
            hint = did_you_mean(profile, known) or did_you_mean(f"profiles/{profile}", known)
            raise StudyError(
                f"{self.root / profile} has no profile.yaml{hint}; expected: a folder with one, as {', '.join(known)}"
            )
        return settings.read_profile(files[0])

    def machine(self, name: str) -> Machine:
        """Return the machine of the file NAME.yaml in config/machines, or raise a MachineError."""
        file, hint = self.root / "config" / "machines" / f"{name}.yaml", "; `ddp-hpc doctor --machine` proposes one"
        return read_machine(_existing(file, "machine", MachineError, hint))

    def machine_of(self, profile: str) -> Machine | None:
        """Return the machine that a profile names; None if it names none."""
        name = self.profile(profile).config.machine
        return self.machine(name) if name else None

    def study_file(self, name: str) -> Path:
        """Return the file of a study of this project, given its name or its path; a StudyError says which there are."""
        folder = self.root / "config" / "studies"
        if "/" not in name and not name.endswith(".yaml"):
            return _existing(folder / f"{name}.yaml", "study", StudyError)
        file = folder / Path(name).name
        named = next((one for one in (Path(name), self.root / name, folder / name) if one.is_file()), None)
        if named is None or not file.is_file() or not named.samefile(file):
            what = "is not in" if named else "is no file; studies are in"
            raise StudyError(f"{name} {what} {folder}; expected, by name: {', '.join(self.studies) or 'none'}")
        return file

    @property
    def publication_file(self) -> Path:
        """What all studies without a `publication` of their own say of their results."""
        return self.root / "config" / "publication.yaml"

    def publication(self, study: Study) -> Publication:
        """Return what a study says of its results when they are published, else what all studies say."""
        if study.publication:
            return study.publication
        return read_publication(self.publication_file) if self.publication_file.is_file() else Publication()

    def study_folder(self, name: str) -> Path:
        """Return the folder of a study's tables, figures and page."""
        return self.root / "results" / "studies" / name

    def expansion(self, name: str) -> Expansion:
        """Return the specs of a study."""
        return expand(self.study_file(name))

    def study_runs(self, name: str) -> StudyRuns:
        """Return the planned runs of a study."""
        expansion = self.expansion(name)
        planned = (Planned(identity.run_id(spec), spec) for spec in expansion.specs)
        return StudyRuns(expansion.study, self.store, (*planned, *self._further(expansion)), expansion.notes)

    def _further(self, expansion: Expansion) -> Iterator[Planned]:
        """Yield the repeats after the first ones that have been planned: their folders are there."""
        looks, seed = expansion.study.looks, min(spec.seed for spec in expansion.specs)
        for first in expansion.specs:
            for number in range(looks[0], looks[-1]) if first.seed == seed else ():
                spec = first.repeat(number)
                run = identity.run_id(spec)
                if not self.store.run(run).path.is_dir():
                    break
                yield Planned(run, spec)

    def read_config(self) -> settings.ConfigFile:
        """Return what config/config.yaml says."""
        return settings.read_config(self.root / "config" / "config.yaml")


def _names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("[!.]*.yaml"))


def _existing(file: Path, what: str, error: type[StudyError], hint: str = "") -> Path:
    """Return the file of a study or a machine, if there is one of this name."""
    if not file.is_file():
        if os.path.lexists(file):
            raise error(f"{file} is a folder, a link that leads nowhere or the like; expected: a file")
        known = _names(file.parent)
        expected = f"{did_you_mean(file.stem, known)}; expected: {', '.join(known) or 'none'}"
        raise error(f"no {what} {file.stem!r} in {file.parent}{expected}{hint}")
    return file


def _warn_of_another_package(source: Path) -> None:
    """Say so if what is imported is not the source in this project: edits there would have no effect."""
    if source.is_dir() and source.resolve() != PACKAGE.resolve():
        print(
            f"ddp-hpc: warning: this project has its own {source}, but what runs is {PACKAGE}; "
            "edits in the project have no effect: install it with `pip install -e .` in its own environment",
            file=sys.stderr,
        )
