"""Checks of Slurm, by its own commands."""

import os
import pwd
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ddp_hpc.cli.doctor import Check, software
from ddp_hpc.system.commands import run

PLUGIN = "snakemake-executor-plugin-slurm"
TRIED = "2.8.0"  # the plugin whose ways the driver knows; as in constraints.txt
LEAST_JOB_AGE_S = 60  # three times `slurm-init-seconds-before-status-checks` of profiles/slurm
SLOW_S = 5.0  # an answer of accounting that takes longer is late

TIMEOUT_S = 20


def ask() -> dict[str, Any]:
    """Return what Slurm says; empty where it has no client commands here.

    Keys: version, pmi (types of `srun --mpi`), squeue and sacct (None: works; else the last words, or `not installed`),
    sacct_s (how long it took), accounting (as configured, None if unknown), accounts (of the user; None if unknown),
    accounts_needed (a job must be of one of them), min_job_age_s, plugin (its version here).
    """
    if shutil.which("sbatch") is None:
        return {}
    said = run(["sbatch", "--version"], TIMEOUT_S)
    types = run(["srun", "--mpi=list"], TIMEOUT_S)
    config = run(["scontrol", "show", "config"], TIMEOUT_S)
    began = time.monotonic()
    sacct = _works("sacct", "-X", "--noheader", "-S", "now-1minutes")
    settings = dict(re.findall(r"^(\w+) *= *(.*?)\s*$", config.out, re.MULTILINE))
    age_s = re.match(r"\d+", settings.get("MinJobAge", ""))
    # one a line, and `specific pmix plugin versions available: pmix_v4`
    listed = (types.out + types.err).partition("MPI plugin types are")[2]
    return {
        "version": said.out.strip().removeprefix("slurm-wlm ").removeprefix("slurm ") or said.last_words,
        "pmi": sorted(set(re.findall(r"\b(?:none|cray_shasta|pmi2|pmix(?:_v\d+)?)\b", listed))),
        "squeue": _works("squeue", "--me", "--noheader"),
        "sacct": sacct,
        "sacct_s": time.monotonic() - began,
        "accounting": settings.get("AccountingStorageType"),
        "accounts": None if sacct else _accounts(),
        "accounts_needed": "associations" in settings.get("AccountingStorageEnforce", ""),
        "min_job_age_s": int(age_s[0]) if age_s else None,
        "plugin": software.version_of(PLUGIN),
    }


def _accounts() -> list[str] | None:
    """Return the accounts that may pay for the user's jobs."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container that does not know its user
        return None
    asked = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", "where", f"user={name}", "format=account"]
    said = run(asked, TIMEOUT_S)
    return sorted(set(said.out.split())) if said.code == 0 else None


def _works(command: str, *arguments: str) -> str | None:
    if shutil.which(command) is None:
        return "not installed"
    said = run([command, *arguments], TIMEOUT_S)
    return None if said.code == 0 else said.last_words


def slurm(answer: Mapping[str, Any], vendor: str | None) -> Check:
    """Judge Slurm, for an MPI library of `vendor`."""
    if not answer:
        means = "studies run on this machine; a cluster needs its login node"
        return Check("slurm", "missing", "no sbatch here", means)
    if "error" in answer:
        return Check("slurm", "warning", answer["error"], "Slurm is here but does not answer", "ask your site")
    found = f"{answer['version']}; srun --mpi: {', '.join(answer['pmi']) or 'unknown'}"
    if problems := list(_problems(answer, vendor)):
        means, do = ("; ".join(part) for part in zip(*problems, strict=True))
        return Check("slurm", "warning", found, means, do)
    return Check("slurm", "ok", found, do="ddp-hpc doctor --machine > config/machines/NAME.yaml, for studies here")


def pmi_of(vendor: str | None) -> str:
    """Return by which type of `srun --mpi` the ranks of an MPI library find each other."""
    return "pmix" if vendor == "Open MPI" else "pmi2"


def has_accounting(answer: Mapping[str, Any]) -> bool:
    """Return whether there is accounting, and it answers."""
    return not answer.get("sacct") and answer.get("accounting") not in (None, "(null)", "accounting_storage/none")


def _problems(answer: Mapping[str, Any], vendor: str | None) -> Iterator[tuple[str, str]]:
    """Yield what keeps ranks from finding each other, and jobs from being submitted and watched; and what to do."""
    wanted = pmi_of(vendor)
    if not any(kind.startswith(wanted) for kind in answer["pmi"]):
        yield (
            f"srun has no {wanted} for {vendor or 'this MPI'}: each rank would be alone",
            f"launch with mpiexec, or ask your site for {wanted}",
        )
    if answer["squeue"]:
        yield f"squeue: {answer['squeue']}", "the controller must answer before anything is submitted"
    use_squeue = "in the machine file: status_command: squeue"
    if not has_accounting(answer):
        means = "no accounting: who cancelled a job, and the memory it took, will not be known; with sacct as "
        yield f"{means}status_command a study would wait for ever", use_squeue
    elif answer["sacct_s"] > SLOW_S:
        yield f"accounting is late: sacct took {answer['sacct_s']:.0f} s", use_squeue
    age_s, plugin = answer["min_job_age_s"], answer["plugin"]
    if age_s is not None and age_s < LEAST_JOB_AGE_S:
        yield (
            f"Slurm forgets jobs {age_s} s after their end (MinJobAge): the plugin then asks sacct, not squeue",
            f"in the profile: slurm-init-seconds-before-status-checks: {max(1, age_s // 3)}, or ask your site for a "
            f"MinJobAge of {LEAST_JOB_AGE_S} or more",
        )
    if answer.get("accounts_needed") and answer.get("accounts") == []:
        yield "no account of yours is known: Slurm refuses jobs without one", "ask your site for an account"
    if plugin is None:
        yield "Snakemake cannot submit", "pip install -e '.[slurm]' -c constraints.txt"
    elif plugin != TRIED:
        yield (
            f"{PLUGIN} {plugin} has not been tried: what a driver knows of its ways is that of {TRIED}",
            f"pip install {PLUGIN}=={TRIED}",
        )
