"""What the shell of a user or a site has set changes neither what a job is given nor how its ranks are started."""

import json

import pytest

from ddp_hpc import allocation
from ddp_hpc.sbatch import without_shapes

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "2"}


def test_what_would_give_jobs_another_size_is_left_out_and_named():
    """Seen on Slurm 22.05: the first submits every run twice, the second gives it a quarter of its cores."""
    asked = {"SBATCH_ARRAY_INX": "1-2", "SBATCH_OVERCOMMIT": "1", "SBATCH_GRES": "gpu:1", "SBATCH_EXCLUSIVE": "user"}
    sites = {"SBATCH_ACCOUNT": "a", "SBATCH_QOS": "q", "SBATCH_RESERVATION": "r", "PATH": "/bin", "SLURM_CONF": "c"}
    shell = asked | sites
    note = without_shapes(shell)
    assert shell == sites
    assert note.startswith("SBATCH_ARRAY_INX, SBATCH_EXCLUSIVE, SBATCH_GRES, SBATCH_OVERCOMMIT of your shell are left")
    assert without_shapes(shell) is None


@pytest.mark.parametrize("launcher", [["srun", "--mpi=pmix"], ["env", "A=b", "/opt/slurm/bin/srun"]])
def test_srun_knows_its_job_and_takes_no_wishes_of_the_shell_or_of_the_step_around_the_driver(launcher):
    """A driver within `srun --pty bash` has its one core in SLURM_CPU_BIND: all ranks would share it."""
    wishes = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPU_BIND_LIST": "0x1",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_GPUS_PER_TASK": "1",
        "SRUN_CPUS_PER_TASK": "1",
    }
    kept = {allocation.KEPT: json.dumps({"SLURM_JOB_ID": "7", "SLURM_GPUS_PER_NODE": "4"})}
    assert allocation.environment(launcher, JOB | wishes | kept) == JOB | kept


def test_mpiexec_is_told_of_its_job_and_of_no_other():
    kept = {allocation.KEPT: json.dumps({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})}
    stripped = {"SLURM_JOB_ID": "7"}
    assert allocation.environment(["mpiexec"], stripped | kept)["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert "SLURM_JOB_NODELIST" not in allocation.environment(["mpiexec"], {"SLURM_JOB_ID": "8"} | kept)
