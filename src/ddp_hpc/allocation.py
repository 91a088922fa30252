"""What Slurm says of the job that we run in, for launchers other than its own.

`mpiexec` finds the nodes of its job, and how many ranks each takes, in variables SLURM_*. The executor plugin takes
them from what it starts in a job: Open MPI's mpiexec then fails, MPICH's puts all ranks on the first node and says
nothing. So the workflow, which is read before that happens, keeps those that count under another name.
"""

import json
import os
from collections.abc import Sequence

KEPT = "DDP_HPC_SLURM"
# The others would be wishes of the srun with which mpiexec starts its helper on each node, that a single node cannot
# fulfil: all ranks, all GPUs. With GPUS_PER_NODE the helper has those of its node, and without it none can start.
NAMES = (
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("SLURM_TASKS_PER_NODE", "SLURM_GPUS_PER_NODE"),
)


def keep() -> None:
    """Keep what Slurm says of our job under another name, if we are in one and the plugin has not taken it yet."""
    if "SLURM_JOB_NODELIST" in os.environ:
        os.environ[KEPT] = json.dumps({name: os.environ[name] for name in NAMES if name in os.environ})


def variables(launcher: Sequence[str]) -> dict[str, str]:
    """Return the variables that `launcher` needs beside those of this process.

    None for srun: it knows its job, and takes such variables for wishes.
    """
    kept: dict[str, str] = json.loads(os.environ.get(KEPT, "{}"))
    ours = kept.get("SLURM_JOB_ID", "") == os.environ.get("SLURM_JOB_ID")
    of_slurm = any(os.path.basename(word) == "srun" for word in launcher)
    return kept if ours and not of_slurm else {}
