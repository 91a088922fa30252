"""Runs on a real Slurm go on from where they were interrupted, with the same losses."""

import pytest
from faulty import FAULTY
from sandbox import Sandbox, wait_for

from ddp_hpc import records

pytestmark = pytest.mark.slurm

STUDY = (
    "base: {dataset: digits, model: {name: faulty, fault: slow}, exchange: ring, batch_size: 16, learning_rate: 0.1,\n"
    "       threads_per_rank: 1, momentum: 0.9, world_size: 2, placement: spread}\n"
    "budget: {steps: 400}\ntables: [runs]\nfigures: []\n"  # 20 s, unless the model is quick
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


def progressing(project: Sandbox, run: str) -> bool:
    """Whether the second attempt at a run takes steps: the first was the one that nobody interrupted."""
    return (project.root / "results" / "runs" / run / "attempts" / "2" / "progress.json").exists()


def test_a_run_that_gets_the_signal_before_the_limit_goes_on_in_the_next_pass(study, cluster):
    project, run, expected = study
    driver = project.start(*RUN)
    wait_for(lambda: progressing(project, run), 120)
    job = max(number for number, job in cluster.jobs().items() if run in job["Comment"])

    cluster.run("scancel", "--signal=USR1", str(job))  # as `--signal=USR1@60` has it sent: to all steps

    assert driver.wait(240) == 0
    assert (row(project, run)["resumes"], row(project, run)["hosts"]) == (1, 2)
    assert steps(project, run) == expected
    assert not (project.root / "results" / "runs" / run / "checkpoint").exists()
