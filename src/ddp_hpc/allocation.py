"""What Slurm says of the job that we run in, for launchers other than its own.

`mpiexec` finds the nodes of its job, and how many ranks each takes, in variables SLURM_*. The executor plugin takes
them from what it starts in a job: Open MPI's mpiexec then fails, MPICH's puts all ranks on the first node and says
nothing. So the workflow, which is read before that happens, keeps them under another name.
"""

import json
import os
from collections.abc import Sequence

KEPT = "DDP_HPC_SLURM"


def keep() -> None:
    """Keep the SLURM_* of this process under another name, if it runs in a job and they are all there."""
    if "SLURM_JOB_NODELIST" in os.environ:
        os.environ[KEPT] = json.dumps({name: text for name, text in os.environ.items() if name.startswith("SLURM_")})


def variables(launcher: Sequence[str]) -> dict[str, str]:
    """Return the variables that `launcher` needs beside those of this process.

    None for srun: it knows its job, and takes such variables for wishes.
    """
    kept: dict[str, str] = json.loads(os.environ.get(KEPT, "{}"))
    ours = kept.get("SLURM_JOB_ID", "") == os.environ.get("SLURM_JOB_ID")
    of_slurm = any(os.path.basename(word) == "srun" for word in launcher)
    return kept if ours and not of_slurm else {}
