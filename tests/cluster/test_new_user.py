"""Somebody else's cluster, with other partitions and GPUs: the three steps of config/README.md are enough."""

import tempfile
from pathlib import Path

import pytest
from cluster import PACE, Cluster
from sandbox import Sandbox

pytestmark = pytest.mark.slurm


@pytest.fixture
def theirs(cluster):
    """A second cluster, beside the first: three nodes with two GPUs each, partitions of other names."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder), NODES="3", CPUS="6", GPUS="2", PARTITIONS="dev:30 a100:120")
        yield started
        started.stop()


def test_the_machine_file_that_doctor_proposes_runs_a_study(theirs, tmp_path):
    project = Sandbox.make(tmp_path / "project", theirs.through)
    project.append("workflow/Snakefile", PACE)
    project.study(
        "new",
        "base: {dataset: digits, model: {name: mlp, widths: [8]}, batch_size: 16, learning_rate: 0.1}\n"
        "budget: {steps: 20}\ntables: [runs]\nfigures: []\ngrid: {exchange: ring, world_size: 4, partition: a100}\n",
    )

    proposed = project.call("ddp-hpc", "doctor", "--machine")
    assert proposed.returncode == 0, proposed.stderr
    (project.root / "config" / "machines" / "theirs.yaml").write_text(proposed.stdout)
    project.edit("profiles/slurm/profile.yaml", "machine: example", "machine: theirs")
    done = project.call("ddp-hpc", "run", "new", "--profile", "profiles/slurm")

    jobs = theirs.jobs()
    said = f"{done.stdout}{done.stderr}\n{proposed.stdout}\n{jobs}"
    assert done.returncode == 0, said
    (row,) = project.status("new").values()
    # more than one job, if a launch failed: Open MPI crashes now and then as it starts on several nodes
    assert (row["status"], 1 <= len(jobs) <= row["attempts"]) == ("ok", True), said
    for number, job in jobs.items():
        assert (job["NumTasks"], job["NumNodes"], theirs.gpus(number)) == ("4", "2", 4), said  # two GPUs to a node
        assert "Partition=a100" in theirs.run("scontrol", "show", "job", str(number))
