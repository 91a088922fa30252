"""Small helpers of the processes that watch over others; they import only the standard library, for a quick start."""

from __future__ import annotations

import json
import os
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # a quick start: typing and ctypes take milliseconds
    import signal
    from collections.abc import Mapping
    from typing import Any

DONE_FD = "DDP_HPC_DONE_FD"  # number of an open file: the rank writes b"done" there when it has really finished
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_PR_SET_PDEATHSIG = 1


def rank_from_environment() -> int:
    """Return the rank that the launcher says we are, before MPI is up; 0 without a launcher."""
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name, "").isdigit()), 0)


def die_with_parent(number: signal.Signals) -> None:
    """Ask Linux to send this process `number` when its parent dies; elsewhere nothing happens."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    except (OSError, AttributeError):
        return


def process_created(pid: int) -> int | None:
    """Return when a process of this host was created, in the kernel's clock ticks; None if there is none.

    With the process id it names a process for good: ids are used again, this pair is not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rsplit(")", 1)[1].split()[19])


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON by rename, so that nobody reads half of it."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, file)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file or it is no JSON."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
