"""Who trains on this machine: a file per training, in a folder that all projects and users of the machine share.

A training waits for those of other projects that came before it and may use one of its cores, so that neither disturbs
the other's times; who waits says for whom. Within a Slurm job nobody waits, for it was given its cores: who trains
beside whom is counted (`beside`). Trainings whose processes cannot be seen, in other containers, are not known.
"""

import fcntl
import os
import pwd
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_hpc.system.files import read_json, write_json
from ddp_hpc.system.process import die_with_parent, lives, ourselves

FOLDER = "DDP_HPC_TRAININGS"  # variable: another folder; trainings that look into different ones do not wait
WAITING, TRAINING = ".waiting", ".training"
POLL_S = 0.5


@dataclass(frozen=True)
class Entry:
    """A training of this machine, or one that waits; its file is named by its turn."""

    file: Path
    told: dict[str, Any]

    @property
    def turn(self) -> int:
        """Who has the smaller number came before."""
        return int(self.file.name.partition("-")[0])

    def hinders(self, other: "Entry") -> bool:
        """Return whether the other one has to wait for this one: of another project, later, on the same cores."""
        mine, theirs = self.told, other.told
        return (
            self.turn < other.turn
            and (mine["project"] != theirs["project"] or bool(mine.get("alone") or theirs.get("alone")))
            and not set(mine["cores"]).isdisjoint(theirs["cores"])
        )

    def __str__(self) -> str:
        told = self.told
        return f"{told['run']} of {told['project']} (pid {told['pid']} of {told['user']}, since {told['since']})"


def folder() -> Path:
    """Return where trainings of this machine are known."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    return Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()) / "ddp-hpc-trainings"


def entries() -> list[Entry]:
    """Return the trainings whose processes live, the first first; files of dead ones are removed."""
    found = []
    for file in folder().glob("[0-9]*-*"):
        told = read_json(file)
        if not {"project", "run", "cores", "pid", "user", "since"} <= told.keys():
            continue
        if alive := lives(told):
            found.append(Entry(file, told))
        elif alive is False:
            with suppress(OSError):  # somebody else's
                file.unlink()
    return sorted(found, key=lambda entry: entry.turn)


def enter(project: Path, run: str, state: str = TRAINING, alone: bool = False) -> Entry | None:
    """Say that this process trains, or waits to, from now on; None: nothing can be said on this machine.

    `alone`: beside trainings of its own project neither.
    """
    told = ourselves() | {
        "project": str(project),
        "run": run,
        "user": _user(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0],
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "alone": alone,
    }
    place = folder()
    try:
        if not place.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o1777)
        descriptor = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # so that who comes later sees all who came before
            file = place / f"{time.monotonic_ns()}-{os.getpid()}{state}"
            write_json(file, told)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return Entry(file, told)


@contextmanager
def held(project: Path, run: str, alone: bool = False) -> Iterator[None]:
    """Train meanwhile: first wait for those of other projects who came before, and say on stderr for whom."""
    in_a_job = "SLURM_JOB_ID" in os.environ
    entry = enter(project, run, TRAINING if in_a_job else WAITING, alone)
    try:
        if entry and not in_a_job:
            entry = _turn_of(entry)
        yield
    finally:
        if entry:
            leave(entry)


@contextmanager
def held_alone(project: Path, what: str) -> Iterator[None]:
    """Measure meanwhile, beside no training but those that are part of it: they look into a folder of their own."""
    with held(project, what, alone=True), tempfile.TemporaryDirectory(prefix="ddp-hpc-trainings-") as own:
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = own
        try:
            yield
        finally:
            os.environ.pop(FOLDER)
            if before is not None:
                os.environ[FOLDER] = before


def leave(entry: Entry) -> None:
    """Say that this process trains no longer."""
    with suppress(OSError):
        entry.file.unlink()


def _turn_of(entry: Entry) -> Entry:
    """Wait until nobody hinders the training, and return it as one that trains."""
    said = None
    while first := holder(entry):
        if said != first.file:
            said = first.file
            print(f"waiting: on this machine trains {first}", file=sys.stderr, flush=True)
            if not entry.told["alone"]:  # of a supervisor that waits: nobody else would end it
                die_with_parent(signal.SIGTERM)
        time.sleep(POLL_S)
    training = entry.file.with_suffix(TRAINING)
    with suppress(OSError):
        os.replace(entry.file, training)
    return Entry(training, entry.told)


def holder(entry: Entry) -> Entry | None:
    """Return for whom a training waits, the first of all; None: for nobody."""
    return next((other for other in entries() if other.hinders(entry)), None)


def waiting(project: Path) -> list[tuple[str, Entry]]:
    """Return the runs of a project that wait on this machine, each with that for which it waits."""
    mine = [entry for entry in entries() if entry.told["project"] == str(project) and entry.file.suffix == WAITING]
    found = [(entry.told["run"], holder(entry)) for entry in mine]
    return [(run, other) for run, other in found if other]


def beside(project: Path, run: str) -> list[Entry]:
    """Return the other trainings of this machine that may disturb the times of a run.

    Those of the same Slurm job, or of the same project outside of jobs, are not among them: who let them train
    together knows of it.
    """
    job = os.environ.get("SLURM_JOB_ID")
    return [
        entry
        for entry in entries()
        if entry.file.suffix == TRAINING
        and (entry.told["project"], entry.told["run"]) != (str(project), run)
        and not (entry.told["slurm_job"] == job and (job or entry.told["project"] == str(project)))
    ]


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container that does not know its user
        return str(os.geteuid())
