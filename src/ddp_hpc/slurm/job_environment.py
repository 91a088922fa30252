"""Slurm's variables in the environment: what they say of the surrounding job, and which would change others.

`mpiexec` finds the nodes of its job, and how many ranks each takes, in variables SLURM_*. The executor plugin takes
them from what it starts in a job: Open MPI's mpiexec then fails, MPICH's puts all ranks on the first node and says
nothing. So the workflow, which is read before that happens, keeps those that count under another name.
"""

import json
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

KEPT = "DDP_HPC_SLURM"
# The others would be wishes of the srun with which mpiexec starts its helper on each node, that a single node cannot
# fulfil: all ranks, all GPUs. With GPUS_PER_NODE the helper has those of its node, and without it none can start.
NAMES = (
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("SLURM_TASKS_PER_NODE", "SLURM_GPUS_PER_NODE"),
)

# Two lists, for the two commands read different variables in different places. `srun` reads SLURM_* within the job,
# where they also say what the job is: only wishes are taken out, and only for srun. `sbatch` reads SBATCH_* where the
# driver runs: what would change the size or the end of a job is taken out of the driver's own environment.
# `man srun`, INPUT ENVIRONMENT VARIABLES: what its line does not say anyway, and what is no fact of the job
_WISHES = re.compile(
    r"SRUN_\w+|SLURM_(CPU_BIND|MEM_BIND|GPU_BIND|GPUS_PER_TASK|NTASKS_PER_(GPU|CORE|SOCKET)|CPUS_PER_GPU|(STEP_)?GRES"
    r"|EXCLUSIVE|OVERCOMMIT|CORE_SPEC|THREAD_SPEC|DISTRIBUTION|SPREAD_JOB|USE_MIN_NODES|WHOLE"
    r"|OVERLAP|CONSTRAINT|HOSTFILE|EXPORT_ENV|RESV_PORTS|NO_KILL|WAIT|TIMELIMIT|MULTI_PROG|REMOTE_CWD|WORKING_DIR"
    r"|STDOUTMODE|STDERRMODE|STDINMODE|LABELIO|OPEN_MODE)(_\w+)?"
)
# `man sbatch`, INPUT ENVIRONMENT VARIABLES: those that change how much a job gets, when it ends, or how many there are
_SHAPES = re.compile(
    r"SBATCH_(ARRAY_INX|CLUSTERS|CORE_SPEC|CPUS_PER_GPU|DISTRIBUTION|EXCLUSIVE|EXPORT|GPUS|GPU_BIND|GPUS_PER_(NODE|TASK)"
    r"|GRES|GRES_FLAGS|HINT|MEM_BIND|MEM_PER_(CPU|GPU|NODE)|NO_KILL|OVERCOMMIT|REQUEUE|SIGNAL|SPREAD_JOB|THREAD_SPEC"
    r"|THREADS_PER_CORE|TIMELIMIT|USE_MIN_NODES|WAIT)|SLURM_HINT|SLURM_EXIT_ERROR"
)


def keep() -> None:
    """Keep what Slurm says of our job under another name, if we are in one and the plugin has not taken it yet."""
    if "SLURM_JOB_NODELIST" in os.environ:
        os.environ[KEPT] = json.dumps({name: os.environ[name] for name in NAMES if name in os.environ})


def elsewhere(partition: str | None) -> str | None:
    """Return why a run of a partition cannot be trained in the job that we are in; None if it can, or there is none.

    Its record would name a partition on which it never was.
    """
    here = os.environ.get("SLURM_JOB_PARTITION")
    if partition is None or here in (None, partition):
        return None
    return f"it is for partition {partition}, and Slurm job {os.environ.get('SLURM_JOB_ID')} is in partition {here}"


def environment(launcher: Sequence[str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for `launcher`: `ours`, with what it has to know of its job, without wishes of others.

    `srun` knows its job, and takes variables for wishes: those of the user's shell, of the site, or of the step in
    which the driver was started would change what a run was given, beside all that its line says.
    """
    if is_srun(launcher):
        return {name: value for name, value in ours.items() if not _WISHES.fullmatch(name)}
    kept: dict[str, str] = json.loads(ours.get(KEPT, "{}"))
    of_this_job = kept.get("SLURM_JOB_ID", "") == ours.get("SLURM_JOB_ID")
    return dict(ours) | (kept if of_this_job else {})


def is_srun(launcher: Sequence[str]) -> bool:
    """Return whether Slurm itself starts the ranks."""
    return any(os.path.basename(word) == "srun" for word in launcher)


def several_clusters(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm's commands would speak of several clusters: a job's number then says not which it is."""
    named = environment.get("SLURM_CLUSTERS", "")
    return "," in named or named == "all"


def without_shapes(environment: MutableMapping[str, str]) -> str | None:
    """Take from an environment what would change the jobs that are submitted in it; return a note, or None.

    What a site sets for all, such as SBATCH_ACCOUNT, SBATCH_QOS and SBATCH_RESERVATION, stays.
    """
    found = sorted(name for name in environment if _SHAPES.fullmatch(name))
    found += ["SLURM_CLUSTERS"] * several_clusters(environment)
    for name in found:
        del environment[name]
    if not found:
        return None
    return (
        f"{', '.join(found)} of your shell {'is' if len(found) == 1 else 'are'} left out: what a job asks for follows "
        "from its run and the machine file, which has `extra` for more"
    )
