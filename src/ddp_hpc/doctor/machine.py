"""Cores, memory and disk, as far as ranks may use them."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from ddp_hpc._process import usable_cores
from ddp_hpc.doctor.finding import GB, Finding

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
RANK_BYTES = 0.5e9  # what one CPU rank with torch and a small model takes


def cores(usable: int, quota: float | None, logical: int, physical: int | None) -> Finding:
    """Judge the cores that ranks may use.

    Args:
        usable: by this process's affinity.
        quota: cores of CPU time that the cgroup gives; None: no limit.
        logical: of the machine.
        physical: of the machine; None: unknown.
    """
    honest = usable if quota is None else max(1, min(usable, int(quota)))
    found = f"{usable} usable of {logical} ({physical or 'unknown'} physical)"
    means = f"runs of more than {honest} CPU ranks are marked oversubscribed and cannot win"
    if quota is not None and quota < usable:
        return Finding(
            "cores",
            "warning",
            f"{found}; the control group gives {quota:g} cores of time",
            f"ranks are throttled beyond that, unevenly: timings of more than {honest} mean little",
            "raise the CPU limit of the container or job",
        )
    if physical and usable > physical:
        means += f"; {physical} physical cores: beyond them two ranks share one"
    return Finding("cores", "ok", found, means)


def memory(total: int, available: int) -> Finding:
    """Judge the memory, in bytes, of the machine or of our control group."""
    found = f"{available / GB:.1f} GB free of {total / GB:.1f} GB"
    ranks = int(available / RANK_BYTES)
    if ranks < 4:
        return Finding("memory", "warning", found, f"enough for about {ranks} ranks; more end as oom_host", "free some")
    return Finding("memory", "ok", found)


def results(folder: Path) -> Finding:
    """Judge whether records can be written below `folder`: by doing so, and by its free space."""
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    try:
        locks = _try(nearest)
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        problem = f"{nearest}: {error.strerror}"
        return Finding("results", "missing", problem, "no record can be written", "make it writable", needed=True)
    found = f"{folder} is writable, {free / GB:.1f} GB free"
    if not locks:
        means = "files cannot be locked there: nothing keeps two drivers from running at once"
        return Finding("results", "warning", found, means, "on Lustre, mount with the option flock", needed=True)
    if free < GB:
        return Finding("results", "warning", found, "thousands of runs may not fit", "free some space", needed=True)
    return Finding("results", "ok", found, needed=True)


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
    return usable_cores(), cgroup_cores(), os.cpu_count() or 1, psutil.cpu_count(logical=False)


def cgroup_cores(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """Return the cores of CPU time that our control group and those above it give (cgroup v2, v1); None: no limit."""
    limits = [_quota(folder) for folder in _cgroup_folders(root, own, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return float(quota) / float(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None


def _cgroup_folders(root: Path, own: Path, controller: str) -> list[Path]:
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    bases = {
        root / (controller if kinds else "") / name.strip("/")  # version 2 has one tree, version 1 one per controller
        for _, kinds, name in lines
        if not kinds or controller in kinds.split(",")
    }
    return [folder for base in bases for folder in (base, *base.parents) if folder.is_relative_to(root)]


def memory_bytes(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> tuple[int, int]:
    """Return total and free memory of the machine, or of our control group where that has less."""
    whole = psutil.virtual_memory()
    limits = [_limit(folder) for folder in _cgroup_folders(root, own, "memory")]
    total = min([whole.total, *(limit for limit in limits if limit is not None)])
    return total, min(total, whole.available)


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):  # not there, or `max`
            continue
    return None
