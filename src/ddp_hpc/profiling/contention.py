"""How long the threads of this process were ready to run and had no core, because others had it.

A machine that is loaded evenly makes all steps slower, so that no step stands out: this tells it. It does not see
what a hypervisor takes (steal time), nor memory bandwidth and caches that others use.

Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat
"""

from collections.abc import Mapping
from pathlib import Path

TASKS = Path("/proc/self/task")


def waited_s(tasks: Path = TASKS) -> dict[int, float] | None:
    """Return the seconds that each thread, by its number, has waited for a core; None where Linux does not tell."""
    found = {}
    for task in tasks.glob("[0-9]*"):
        try:
            found[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # the thread has ended, or nobody counts
            continue
    return found or None


def longest_wait_s(before: Mapping[int, float] | None, after: Mapping[int, float] | None) -> float | None:
    """Return the seconds that the thread which waited longest has waited between two answers of `waited_s`."""
    if before is None or after is None:
        return None
    return max(seconds - before.get(thread, 0.0) for thread, seconds in after.items())
