"""Runs on a real Slurm go on from where they were interrupted, with the same losses."""

import re
from pathlib import Path

import pytest
from faulty import FAULTY
from sandbox import Sandbox, wait_for

from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.runs.ending import Ending, classify, written

pytestmark = pytest.mark.slurm

STUDY = (
    "base: {dataset: digits, model: {name: faulty, fault: slow}, exchange: ring, batch_size: 16, learning_rate: 0.1,\n"
    "       threads_per_rank: 1, momentum: 0.9, world_size: 2, placement: spread}\n"
    "budget: {steps: 300}\ntables: [runs]\nfigures: []\n"  # 15 s, unless the model is quick
)
RUN = ("ddp-hpc", "run", "resumed", "--profile", "profiles/slurm")


@pytest.fixture
def study(project, monkeypatch) -> tuple[Sandbox, str, list]:
    """A project whose study is to be trained, its run, and the steps of that when nobody interrupts it."""
    (project.package / "models" / "faulty.py").write_text(FAULTY)
    project.study("resumed", STUDY)
    monkeypatch.setenv("QUICK", "1")
    done = project.call(*RUN)
    assert done.returncode == 0, done.stderr
    monkeypatch.delenv("QUICK")
    (run,) = project.status("resumed")
    expected = steps(project, run)
    for file in (project.root / "results" / "runs" / run).glob("*.parquet"):
        file.unlink()
    return project, run, expected


def steps(project: Sandbox, run: str) -> list[tuple[int, int, float]]:
    """Step, rank and loss of every row of a run's record, in its order."""
    rows = records.read("steps", project.root / "results" / "runs" / run / "steps.parquet").to_pylist()
    return [(row["step"], row["rank"], row["rank_loss"]) for row in rows]


def row(project: Sandbox, run: str) -> dict:
    return records.read("run", project.root / "results" / "runs" / run / "run.parquet").to_pylist()[0]


def checkpointed(project: Sandbox, run: str) -> bool:
    return (project.root / "results" / "runs" / run / "checkpoint" / "checkpoint.json").exists()


def newest(project: Sandbox, run: str) -> Path:
    """The last attempt at a run; the first was the one that nobody interrupted."""
    return max((project.root / "results" / "runs" / run / "attempts").iterdir(), key=lambda folder: int(folder.name))


def ended(attempt: Path) -> Ending:
    ending = classify(written(Attempt(attempt)))
    assert ending is not None
    return ending


def test_a_run_that_loses_a_node_and_has_to_make_room_goes_on_each_time_with_the_same_losses(study, cluster):
    project, run, expected = study
    project.append("config/machines/test.yaml", "checkpoint_every_s: 1\n")
    driver = project.start(*RUN)
    wait_for(lambda: checkpointed(project, run), 120)

    cluster.kill_node("node2")
    wait_for(lambda: project.status("resumed")[run]["status"] != "running", 90)
    lost = newest(project, run)
    cluster.start_node("node2")
    # it may take one that does not start: MPI on a node that has just come up
    wait_for(lambda: newest(project, run) != lost and (newest(project, run) / "progress.json").exists(), 150)
    told = newest(project, run)
    cluster.run("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")

    assert driver.wait(240) == 0
    assert ended(lost).status == "node_fail"
    assert ended(told).status == "preempted"
    assert re.search(r"Slurm job \d+ had to make room for another.*goes on after step", ended(told).reason)
    assert cluster.jobs("pending,running") == {}  # Slurm has queued none again
    assert (row(project, run)["resumes"], row(project, run)["hosts"]) == (2, 2)
    assert steps(project, run) == expected
    assert not (project.root / "results" / "runs" / run / "checkpoint").exists()
