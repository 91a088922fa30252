"""Limits of this process by control groups (cgroups, version 1 or 2): cores, memory, and out-of-memory kills."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from ddp_hpc.system.files import text_of

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """Return the cores of CPU time that our control group and those above it give; None: no limit."""
    limits = [_quota(folder) for folder in _with_parents(root, own, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def within(quota: float | None, listed: int) -> int:
    """Return how many of the `listed` cores can be busy all the time under a quota, at least one; None: all."""
    return listed if quota is None else max(1, min(listed, math.floor(quota)))


def quota_periods(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> dict[str, tuple[int, int]]:
    """Return how many periods each quota of ours has had, and in how many of them it was used up."""
    counted = {}
    for folder in _with_parents(root, own, "cpu"):
        if _quota(folder) is None:
            continue
        told = dict(line.split(maxsplit=1) for line in text_of(folder / "cpu.stat").splitlines() if " " in line)
        if {"nr_periods", "nr_throttled"} <= told.keys():
            counted[str(folder)] = int(told["nr_periods"]), int(told["nr_throttled"])
    return counted


def memory_bytes(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> tuple[int, int]:
    """Return total and free memory of the machine, or of our control group where that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _with_parents(root, own, "memory"):
        limits = (text_of(folder / name).strip() for name in ("memory.max", "memory.limit_in_bytes"))
        total = min([total, *(int(limit) for limit in limits if limit.isdigit())])  # without one: max
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return total, min(total, free)


def oom_kills(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return how many processes the kernel has killed for memory in our control group; 0 where it does not say.

    In a Slurm job the job's group counts: ranks that srun has started are in another step than we are.
    """
    groups = list(_folders(root, own, "memory"))
    jobs = [parent for folder in groups for parent in folder.parents if parent.name.startswith("job_")]
    counts = [0]
    for folder in [*groups, *jobs]:
        for name in ("memory.events", "memory.oom_control"):  # of version 2, and of version 1
            lines = text_of(folder / name).splitlines()
            counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return max(counts)


def _folders(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield our control groups of a controller: version 2 has one tree, version 1 one for each controller."""
    for line in text_of(own).splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mounts = ("",) if not controllers else (controller, controllers)  # e.g. cpu, a link to cpu,cpuacct
            mount = next((mount for mount in mounts if (root / mount).is_dir()), mounts[0])
            yield root / mount / name.strip("/")


def _with_parents(root: Path, own: Path, controller: str) -> Iterator[Path]:
    for base in _folders(root, own, controller):
        yield from (folder for folder in (base, *base.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float | None:
    of_version_1 = (text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    words = (text_of(folder / "cpu.max") or " ".join(of_version_1)).split()
    numbers = [int(word) for word in words if word.isdigit()]  # without a limit: max, or -1
    return numbers[0] / numbers[1] if len(numbers) == 2 else None
