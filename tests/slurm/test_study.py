"""A study on a real Slurm: every run a job, to the page."""

import pandas as pd
import pytest

pytestmark = pytest.mark.slurm

RUN = ("ddp-hpc", "run")
ON_SLURM = ("--profile", "profiles/slurm")
BASE = """\
base:
  {dataset: digits, model: {name: mlp, widths: [8]}, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1}
"""


def test_one_two_and_four_ranks_end_with_the_page(project, cluster):
    """A5: a single rank is no MPI job, and gives the same columns."""
    project.study(
        "ranks",
        BASE + "grid: [{exchange: none, world_size: 1}, {exchange: ring, world_size: [2, 4]}]\n"
        "budget: {steps: 20}\ntables: [runs]\nfigures: [loss_curves]\n",
    )

    done = project.call(*RUN, "ranks", *ON_SLURM)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 runs finished" in done.stdout
    rows = project.status("ranks")
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert (project.root / "results" / "studies" / "ranks" / "report" / "index.html").exists()
    table = pd.read_parquet(project.root / "results" / "studies" / "ranks" / "tables" / "runs.parquet")
    assert sorted(table["world_size"]) == [1, 2, 4]
    ours = {job["Comment"]: job for job in cluster.jobs().values() if job["Name"].startswith("ddp-hpc_")}
    assert ours.keys() == {f"rule_train_wildcards_{run}" for run in rows}  # each once; tables and page are no jobs
    assert sorted(job["NumTasks"] for job in ours.values()) == ["1", "2", "4"]
