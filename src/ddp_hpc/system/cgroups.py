"""What the control groups of this process give it (cgroups, version 1 or 2): cores, memory, and kills for memory."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """Return the cores of CPU time that our control group and those above it give; None: no limit."""
    limits = [_quota(folder) for folder in _with_parents(root, own, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def whole_cores(listed: int, root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return how many of the `listed` cores can be busy all the time: fewer where a quota is smaller, at least one."""
    return within(cores(root, own), listed)


def within(quota: float | None, listed: int) -> int:
    """Return how many of the `listed` cores a quota keeps busy; None: all."""
    return listed if quota is None else max(1, min(listed, math.floor(quota)))


def memory_bytes(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> tuple[int, int]:
    """Return total and free memory of the machine, or of our control group where that has less."""
    page = os.sysconf("SC_PAGE_SIZE")
    limits = [_memory_limit(folder) for folder in _with_parents(root, own, "memory")]
    total = min([os.sysconf("SC_PHYS_PAGES") * page, *(limit for limit in limits if limit is not None)])
    return total, min(total, _available_bytes())


def oom_kills(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return how many processes the kernel has killed for memory in our control group; 0 where it does not say.

    In a Slurm job the job's group counts: ranks that srun has started are in another step than we are.
    """
    groups = list(_folders(root, own, "memory"))
    jobs = [parent for folder in groups for parent in folder.parents if parent.name.startswith("job_")]
    counts = [0]
    for folder in [*groups, *jobs]:
        for name in ("memory.events", "memory.oom_control"):  # of version 2, and of version 1
            try:
                lines = (folder / name).read_text().splitlines()
            except OSError:
                continue
            counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return max(counts)


def _folders(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield our control groups of a controller: version 2 has one tree, version 1 one for each controller."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, name in lines:
        if not controllers or controller in controllers.split(","):
            yield root / (controller if controllers else "") / name.strip("/")


def _with_parents(root: Path, own: Path, controller: str) -> Iterator[Path]:
    for base in _folders(root, own, controller):
        yield from (folder for folder in (base, *base.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return float(quota) / float(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None


def _memory_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):  # not there, or `max`
            continue
    return None


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
