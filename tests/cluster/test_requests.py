"""Slurm grants what the sbatch lines of `tests/slurm/test_resources.py` ask for, and ranks start where they should."""

import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from test_resources import LINES, line, machine, run

from ddp_hpc.config.machine import read
from ddp_hpc.slurm.resources import request
from ddp_hpc.slurm.sbatch import launch_line

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def wide(cluster) -> Iterator[Cluster]:
    """The eight nodes of 64 cores and 4 GPUs that the table is about; a partition `cpu` of the same."""
    with tempfile.TemporaryDirectory(prefix="wide-", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder), NODES="8", CPUS="64", GPUS="4", MEMORY="400000", PARTITIONS="gpu:1440 cpu:2880")
        yield started
        started.stop()


def submit(wide: Cluster, arguments: str, payload: str, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return what Slurm says of a job when it is over, and the lines that it printed.

    The payload has as few variables of Slurm as the plugin leaves to a job.
    """
    bare = f'env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID" {payload}'
    said = wide.run(
        "sbatch", "--wait", "--parsable", f"--output={folder / 'out'}", *shlex.split(arguments), "--wrap", bare
    )
    shown = wide.run("scontrol", "--details", "show", "job", said.strip())
    return dict(re.findall(r"(\S+?)=(\S+)", shown)), (folder / "out").read_text().splitlines()


WHERE = "sh -c 'echo $SLURM_PROCID $SLURM_NODEID $CUDA_VISIBLE_DEVICES'"


@pytest.mark.parametrize("name", LINES)
def test_slurm_grants_what_the_line_asks_for(wide, tmp_path, name):
    spec, arguments, started = LINES[name]
    asked = request(spec, machine())

    job, said = submit(wide, arguments, f"{started.replace('--mpi=pmix', '--mpi=none')} {WHERE}", tmp_path)

    assert job["JobState"] == "COMPLETED", said
    assert int(job["NumNodes"]) == asked.nodes
    assert int(job["NumTasks"]) == asked.tasks
    assert int(job["CPUs/Task"]) == asked.cores_per_rank
    assert int(job["NumCPUs"]) == asked.tasks * asked.cores_per_rank
    assert job["MinMemoryNode"] == f"{asked.mem_mb}M"
    assert (job["Partition"], job["TimeLimit"]) == (asked.partition, "01:00:00")
    assert job.get("TresPerJob") == (f"gres:gpu:{asked.gpus}" if asked.gpus else None)
    if spec.world_size == 1:
        return
    places = sorted((int(rank), node, gpus) for rank, node, gpus in (f"{text} ".split(" ")[:3] for text in said))
    assert [rank for rank, _, _ in places] == list(range(asked.tasks))
    of_node = list(Counter(node for _, node, _ in places).values())
    full, rest = divmod(asked.tasks, asked.ranks_per_node)
    assert of_node == [asked.ranks_per_node] * full + [rest] * (rest > 0)
    assert [node for _, node, _ in places] == sorted(node for _, node, _ in places), "consecutive ranks sit together"
    if asked.gpus:
        visible = {node: len(gpus.split(",")) for _, node, gpus in places}
        assert list(visible.values()) == of_node, "as many GPUs on a node as ranks"


def test_exclusive_keeps_others_off_the_node(wide, tmp_path):
    alone = machine(memory="exclusive")
    arguments, started = line(request(run(2), alone), alone)
    job, said = submit(wide, arguments, f"{started.replace('pmix', 'none')} {WHERE}", tmp_path)
    assert job["JobState"] == "COMPLETED", said
    assert (job["NumNodes"], job["NumTasks"], job["NumCPUs"], job["OverSubscribe"]) == ("1", "2", "64", "NO")
    assert job["MinMemoryNode"] == "400000M"


def test_without_gpus_per_node_slurm_deals_gpus_out_unevenly(wide, tmp_path):
    """Why the line has it: this is what the plugin's own resources would give two nodes of two ranks."""
    arguments = "-p gpu -t 60 --mem 1000 --nodes=2 --ntasks=4 --cpus-per-task=16 --gpus=4"
    started = launch_line(request(run(4, placement="spread", ranks_per_node=2), machine()), "srun --mpi=none")
    job, said = submit(wide, arguments, f"{started} {WHERE}", tmp_path)
    assert job["JobState"] == "COMPLETED", said
    assert sorted({len(text.split()[-1].split(",")) for text in said}) == [1, 3]


def test_the_doctor_proposes_a_machine_file_that_says_what_the_cluster_has(project):
    said = project.call("ddp-hpc", "doctor", "--machine")
    assert said.returncode == 0, said.stderr
    file = project.root / "config" / "machines" / "proposed.yaml"
    file.write_text(said.stdout)

    proposed = read(file)

    assert proposed.partition(None)[0] == "main"
    limits = {name: one.max_minutes for name, one in proposed.partitions.items()}
    assert limits == {"main": 60, "short": 5, "urgent": 5}
    nodes = proposed.partitions["main"]
    assert (nodes.nodes, nodes.cores_per_node, nodes.gpus_per_node, nodes.memory_mb_per_node) == (2, 8, 4, 8000)
    assert proposed.launcher.endswith("srun --kill-on-bad-exit=1 --mpi=pmix")
