"""`ddp-hpc doctor`: what this machine offers for studies, what is missing, and what to do."""

import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from ddp_hpc.system import cgroups
from ddp_hpc.system.process import usable_cores
from ddp_hpc.system.terminal import in_json

GB = 1e9
RANK_BYTES = 0.5e9  # what one CPU rank with torch and a small model takes
NEEDED = ("python", "snakemake", "mpi", "launcher", "torch", "results")  # by the quickstart


@dataclass(frozen=True)
class Check:
    """One part of the machine: what was found, what that means, and what to do about it."""

    part: str
    state: Literal["ok", "warning", "missing"]
    found: str
    means: str = ""
    do: str = ""

    @property
    def needed(self) -> bool:
        """Whether not even the quickstart can run if it is missing."""
        return self.part in NEEDED


def main(as_json: bool = False, results: Path = Path("results")) -> int:
    """Print what was found; return 0 if the quickstart could run here, else 1."""
    checks = examine(results)
    values = [asdict(check) | {"needed": check.needed} for check in checks]
    print(in_json(values) if as_json else text(checks))
    return int(any(check.state == "missing" and check.needed for check in checks))


def text(checks: Sequence[Check]) -> str:
    """Return the checks for people: state, part and what was found; below it what follows and what to do."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:8} {check.part:10} {check.found}")
        lines += [f"{'':19} {line}" for line in (check.means, check.do and f"-> {check.do}") if line]
    blocking = [check.part for check in checks if check.state == "missing" and check.needed]
    lines += ["", f"the quickstart cannot run: {', '.join(blocking)}" if blocking else "the quickstart can run here"]
    return "\n".join(lines)


def examine(folder: Path) -> list[Check]:
    """Check every part. What may crash or hang is asked in processes of its own, all at the same time."""
    from ddp_hpc.cli.doctor import probes, slurm, software  # they import `Check` from here

    launcher = software.find_launcher()
    questions: Mapping[str, Callable[[], Any]] = {
        "mpi": lambda: probes.ask("mpi"),
        "ranks": lambda: software.two_ranks(launcher) if launcher else None,
        "torch": lambda: probes.ask("torch"),
        "gpus": lambda: probes.ask("gpus"),
        "slurm": slurm.ask,
    }
    with ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(question) for name, question in questions.items()}
    answers = {  # whatever a broken part makes of our question is an answer
        name: {"error": f"{type(error).__name__}: {error}"} if (error := future.exception()) else future.result()
        for name, future in asked.items()
    }
    return [
        cores(usable_cores(), cgroups.cores(), os.cpu_count() or 1, psutil.cpu_count(logical=False)),
        memory(*cgroups.memory_bytes()),
        Check("python", "ok", f"{platform.python_version()} ({sys.executable})"),
        software.snakemake(software.version_of("snakemake"), software.version_of("packaging")),
        software.mpi(answers["mpi"]),
        software.launcher(launcher, answers["ranks"]),
        software.torch(answers["torch"], answers["gpus"]),
        software.gpus(answers["gpus"]),
        software.nccl(answers["torch"]),
        software.compiler(software.find_compiler()),
        slurm.slurm(answers["slurm"], answers["mpi"].get("vendor")),
        results(folder),
    ]


def cores(usable: int, quota: float | None, logical: int, physical: int | None) -> Check:
    """Judge the cores that ranks may use, of those of the machine: by affinity, and by the quota of the cgroup."""
    honest = cgroups.within(quota, usable)
    found = f"{usable} usable of {logical} ({physical or 'unknown'} physical)"
    means = f"runs of more than {honest} CPU ranks are marked oversubscribed and cannot win"
    if quota is not None and quota < usable:
        found += f"; the control group gives {quota:g} cores of time"
        means = f"ranks are throttled beyond that, unevenly: timings of more than {honest} mean little"
        return Check("cores", "warning", found, means, "raise the CPU limit of the container or job")
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
        return Check("results", "missing", problem, "no record can be written", "make it writable")
    found = f"{folder} is writable, {free / GB:.1f} GB free"
    if not locks:
        means = "files cannot be locked there: only what driver.lock says keeps two drivers apart"
        return Check("results", "warning", found, means, "on Lustre, mount with the option flock")
    if free < GB:
        return Check("results", "warning", found, "thousands of runs may not fit", "free some space")
    return Check("results", "ok", found)


def _try(folder: Path) -> bool:
    """Write and rename a file in `folder`; return whether it can be locked, too."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as scratch:
        with (Path(scratch) / "a").open("wb") as file:
            file.write(b"a" * 4096)
            locks = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                locks = False
        os.replace(Path(scratch) / "a", Path(scratch) / "b")
        return locks
