"""What the shell of a user or a site has set changes neither what a job is given nor how its ranks are started."""

import json
import os
import subprocess
import sys

import factory
import pytest
from sandbox import Sandbox

from ddp_hpc.config.machine import MachineError
from ddp_hpc.execution import mpi_environment
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.runs.project import Project
from ddp_hpc.slurm import job_environment
from ddp_hpc.slurm.job_environment import without_shapes
from ddp_hpc.workflow import driver, plan

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
    kept = {job_environment.KEPT: json.dumps({"SLURM_JOB_ID": "7", "SLURM_GPUS_PER_NODE": "4"})}
    assert job_environment.environment(launcher, JOB | wishes | kept) == JOB | kept


def test_mpiexec_is_told_of_its_job_and_of_no_other():
    kept = {job_environment.KEPT: json.dumps({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})}
    stripped = {"SLURM_JOB_ID": "7"}
    assert job_environment.environment(["mpiexec"], stripped | kept)["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert "SLURM_JOB_NODELIST" not in job_environment.environment(["mpiexec"], {"SLURM_JOB_ID": "8"} | kept)


def test_a_run_of_one_partition_is_not_trained_in_a_job_of_another(tmp_path, monkeypatch, capsys):
    """Its record would say that it was there."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "fast")
    grid = [
        {
            "exchange": "none",
            "world_size": 1,
            "batch_size": 16,
            "learning_rate": 0.1,
            "partition": [None, "fast", "slow"],
        }
    ]
    study_runs = factory.planned(tmp_path, grid=grid)
    here = driver._of_this_partition(study_runs.planned)
    assert [one.spec.partition for one in here] == [None, "fast"]
    said = capsys.readouterr().err
    assert said.startswith("1 run left for another job")
    assert "it is for partition slow, and Slurm job 7 is in partition fast" in said

    plan.prepare(study_runs)
    slow = next(one for one in study_runs.planned if one.spec.partition == "slow")
    outcome = supervise(study_runs.store.run(slow.run).path, [], tmp_path / "data")
    assert (outcome.status, "partition slow" in outcome.reason) == ("launch_failed", True)

    monkeypatch.delenv("SLURM_JOB_PARTITION")  # as in a job of the plugin, which has asked for the right one
    assert driver._of_this_partition(study_runs.planned) == list(study_runs.planned)


def test_a_shared_job_has_to_be_a_job(tmp_path, monkeypatch):
    """Outside of one, each srun would be a job that the driver knows nothing of."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    project = Sandbox.make(tmp_path)
    project.study("one", "base: {dataset: digits, model: mlp, batch_size: 16, learning_rate: 0.1}\nbudget: {steps: 4}\n"
                  "grid: {exchange: none, world_size: 1}\n")  # fmt: skip
    machine = "partitions: {cpu: {nodes: 1, cores_per_node: 2, memory_mb_per_node: 2000}}\nlauncher: srun\n"
    (tmp_path / "config" / "machines" / "here.yaml").write_text(machine)
    project.edit("profiles/allocation/profile.yaml", "machine: example", "machine: here")
    with pytest.raises(MachineError, match=r"profiles/allocation is for a driver within a Slurm job"):
        driver.run(Project(tmp_path), "one", "profiles/allocation")
    assert not (tmp_path / "results" / "runs").exists()


LOADED = """
import os, sys
from ddp_hpc.execution import mpi_environment
cores = os.sched_getaffinity(0)
if sys.argv[1] == "arranged":
    mpi_environment.set_threads(os.environ, 1, cores)
import torch
torch.ones(1_000_000).exp().sum()
print(len(cores), len(os.sched_getaffinity(0)))
"""


def test_ranks_that_share_cores_are_not_all_bound_to_the_first_of_them():
    """GNU's OpenMP, as torch loads it, would do that to every rank where the shell has OMP_PROC_BIND."""

    def cores_after_loading(how: str) -> list[int]:
        environment = os.environ | {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "1"}
        said = subprocess.run([sys.executable, "-c", LOADED, how], env=environment, capture_output=True, check=True)
        return [int(word) for word in said.stdout.split()]

    before, after = cores_after_loading("arranged")
    assert after == before
    if before > 1:
        assert cores_after_loading("as it is") == [before, 1]


def test_threads_are_as_many_as_the_rank_is_given_and_its_own_cores_stay_bound():
    shell = {"OMP_NUM_THREADS": "64", "OMP_THREAD_LIMIT": "1", "OMP_PROC_BIND": "close", "PATH": "/bin"}
    note = mpi_environment.set_threads(shell, 4, range(4))
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "4")
    assert shell == numbers | {"OMP_PROC_BIND": "close", "PATH": "/bin"}
    assert note.startswith("OMP_THREAD_LIMIT of the environment left out")
    assert mpi_environment.set_threads(shell, 4, range(8)).startswith("OMP_PROC_BIND of the environment left out")
    assert mpi_environment.set_threads(shell, 4, range(8)) is None
