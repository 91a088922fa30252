"""What this machine offers for studies, what is missing, what follows and what to do about it."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddp_hpc.doctor import machine, probes, slurm, software
from ddp_hpc.doctor.finding import Finding
from ddp_hpc.system import cgroups


def main(as_json: bool = False, results: Path = Path("results")) -> int:
    """Print what was found; return 0 if the quickstart could run here, else 1."""
    findings = examine(results)
    print(json.dumps([asdict(finding) for finding in findings], indent=1) if as_json else text(findings))
    return int(any(finding.state == "missing" and finding.needed for finding in findings))


def text(findings: Sequence[Finding]) -> str:
    """Return the findings for people: state, part and what was found; below it what follows and what to do."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:8} {finding.part:10} {finding.found}")
        lines += [f"{'':19} {line}" for line in (finding.means, finding.do and f"-> {finding.do}") if line]
    blocking = [finding.part for finding in findings if finding.state == "missing" and finding.needed]
    lines += ["", f"the quickstart cannot run: {', '.join(blocking)}" if blocking else "the quickstart can run here"]
    return "\n".join(lines)


def examine(results: Path) -> list[Finding]:
    """Return all findings. Parts that may crash or hang are asked in processes of their own, beside each other."""
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
    except Exception as error:  # whatever a broken part makes of our question is a finding
        return {"error": f"{type(error).__name__}: {error}"}
