"""On a machine of 4-GPU nodes, and of the sources' own, the large studies ask for the sources' nodes and ranks."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from sandbox import Sandbox
from test_resource_requests import resources

from ddp_hpc.config import grid
from ddp_hpc.config.machine import Machine
from ddp_hpc.slurm.resources import request

STUDIES = Path(__file__).parents[2] / "config" / "studies"


def node(gpus, cores=64, nodes=64):
    return {"nodes": nodes, "cores_per_node": cores, "gpus_per_node": gpus, "memory_mb_per_node": 500_000}


OF_FOUR = {"partitions": {"gpu": node(4)}}
OF_EIGHT = {"partitions": {"gpu": node(8)}}
TAURUS = {"partitions": {"alpha": node(8), "gpu2": node(4), "hpdlf": node(3, cores=12)}, "default_partition": "alpha"}


def seats(study, machine, **fields):
    """(nodes, ranks, ranks on the fullest node, GPUs) of each run of a study whose spec has these fields."""
    machine = Machine.model_validate(machine)
    return sorted(
        {
            (one.nodes, one.tasks, one.ranks_per_node, one.gpus)
            for spec in grid.expand(STUDIES / f"{study}.yaml").specs
            if all(getattr(spec, name) == value for name, value in fields.items())
            for one in [request(spec, machine)]
        }
    )


@pytest.mark.parametrize("study", ["cifar10_alexnet", "fashion_mnist_alexnet", "cifar10_server"])
def test_workers_of_the_report_have_a_node_and_one_of_its_four_gpus_each(study):
    """Section 6: although multiple GPUs exist on a single node, only one per node is utilised."""
    assert seats(study, OF_FOUR) == [(workers, workers, 1, workers) for workers in (1, 2, 4, 8)]


def test_forty_gpus_of_the_post_are_five_nodes_of_eight():
    whole = {"world_size": 40}
    assert seats("language_model", OF_EIGHT, **whole) == [(5, 40, 8, 40)]
    assert seats("language_model", OF_FOUR, **whole) == [(10, 40, 4, 40)]


def test_the_run_that_the_slides_profile_has_six_gpus_of_two_nodes_of_hpdlf():
    packed = {"partition": "hpdlf", "placement": "packed"}
    assert seats("strain_stress", TAURUS, world_size=6, **packed) == [(2, 6, 3, 6)]
    assert seats("strain_stress", TAURUS, world_size=3, **packed) == [(1, 3, 3, 3)]
    assert seats("strain_stress", TAURUS, world_size=8, partition="alpha", placement="spread") == [(8, 8, 1, 8)]
    assert seats("strain_stress", TAURUS, world_size=16, partition="alpha", placement="packed") == [(2, 16, 8, 16)]


def test_full_nodes_of_the_lecture_and_of_the_promise_on_resnets():
    assert seats("schemes", OF_FOUR, world_size=16) == [(4, 16, 4, 16)]
    assert seats("schemes", OF_FOUR, world_size=4, placement="packed") == [(1, 4, 4, 4)]
    assert seats("schemes", OF_FOUR, world_size=4, placement="spread") == [(4, 4, 1, 4)]
    assert seats("gpu_direct", OF_FOUR, placement="spread") == [(4, 4, 1, 4)]
    assert seats("resnet", OF_FOUR)[-1] == (32, 128, 4, 128)


def test_list_plan_and_a_dry_run_show_them(tmp_path):
    project = Sandbox.make(tmp_path)
    shutil.copy(STUDIES / "cifar10_server.yaml", project.root / "config" / "studies")

    listed = project.call("ddp-hpc", "list")
    planned = project.call("ddp-hpc", "plan", "cifar10_server", "--profile", "profiles/slurm")
    dry = project.call("snakemake", "-n", "trained", "--config", "studies=[cifar10_server]", "machine=example")

    assert re.search(r"cifar10_server\D+33\b", listed.stdout), listed.stdout + listed.stderr
    for nodes, jobs in ((1, 6), (2, 9), (4, 9), (8, 9)):
        ranks = f"{nodes} rank{'s' * (nodes > 1)}, {nodes} GPU{'s' * (nodes > 1)}"
        assert f"  {jobs} jobs: {nodes} node{'s' * (nodes > 1)} of gpu, {ranks}" in planned.stdout, planned.stdout
    assert dry.returncode == 0, dry.stdout + dry.stderr
    rows = [(row["nodes"], row["tasks"], row["gpu"]) for row in resources(dry.stdout + dry.stderr)]
    assert Counter(rows) == {("1", "1", "1"): 6, **{(n, n, n): 9 for n in "248"}}
