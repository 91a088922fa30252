"""Whether a job for each run or one job for all pays is told from the runs' times and sizes."""

from dataclasses import replace

import pytest

from ddp_hpc.config.machine import Machine
from ddp_hpc.slurm.packing import lines, packings
from ddp_hpc.slurm.resources import Request

MACHINE = Machine.model_validate(
    {"partitions": {"gpu": {"nodes": 8, "cores_per_node": 64, "gpus_per_node": 4, "memory_mb_per_node": 400_000,
                            "max_minutes": 60}}}
)  # fmt: skip
ONE_GPU = Request(
    partition="gpu", nodes=1, tasks=1, ranks_per_node=1, gpus=1, gpu_type=None, cores_per_rank=16, mem_mb=1000,
    runtime_min=60, exclusive=False,
)  # fmt: skip


def of(count: int, seconds: float, **fields):
    asked = {f"run{number}": replace(ONE_GPU, **fields) for number in range(count)}
    return packings("study", asked, dict.fromkeys(asked, seconds), MACHINE)


def test_many_short_runs_of_one_gpu_pay_in_one_job_that_fills_its_node():
    (found,) = of(216, 10)
    assert found.better == "shared"
    computing = 216 * 10 / 4  # four runs fill a node
    assert computing < found.shared_node_s < found.own_node_s
    assert found.own_node_s - found.starts_node_s == pytest.approx(computing)
    assert found.line == (
        "sbatch --partition=gpu --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=16 --time=20 "
        "--wrap 'ddp-hpc run study --profile profiles/allocation'"
    )


def test_one_long_run_beside_short_ones_would_leave_most_of_a_shared_job_idle():
    asked = {"long": ONE_GPU, "short": ONE_GPU}
    (found,) = packings("study", asked, {"long": 3600, "short": 10}, MACHINE)
    assert found.better == "own"
    assert found.shared_node_s == pytest.approx(3600, rel=0.01)  # a whole node for the time of the longest
    assert found.own_node_s < 3600 / 3  # a quarter of a node each


def test_whole_nodes_cost_whole_nodes_and_are_not_shared():
    (found,) = of(3, 60, exclusive=True)
    (quarters,) = of(3, 60)
    assert found.own_node_s == pytest.approx(4 * quarters.own_node_s)
    assert found.shared_node_s < found.own_node_s
    assert found.better == "own"
    assert "memory: exclusive" in lines([found], 3)[0]


def test_the_job_has_as_many_nodes_as_its_largest_run_and_asks_for_no_more_time_than_there_is():
    (found,) = of(50, 300, nodes=2, tasks=8, ranks_per_node=4, gpus=8)
    (of_one_node,) = of(50, 300, tasks=4, ranks_per_node=4, gpus=4)
    assert (of_one_node.nodes, found.nodes) == (1, 2)
    assert found.own_node_s == pytest.approx(2 * of_one_node.own_node_s)
    assert "--nodes=2" in found.line
    assert "--time=60 " in found.line


def test_runs_whose_time_is_unknown_are_left_out_and_said_to_be():
    asked = {"a": ONE_GPU, "b": ONE_GPU, "c": ONE_GPU}
    found = packings("study", asked, {"a": 10.0, "b": 10.0}, MACHINE)
    assert lines(found, 3)[0] == "2 of 3 runs, whose time is known, on gpu: jobs of their own pay"
    nothing = packings("study", asked, {}, MACHINE)
    assert lines(nothing, 3) == ["whether one job for all pays is not known: no runs like them have finished"]
    assert lines([], 0) == []
