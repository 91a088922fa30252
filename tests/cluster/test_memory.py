"""A job that takes more memory than it asked for, where Slurm ends it and reports no more than `FAILED`."""

import tempfile
from pathlib import Path

import pytest
from cluster import PACE, Cluster
from conftest import MACHINE
from faulty import FAULTY
from sandbox import Sandbox

from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.runs.ending import classify, written

pytestmark = pytest.mark.slurm


@pytest.fixture
def killing(cluster, tmp_path):
    """A cluster that kills jobs for memory by looking at them: real ones have control groups, which need systemd."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder), MORE="JobAcctGatherParams=OverMemoryKill")
        project = Sandbox.make(tmp_path / "project", started.through)
        project.append("workflow/Snakefile", PACE)
        (project.root / "config" / "machines" / "test.yaml").write_text(MACHINE)
        project.edit("profiles/slurm/profile.yaml", "machine: example", "machine: test")
        (project.package / "models" / "faulty.py").write_text(FAULTY)
        yield project
        project.end_all()
        started.stop()


def test_a_run_that_was_killed_for_memory_says_so_and_passes_with_twice_as_much(killing):
    killing.study(
        "hoards",
        "base: {dataset: digits, exchange: none, world_size: 1, batch_size: 16, learning_rate: 0.1,\n"
        "  threads_per_rank: 1, device: cpu, model: {name: faulty, fault: hoard}}\n"
        "budget: {steps: 40}\ntables: [runs]\nfigures: []\n",
    )

    done = killing.call("ddp-hpc", "run", "hoards", "--profile", "profiles/slurm")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 run to try again: 1 oom_host" in done.stdout
    (row,) = killing.status("hoards").values()
    assert (row["status"], row["attempts"]) == ("ok", 2)
    first = classify(written(Attempt(killing.root / "results" / "runs" / row["run"] / "attempts" / "1")))
    assert "used more memory than it may (1.05 GB)" in first.reason
    assert "exceeded memory limit" in first.reason
