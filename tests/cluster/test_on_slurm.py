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


def logs(project):
    """What the trainings and the workflow said last."""
    files = sorted((project.root / "logs").glob("*/*.log"))
    return "".join(f"\n{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)


def test_one_two_and_four_ranks_packed_and_spread_end_with_the_page(project, cluster):
    """N tasks and n GPUs in all, on the nodes that the placement says; one rank gives the same columns."""
    project.study(
        "ranks",
        BASE + "budget: {steps: 20}\ntables: [runs]\nfigures: [loss_curves]\ngrid:\n"
        "  - {exchange: none, world_size: 1}\n"
        "  - {exchange: ring, world_size: [2, 4], placement: packed}\n"
        "  - {exchange: ring, placement: spread, zip: {world_size: [2, 4], ranks_per_node: [1, 2]}}\n",
    )

    before = cluster.jobs()
    done = project.call(*RUN, "ranks", *ON_SLURM)

    assert done.returncode == 0, done.stdout + done.stderr + logs(project)
    assert "5 of 5 runs finished" in done.stdout
    assert (project.root / "results" / "studies" / "ranks" / "report" / "index.html").exists()
    table = pd.read_parquet(project.root / "results" / "studies" / "ranks" / "tables" / "runs.parquet")
    assert set(table["status"]) == {"ok"}
    assert set(table["placement_verified"].dropna()) == {True}
    assert list(table["placement_verified"].isna()) == list(table["placement"].isna())
    jobs = {
        job["Comment"]: number for number, job in cluster.jobs().items() if number not in before
    }  # the last of each
    granted = {}  # by ranks and placement: tasks, nodes, GPUs
    for row in table.astype({"placement": object}).fillna({"placement": "alone"}).itertuples():
        number = jobs.pop(f"rule_train_wildcards_{row.run}")
        job = cluster.jobs()[number]
        granted[row.world_size, row.placement] = job["NumTasks"], job["NumNodes"], cluster.gpus(number)
    assert granted == {
        (1, "alone"): ("1", "1", 1),
        (2, "packed"): ("2", "1", 2),
        (4, "packed"): ("4", "1", 4),
        (2, "spread"): ("2", "2", 2),
        (4, "spread"): ("4", "2", 4),
    }
    assert jobs == {}  # tables, figures and page are no jobs


def test_mpiexec_within_a_job_starts_ranks_on_all_its_nodes(project):
    """The plugin takes from a job the variables in which mpiexec finds its nodes."""
    project.study(
        "ranks",
        BASE + "budget: {steps: 20}\ntables: [runs]\nfigures: []\n"
        "grid: {exchange: ring, world_size: 2, placement: spread}\n",
    )

    done = project.call(*RUN, "ranks", *ON_SLURM, "--launcher", "mpiexec")

    assert done.returncode == 0, done.stdout + done.stderr + logs(project)
    table = pd.read_parquet(project.root / "results" / "studies" / "ranks" / "tables" / "runs.parquet")
    assert list(table["placement_verified"]) == [True]


def test_a_launcher_that_mpi_does_not_understand_ends_the_run_before_it_trains(project):
    """Without PMI each process would be rank 0 of 1, and all would write the same record."""
    project.append("config/machines/test.yaml", "retries: {launch_failed: 0}\n")
    project.study(
        "ranks", BASE + "budget: {steps: 20}\ntables: []\nfigures: []\ngrid: {exchange: ring, world_size: 2}\n"
    )

    done = project.call(*RUN, "ranks", *ON_SLURM, "--launcher", "srun --mpi=none")

    assert done.returncode == 1
    (row,) = project.status("ranks").values()
    assert row["status"] == "launch_failed"
    assert "expected 2 ranks, MPI reports 1 (launcher or MPI build mismatch)" in row["reason"]
