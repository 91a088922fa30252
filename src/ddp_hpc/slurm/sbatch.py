"""The request of a run as arguments of sbatch and of the launcher, for snakemake-executor-plugin-slurm."""

import os
import shlex
from typing import Any

from ddp_hpc.config.machine import Machine, MachineError
from ddp_hpc.slurm.resources import Request
from ddp_hpc.system.deadlines import WARNED_S


def launch_line(request: Request, launcher: str) -> str:
    """Return the command that starts the ranks within the job; empty for one rank, which needs no launcher.

    `srun` is told everything: a job of the plugin has no SLURM_* variables from which it could take its defaults.
    """
    if request.tasks == 1:
        return ""
    if "srun" not in (os.path.basename(word) for word in shlex.split(launcher)):
        return f"{launcher} -n {request.tasks}"
    return f"{launcher} {_srun(request)}"


def step_line(request: Request, launcher: str) -> str:
    """Return the command that starts the ranks, also a single one, as a step beside others in one job.

    The step has cores and GPUs of its own (`--exact`), the memory belongs to all. It starts when there is room. Only
    srun places steps: any other launcher is a MachineError.
    """
    if "srun" not in (os.path.basename(word) for word in shlex.split(launcher)):
        raise MachineError(
            f"launcher: given {launcher!r}; expected with `allocation: true`: srun, which places runs in the job"
        )
    if not request.gpus:  # else the step would have all GPUs of the job, and the others wait
        return f"env -u SLURM_GPUS -u SLURM_GPUS_PER_NODE {launcher} --exact --mem=0 --gres=none {_srun(request)}"
    gpus = f"--gpus={request.gpus}"
    if request.even:
        gpus += f" --gpus-per-node={request.gpus // request.nodes}"
    return f"{launcher} --exact --mem=0 {gpus} {_srun(request)}"


def _srun(request: Request) -> str:
    how = f"--ntasks-per-node={request.ranks_per_node} --distribution=block"
    if not request.even:
        how = "--distribution=block,Pack"  # else srun puts equally many on each node
    return f"-N {request.nodes} -n {request.tasks} -c {request.cores_per_rank} {how}"


WARNED_FROM_MIN = 10  # jobs shorter than that would lose too much of their time

# the resources of the rule `train` on a machine
SBATCH = (
    *("slurm_partition", "slurm_account", "qos", "constraint", "nodes", "tasks", "gpu", "gpu_model", "tasks_per_gpu"),
    *("cpus_per_task", "mem_mb", "runtime", "slurm_extra", "mpi"),
)


def sbatch(request: Request, machine: Machine, launcher: str) -> dict[str, Any]:
    """Return the resources from which snakemake-executor-plugin-slurm 2.8 makes its sbatch line; None: not set.

    Its rules: `mpi` wants either `tasks` or `tasks_per_node`, more than one; with `gpu`, `tasks` would count per GPU,
    which `tasks_per_gpu=0` turns off. What it has no resource for goes through `slurm_extra`. Without `--gpus-per-node`
    Slurm gives 2 ranks on each of 2 nodes 3 GPUs on one and 1 on the other.
    """
    extra = []
    if request.even:
        extra.append(f"--ntasks-per-node={request.ranks_per_node}")
    if request.even and request.gpus:
        kind = f"{request.gpu_type}:" if request.gpu_type else ""
        extra.append(f"--gpus-per-node={kind}{request.gpus // request.nodes}")
    if request.exclusive:
        extra.append("--exclusive")
    if request.runtime_min >= WARNED_FROM_MIN:
        extra.append(f"--signal=USR1@{WARNED_S}")  # to the ranks, as srun started them
    return {
        "slurm_partition": request.partition,
        "slurm_account": machine.account,
        "qos": machine.qos,
        "constraint": machine.constraint,
        "nodes": request.nodes,
        "tasks": request.tasks,
        "gpu": request.gpus,
        "gpu_model": request.gpu_type,
        "tasks_per_gpu": 0,
        "cpus_per_task": request.cores_per_rank,
        "mem_mb": request.mem_mb,
        "runtime": request.runtime_min,
        "slurm_extra": " ".join([*extra, machine.extra]).strip(),
        "mpi": launch_line(request, launcher),
    }
