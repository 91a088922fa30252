"""What this machine's Slurm offers, as far as its own commands tell."""

import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ddp_hpc._commands import run
from ddp_hpc.doctor.finding import Finding

_TIMEOUT_S = 20


def ask() -> dict[str, Any]:
    """Return what Slurm says; empty where it has no client commands here.

    Keys: version, pmi (types of `srun --mpi`), squeue and sacct (None: works; else the last words, or `not installed`),
    accounting (as configured, None if unknown), min_job_age_s, plugin (of Snakemake, installed here).
    """
    if shutil.which("sbatch") is None:
        return {}
    version = run(["sbatch", "--version"], _TIMEOUT_S)
    types = run(["srun", "--mpi=list"], _TIMEOUT_S)
    config = run(["scontrol", "show", "config"], _TIMEOUT_S)
    return {
        "version": version.out.strip().removeprefix("slurm-wlm ").removeprefix("slurm ") or version.last_words,
        "pmi": _pmi_types(types.out + types.err),
        "squeue": _works("squeue", "--me", "--noheader"),
        "sacct": _works("sacct", "-X", "--noheader", "-S", "now-1minutes"),
        "accounting": _setting(config.out, "AccountingStorageType"),
        "min_job_age_s": _seconds(_setting(config.out, "MinJobAge")),
        "plugin": find_spec("snakemake_executor_plugin_slurm") is not None,
    }


def _works(command: str, *arguments: str) -> str | None:
    if shutil.which(command) is None:
        return "not installed"
    said = run([command, *arguments], _TIMEOUT_S)
    return None if said.code == 0 else said.last_words


def _pmi_types(listed: str) -> list[str]:
    """Return the words of `srun --mpi=list`: one a line, or `specific pmix plugin versions available: pmix_v4`."""
    _, _, words = listed.partition("MPI plugin types are")
    return sorted(set(re.findall(r"\b(?:none|cray_shasta|pmi2|pmix(?:_v\d+)?)\b", words)))


def _setting(config: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*=\s*(.*?)\s*$", config, re.MULTILINE)
    return found[1] if found else None


def _seconds(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None


def slurm(answer: Mapping[str, Any], vendor: str | None) -> Finding:
    """Judge Slurm, for an MPI library of `vendor`."""
    if not answer:
        return Finding(
            "slurm", "missing", "no sbatch here", "studies run on this machine; a cluster needs its login node"
        )
    if "error" in answer:
        return Finding("slurm", "warning", answer["error"], "Slurm is here but does not answer", "ask your site")
    found = f"{answer['version']}; srun --mpi: {', '.join(answer['pmi']) or 'unknown'}"
    wanted = "pmix" if vendor == "Open MPI" else "pmi2"
    problems = []
    if answer["squeue"]:
        problems.append((f"squeue: {answer['squeue']}", "the controller must answer before anything is submitted"))
    if not any(kind.startswith(wanted) for kind in answer["pmi"]):
        problems.append(
            (
                f"srun has no {wanted} for {vendor or 'this MPI'}: each rank would be alone",
                f"launch with mpiexec, or ask your site for {wanted}",
            )
        )
    if answer["sacct"] or answer["accounting"] in (None, "(null)", "accounting_storage/none"):
        short = answer["min_job_age_s"] is not None and answer["min_job_age_s"] < 120
        problems.append(
            (
                "no accounting",
                "in the machine file: status_command: squeue"
                + (f", and MinJobAge, now {answer['min_job_age_s']} s, at 120 or more" if short else ""),
            )
        )
    if not answer["plugin"]:
        problems.append(("Snakemake cannot submit", "pip install snakemake-executor-plugin-slurm"))
    if problems:
        means, do = ("; ".join(part) for part in zip(*problems, strict=True))
        return Finding("slurm", "warning", found, means, do)
    return Finding("slurm", "ok", found, do="ddp-hpc doctor --machine > config/machines/NAME.yaml, for studies here")
