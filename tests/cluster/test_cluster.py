"""The cluster that the other tests run on is what they take it for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm


def test_ranks_on_two_nodes_are_one_mpi_world_and_see_different_hosts(cluster):
    code = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.size, c.allreduce(c.rank), MPI.Get_processor_name())"
    launch = [
        "env", "PMIX_MCA_psec=native", "srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2",
        sys.executable, "-c", code,
    ]  # fmt: skip

    try:
        said = cluster.run(*launch)
    except AssertionError:  # Open MPI crashes now and then as it starts on several nodes: `rank_watchdog` says more
        said = cluster.run(*launch)

    assert sorted(said.splitlines()) == ["4 6 node1", "4 6 node1", "4 6 node2", "4 6 node2"]


def test_no_two_tasks_get_the_same_gpu_of_a_node(cluster):
    said = cluster.run(
        "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--gpus-per-task=1",
        "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES",
    )  # fmt: skip

    assert sorted(said.splitlines()) == sorted(f"{node} {gpu}" for node in cluster.nodes for gpu in range(4))


def test_no_more_gpus_are_granted_than_there_are(cluster):
    with pytest.raises(AssertionError, match="configuration is not available"):
        cluster.run("srun", "--nodes=1", "--gpus=5", "true")


def test_what_slurm_adds_to_a_run_is_measured_in_both_ways(cluster):
    """`make bench-slurm`, with 2 runs for 216, on a cluster of its own."""
    script = Path(__file__).with_name("overhead.py")
    path = os.pathsep.join([str(script.parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, script, "2"], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout

    assert re.findall(r"2 runs, (.*): \d+ s", said) == ["each a job of its own", "all in one job"]
