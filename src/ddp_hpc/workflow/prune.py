"""`ddp-hpc prune`: the runs that no study plans any more, as its file or the code has changed; what was put aside."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddp_hpc.config.errors import StudyError
from ddp_hpc.runs import identity, lease
from ddp_hpc.runs.attempt import RunFolder
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import state_of, uses_slurm
from ddp_hpc.slurm import client
from ddp_hpc.system.files import clock_of
from ddp_hpc.system.terminal import counted
from ddp_hpc.workflow.driver_lock import DriverLock

ASIDE = "put aside"


def left(project: Project, older_than_days: float = 0.0) -> list[dict[str, Any]]:
    """Return a row for each run that no study plans and nobody works at, and for each file put aside, the oldest first.

    A StudyError if that cannot be known: a study cannot be read, or Slurm does not answer.
    """
    planned = {one.run for name in project.studies for one in project.study_runs(name).planned}
    specs = {identity.parts(run)[1] for run in planned}
    if uses_slurm(project.store) and (problem := client.queue().problem):
        raise StudyError(f"Slurm does not answer ({problem}): which runs wait in its queue is not known")
    rows = []
    for folder in _runs(project):
        run = folder.path.name
        if run in planned or _is_held(project, folder):
            continue
        days, megabytes = _age_and_size(folder.path)
        if days >= older_than_days:
            why = "other code" if identity.parts(run)[1] in specs else "in no study"
            rows.append({"run": run, "why": why, "days": days, "mb": megabytes})
    gone = {row["run"] for row in rows}
    for place in _aside(project):
        days, megabytes = _age_and_size(place)
        if days >= older_than_days and place.parent.name not in gone:
            name = os.path.relpath(place, project.store.runs)
            rows.append({"run": name, "why": ASIDE, "days": days, "mb": megabytes})
    return sorted(rows, key=lambda row: (-row["days"], -row["mb"]))


def delete(project: Project, older_than_days: float = 0.0) -> list[dict[str, Any]]:
    """Delete those runs and return their rows, with a `problem` where that failed.

    A DriverAliveError if a driver is alive: it may train what its study has planned before it was edited.
    """
    with DriverLock(project.root).held():
        rows = left(project, older_than_days)
        for row in rows:
            folder = project.store.run(row["run"])
            if row["why"] != ASIDE and _is_held(project, folder):
                row["problem"] = "kept: it has just been started"
                continue
            try:
                (shutil.rmtree if folder.path.is_dir() else os.unlink)(folder.path)
            except OSError as error:
                row["problem"] = str(error)
        return rows


def summary(rows: Sequence[dict[str, Any]], deleted: bool) -> str:
    """Return how much that is, and what to do."""
    if not rows:
        return "nothing to delete: a study plans each run, or somebody works at it, or it is younger"
    gone = [row for row in rows if "problem" not in row]
    aside = sum(row["why"] == ASIDE for row in gone)
    kinds = [counted(len(gone) - aside, "run")] + ([f"{aside} put aside"] if aside else [])
    said = f"{', '.join(kinds)}, {sum(row['mb'] for row in gone):,.1f} MB"
    return f"deleted: {said}" if deleted else f"{said}; nothing was deleted: `ddp-hpc prune --delete` does that"


def _runs(project: Project) -> list[RunFolder]:
    """Return the folders of runs: what else people keep beside them is theirs, and so is what a link leads to."""
    if not project.store.runs.is_dir():
        return []
    with os.scandir(project.store.runs) as entries:
        folders = [project.store.run(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    named = [folder for folder in folders if identity.parts(folder.path.name)[2]]
    return [folder for folder in named if folder.plan.get("run") == folder.path.name]


def _aside(project: Project) -> Iterator[Path]:
    """Yield what was put aside as it was damaged or stood in the way: beside runs, in them, and among their tables."""
    for pattern in ("runs/*", "runs/*/*", "studies/*/*/*"):
        found = project.store.root.glob(f"{pattern}.aside-[0-9]*")
        yield from (place for place in found if not place.parent.is_symlink())


def _is_held(project: Project, folder: RunFolder) -> bool:
    """Whether somebody works at a run, also once more at a finished one, or its job waits."""
    if any(not attempt.has_ended and lease.alive(attempt) is not False for attempt in folder.attempts):
        return True
    return not folder.finished and state_of(project.store, folder.path.name).status in ("running", "queued")


def _age_and_size(place: Path) -> tuple[float, float]:
    """Return the days since a file, or one of a folder, was last written, and its megabytes."""
    found = [os.lstat(os.path.join(path, name)) for path, _, names in os.walk(place) for name in names]
    found += [] if place.is_dir() else [os.lstat(place)]
    days = (clock_of(place.parent) - max((file.st_mtime for file in found), default=0.0)) / 86400
    return round(max(0.0, days), 2), round(sum(file.st_size for file in found) / 1e6, 3)
