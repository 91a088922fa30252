"""`ddp-hpc doctor`: what this machine offers for studies, what is missing, and what to do."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ddp_hpc.system import cgroups

GB = 1e9


@dataclass(frozen=True)
class Check:
    """One part of the machine: `missing` and `needed` together mean that not even the quickstart can run."""

    part: str
    state: Literal["ok", "warning", "missing"]
    found: str
    means: str = ""
    do: str = ""
    needed: bool = False


def main(as_json: bool = False, results: Path = Path("results")) -> int:
    """Print what was found; return 0 if the quickstart could run here, else 1."""
    checks = examine(results)
    print(json.dumps([asdict(check) for check in checks], indent=1) if as_json else text(checks))
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


def examine(results: Path) -> list[Check]:
    """Check every part. What may crash or hang is asked in processes of its own, all at the same time."""
    from ddp_hpc.doctor import machine, probes, slurm, software  # they import `Check` from here

    launcher = software.find_launcher()
    questions: Mapping[str, Callable[[], Any]] = {
        "mpi": lambda: probes.ask("mpi"),
        "ranks": lambda: software.two_ranks(launcher) if launcher else None,
        "torch": lambda: probes.ask("torch"),
        "gpus": lambda: probes.ask("gpus"),
        "slurm": slurm.ask,
    }
    with ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(_safely, question) for name, question in questions.items()}
        answers = {name: future.result() for name, future in asked.items()}
    return [
        machine.cores(*machine.count_cores()),
        machine.memory(*cgroups.memory_bytes()),
        software.python(sys.version_info[:3], sys.executable),
        software.snakemake(software.version_of("snakemake"), software.version_of("packaging")),
        software.mpi(answers["mpi"]),
        software.launcher(launcher, answers["ranks"]),
        software.torch(answers["torch"], answers["gpus"]),
        software.gpus(answers["gpus"]),
        software.nccl(answers["torch"]),
        software.compiler(software.find_compiler()),
        slurm.slurm(answers["slurm"], answers["mpi"].get("vendor")),
        machine.results(results),
    ]


def _safely(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # whatever a broken part makes of our question is an answer
        return {"error": f"{type(error).__name__}: {error}"}
