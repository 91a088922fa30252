"""Checks of cores, memory and disk, as far as ranks may use them."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from ddp_hpc.doctor import GB, Check
from ddp_hpc.system import cgroups
from ddp_hpc.system.process import usable_cores

RANK_BYTES = 0.5e9  # what one CPU rank with torch and a small model takes


def cores(usable: int, quota: float | None, logical: int, physical: int | None) -> Check:
    """Judge the cores that ranks may use.

    Args:
        usable: by this process's affinity.
        quota: cores of CPU time that the cgroup gives; None: no limit.
        logical: of the machine.
        physical: of the machine; None: unknown.
    """
    honest = cgroups.within(quota, usable)
    found = f"{usable} usable of {logical} ({physical or 'unknown'} physical)"
    means = f"runs of more than {honest} CPU ranks are marked oversubscribed and cannot win"
    if quota is not None and quota < usable:
        return Check(
            "cores",
            "warning",
            f"{found}; the control group gives {quota:g} cores of time",
            f"ranks are throttled beyond that, unevenly: timings of more than {honest} mean little",
            "raise the CPU limit of the container or job",
        )
    if physical and usable > physical:
        means += f"; {physical} physical cores: beyond them two ranks share one"
    return Check("cores", "ok", found, means)


def memory(total: int, available: int) -> Check:
    """Judge the memory, in bytes, of the machine or of our control group."""
    found = f"{available / GB:.1f} GB free of {total / GB:.1f} GB"
    ranks = int(available / RANK_BYTES)
    if ranks < 4:
        return Check("memory", "warning", found, f"enough for about {ranks} ranks; more end as oom_host", "free some")
    return Check("memory", "ok", found)


def results(folder: Path) -> Check:
    """Judge whether records can be written below `folder`: by doing so, and by its free space."""
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    try:
        locks = _try(nearest)
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        problem = f"{nearest}: {error.strerror}"
        return Check("results", "missing", problem, "no record can be written", "make it writable", needed=True)
    found = f"{folder} is writable, {free / GB:.1f} GB free"
    if not locks:
        means = "files cannot be locked there: nothing keeps two drivers from running at once"
        return Check("results", "warning", found, means, "on Lustre, mount with the option flock", needed=True)
    if free < GB:
        return Check("results", "warning", found, "thousands of runs may not fit", "free some space", needed=True)
    return Check("results", "ok", found, needed=True)


def _try(folder: Path) -> bool:
    """Write and rename a file in `folder`; return whether it can be locked, too."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as scratch:
        with (Path(scratch) / "a").open("wb") as file:
            file.write(b"a" * 4096)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locks = True
            except OSError:
                locks = False
        os.replace(Path(scratch) / "a", Path(scratch) / "b")
        return locks


def count_cores() -> tuple[int, float | None, int, int | None]:
    """Return the cores usable, of our control group's quota, logical and physical, as `cores` takes them."""
    return usable_cores(), cgroups.cores(), os.cpu_count() or 1, psutil.cpu_count(logical=False)
