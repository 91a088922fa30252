"""Who works at a run: an attempt is held by its supervisor for as long as that lives.

On its own host a supervisor is known by its process, elsewhere by its Slurm job and by a heartbeat, the date of a file
in the journal. Nothing heavy is imported: a supervisor asks before it starts.
"""

import os
import time
from pathlib import Path
from typing import Any

from ddp_hpc.system.files import read_json
from ddp_hpc.system.process import process_created

BEAT_S = 20.0  # how often a supervisor gives a sign of life
SILENT_S = 180.0  # after so long without one it may be dead; a file system may show a date a minute late
ENDING_S = 30.0  # how long a supervisor on this host, whose driver is gone, may take to leave a checkpoint


class HeldError(RuntimeError):
    """Another supervisor works at the run."""


def beat(attempt: Path) -> None:
    """Give a sign of life."""
    try:
        (attempt / "alive").touch()
    except OSError:  # a full disk must not end a training
        return


def silent_s(attempt: Path) -> float:
    """Return the seconds since an attempt gave a sign of life, its journal the first; infinity if there is none."""
    dates = [_date(attempt / name) for name in ("alive", "started.json")]
    return time.time() - (max(dates) if max(dates) > float("-inf") else _date(attempt))


def _date(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return float("-inf")


def alive(attempt: Path, started: dict[str, Any]) -> bool | None:
    """Return whether the supervisor of an attempt that has not ended lives; None: nobody can tell.

    Args:
        attempt: its journal.
        started: what `started.json` says there; empty if it is not there yet, or cannot be read.
    """
    if not started:
        return time.time() - _date(attempt) < SILENT_S and not (attempt / "ended.json").exists()
    if not {"at", "host", "pid", "process_created"} <= started.keys():
        return False
    if started["host"] == os.uname().nodename:
        created = process_created(started["pid"])
        return created is not None and created == started["process_created"]
    number, silent = started.get("slurm_job"), silent_s(attempt) > SILENT_S
    if number:
        from ddp_hpc.slurm import client

        if client.is_here():
            active, listed = client.is_active(number), client.queue().job(number)
            if active and silent and listed and listed.run is None:
                return False  # the job is an allocation for many runs: it outlives each of them
            return active if active is not None or silent else True
    return not silent


def take(folder: Path, attempt: Path) -> None:
    """Make sure that nobody else works at the run in `folder`. Of several that start at once the first goes on.

    Args:
        folder: of the run.
        attempt: ours, with its `started.json`.

    Raises:
        HeldError: somebody does; saying who.
    """
    beat(attempt)
    deadline = time.monotonic() + ENDING_S
    while other := _other(folder, attempt):
        started = read_json(other / "started.json")
        if started.get("host") != os.uname().nodename or time.monotonic() > deadline:
            raise HeldError(
                f"{folder.name} is being trained already, by attempt {other.name}: {holder(started)}. "
                "Wait for it or end it; `ddp-hpc status STUDY` shows how far it is"
            )
        time.sleep(0.2)


def _other(folder: Path, attempt: Path) -> Path | None:
    """Return an attempt that lives and began before ours."""
    for other in (folder / "attempts").iterdir():
        if not other.name.isdigit() or int(other.name) >= int(attempt.name) or (other / "ended.json").exists():
            continue
        started = read_json(other / "started.json")
        if alive(other, started):
            return other
    return None


def holder(started: dict[str, Any]) -> str:
    """Return e.g. `since 2026-01-31T08:00:00+00:00 on node1, pid 4, Slurm job 17`."""
    if not started:
        return "it has just begun"
    job = f", Slurm job {started['slurm_job']}" if started.get("slurm_job") else ""
    return f"since {started['at']} on {started['host']}, pid {started['pid']}{job}"
