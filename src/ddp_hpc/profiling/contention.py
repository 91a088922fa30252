"""Whether ranks had their cores: how long threads had none, what others used of them, and whether a quota took them.

A machine that is loaded evenly makes all steps slower, so that no step stands out: this tells it. Threads of one
process wait for each other, too, e.g. those of a library that are more than the cores; so neither number tells of
others alone. Memory bandwidth and caches that others use are not seen.

Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat; proc_stat(5)
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddp_hpc.system import cgroups
from ddp_hpc.system.files import text_of

PROC = Path("/proc")
_IDLE = (3, 4)  # columns of /proc/stat: idle, iowait; the last two, guests', are part of the first two
_COUNTED = 8


@dataclass(frozen=True)
class CpuTimes:
    """What Linux had counted at one time, in seconds; None where it does not tell."""

    waited_s: Mapping[int, float] | None  # each thread of this process, by its number: ready and without a core
    busy_s: Mapping[int, float] | None  # each core of this host, whoever used it, other virtual machines too
    own_s: float  # all threads of this process
    quotas: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # periods, and those cut short


@dataclass(frozen=True)
class Contention:
    """What was counted between two readings, `wall_s` apart."""

    wait_s: float | None  # of the thread that waited longest
    busy_s: Mapping[int, float] | None
    own_s: float
    wall_s: float
    throttled_share: float | None = None  # of the periods of the quota that was used up most often; None: no quota


def read(proc: Path = PROC) -> CpuTimes:
    """Return what has been counted until now."""
    counted = {int(task.name): text_of(task / "schedstat").split() for task in (proc / "self" / "task").glob("[0-9]*")}
    # without its numbers a thread has ended, or nobody counts
    waited = {thread: int(words[1]) / 1e9 for thread, words in counted.items() if len(words) > 1}
    return CpuTimes(waited or None, _busy_s(proc / "stat"), time.process_time(), cgroups.quota_periods())


def _busy_s(file: Path) -> dict[int, float] | None:
    ticks = {
        int(name[3:]): sum(int(value) for at, value in enumerate(values[:_COUNTED]) if at not in _IDLE)
        for name, *values in map(str.split, text_of(file).splitlines())
        if name.startswith("cpu") and name != "cpu"
    }
    per_second = os.sysconf("SC_CLK_TCK")
    return {core: count / per_second for core, count in ticks.items()} or None


def between(before: CpuTimes, after: CpuTimes, wall_s: float) -> Contention:
    """Return what was counted between two readings of one process; a thread that began meanwhile has waited from 0."""
    wait_s = busy_s = None
    if before.waited_s is not None and after.waited_s is not None:
        wait_s = max(seconds - before.waited_s.get(thread, 0.0) for thread, seconds in after.waited_s.items())
    if before.busy_s is not None and after.busy_s is not None:
        busy_s = {core: seconds - before.busy_s.get(core, 0.0) for core, seconds in after.busy_s.items()}
    cut = [
        (throttled - before.quotas[name][1]) / (periods - before.quotas[name][0])
        for name, (periods, throttled) in after.quotas.items()
        if periods > before.quotas.get(name, (periods,))[0]
    ]
    return Contention(wait_s, busy_s, after.own_s - before.own_s, wall_s, max(cut, default=None))


def wait_share(ranks: Iterable[Contention | None]) -> float | None:
    """Return the largest share of its time for which a thread of these ranks had no core; None: not known."""
    known = [one.wait_s / one.wall_s for one in ranks if one is not None and one.wait_s is not None]
    return max(known, default=None)


def throttled_share(ranks: Iterable[Contention | None]) -> float | None:
    """Return the largest share of the periods of a CPU quota in which these ranks used it up; None: no quota."""
    known = [one.throttled_share for one in ranks if one is not None and one.throttled_share is not None]
    return max(known, default=None)


def others_share(ranks: Iterable[tuple[str, Iterable[int], Contention | None]]) -> float | None:
    """Return which share of the ranks' cores others used, on the host where it is largest; None: not known.

    Each rank is given as its host, the cores that it may use, and what it has counted.
    """
    hosts: dict[str, list[tuple[set[int], Contention]]] = {}
    for host, cores, one in ranks:
        if one is not None and one.busy_s is not None:
            hosts.setdefault(host, []).append((set(cores), one))
    shares = []
    for counted in hosts.values():
        cores = set[int]().union(*(own for own, _ in counted))
        first = counted[0][1]
        busy_s = sum((first.busy_s or {}).get(core, 0.0) for core in cores)
        own_s = sum(one.own_s for _, one in counted)
        shares.append(max(0.0, busy_s - own_s) / (len(cores) * first.wall_s))
    return max(shares, default=None)
