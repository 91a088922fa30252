"""Runs that are interrupted from outside, for real, and go on: the same losses, one record, no checkpoint left."""

import json
import os
import signal
from pathlib import Path

import pytest
from faulty import FAULTY, plan_one, record, state, train
from sandbox import Sandbox, wait_for

from ddp_hpc.runs import records

STEPS = 300  # 15 s, unless the model is quick


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    sandbox = Sandbox.make(tmp_path_factory.mktemp("interruption") / "project")
    (sandbox.package / "models" / "faulty.py").write_text(FAULTY)
    yield sandbox
    sandbox.end_all()


@pytest.fixture
def quick(monkeypatch):
    """Let the slow model be quick: `quick(True)`."""

    def set_(yes):
        monkeypatch.setenv("QUICK", "1") if yes else monkeypatch.delenv("QUICK", raising=False)

    return set_


def folder_of(project: Sandbox, run: str) -> Path:
    return project.root / "results" / "runs" / run


def steps_of(folder: Path) -> list[tuple[int, int, float]]:
    """Step, rank and loss of every row of the record, in its order."""
    rows = records.read("steps", folder / "steps.parquet").to_pylist()
    return [(row["step"], row["rank"], row["rank_loss"]) for row in rows]


WHOLE: dict[int, tuple[str, list]] = {}  # by ranks: a run and its steps when it is left alone


def uninterrupted(project: Sandbox, quick, ranks: int) -> tuple[str, list]:
    """Return a run that has not begun, and the steps that it takes in one go."""
    if ranks not in WHOLE:
        run = plan_one(project, f"of_{ranks}", "slow", ranks, steps=STEPS)
        quick(True)
        done, _ = train(project, run, ranks, launcher=launcher(ranks))
        assert done.returncode == 0, done.stderr
        row = record(project, run)
        assert (row["resumes"], row["lost_s"], row["checkpoint_s"]) == (0, 0, 0)
        WHOLE[ranks] = run, steps_of(folder_of(project, run))
    run, steps = WHOLE[ranks]
    for file in folder_of(project, run).glob("*.parquet"):
        file.unlink()
    quick(False)
    return run, steps


def launcher(ranks: int) -> str:
    return f"mpiexec -n {ranks}" if ranks > 1 else ""


def start(project: Sandbox, run: str, ranks: int, *more: str):
    """Start a run and wait until it takes steps; return its supervisor and the journal of its attempt."""
    folder = folder_of(project, run)
    journal = folder / "attempts" / str(len(list((folder / "attempts").iterdir())) + 1)
    supervisor = project.start("ddp-hpc", "train", run, "--launcher", launcher(ranks), *more)
    wait_for(lambda: (journal / "progress.json").exists())
    return supervisor, journal


def goes_on(project: Sandbox, quick, run: str, ranks: int, expected: list) -> None:
    """Train the rest of a run, and look at what it leaves."""
    folder = folder_of(project, run)
    assert (folder / "checkpoint" / "checkpoint.json").exists()
    quick(True)
    done, _ = train(project, run, ranks, launcher=launcher(ranks))
    assert done.returncode == 0, done.stderr
    assert "training goes on after step " in done.stdout
    assert steps_of(folder) == expected  # every step once, with the same losses bit for bit
    row = record(project, run)
    assert (row["steps"], row["resumes"]) == (STEPS, 1)
    assert row["lost_s"] > 0
    # nothing is left out, or there twice
    assert row["train_s"] + row["lost_s"] + row["startup_s"] == pytest.approx(row["wall_s"], rel=0.05)
    assert not (folder / "checkpoint").exists()
    t_s = [step["t_s"] for step in records.read("steps", folder / "steps.parquet").to_pylist() if step["step"] > 0]
    assert t_s == sorted(t_s)
    assert max(t_s) == row["train_s"]


@pytest.mark.parametrize(
    ("ranks", "number", "status"),
    [
        (1, signal.SIGUSR1, "preempted"),
        (2, signal.SIGUSR1, "preempted"),
        (3, signal.SIGUSR1, "preempted"),
        (2, signal.SIGTERM, "cancelled"),
    ],
)
def test_a_signal_to_the_supervisor_leaves_a_checkpoint_from_which_the_run_goes_on(
    project, quick, ranks, number, status
):
    run, expected = uninterrupted(project, quick, ranks)
    supervisor, _ = start(project, run, ranks)

    supervisor.send_signal(number)

    assert supervisor.wait(40) == 1
    found = state(project, run)
    assert found.status == status
    assert found.reason.startswith(signal.Signals(number).name)
    assert "the next attempt goes on after step" in found.reason
    goes_on(project, quick, run, ranks, expected)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_the_ranks_as_srun_gives_it_does_the_same(project, quick, number):
    run, expected = uninterrupted(project, quick, 2)
    supervisor, _ = start(project, run, 2)

    assert len(of_the_step(project)) == 4
    for pid in of_the_step(project):
        os.kill(pid, number)

    assert supervisor.wait(40) == 1
    assert state(project, run).status == "preempted"
    goes_on(project, quick, run, 2, expected)


def of_the_step(project: Sandbox) -> list[int]:
    """The processes that srun would signal: all that the launcher has started, shepherds and ranks."""
    commands = project.processes().items()
    return [pid for pid, command in commands if command.split()[1:3] == ["-m", "ddp_hpc.execution.rank_watchdog"]]


def test_ranks_that_are_killed_leave_the_last_checkpoint_from_which_the_run_goes_on(project, quick):
    run, expected = uninterrupted(project, quick, 2)
    supervisor, journal = start(project, run, 2, "--checkpoint-every-s", "0.7")
    manifest = folder_of(project, run) / "checkpoint" / "checkpoint.json"
    wait_for(manifest.exists)

    for file in journal.glob("rank-*.pid"):
        os.kill(int(file.read_text()), signal.SIGKILL)

    assert supervisor.wait(40) == 1
    assert state(project, run).status == "crashed"
    assert json.loads(manifest.read_text())["step"] < STEPS
    goes_on(project, quick, run, 2, expected)


def test_a_time_limit_leaves_a_checkpoint_from_which_the_run_goes_on(project, quick):
    run, expected = uninterrupted(project, quick, 2)
    done, _ = train(project, run, 2, "--time-limit-min", str(limit_min(project, run)))

    assert done.returncode == 1
    found = state(project, run)
    assert found.status == "timeout"
    assert "the next attempt goes on after step" in found.reason
    goes_on(project, quick, run, 2, expected)


def limit_min(project: Sandbox, run: str) -> float:
    """Return a limit that ends a run while it takes steps: some seconds after it has started."""
    startup_s = max(json.loads(file.read_text()).get("startup_s", 0) for file in ended(project, run))
    return (startup_s + 6) / 60 / 0.9


def ended(project: Sandbox, run: str) -> list[Path]:
    return list(folder_of(project, run).glob("attempts/*/ended.json"))


def test_a_driver_that_was_killed_has_left_checkpoints_and_the_same_command_goes_on(project, quick):
    """No finished step is lost where the supervisors outlive the driver by a moment."""
    run, expected = uninterrupted(project, quick, 2)
    before = len(ended(project, run))
    driver = project.start("ddp-hpc", "run", "of_2", start_new_session=True)
    wait_for(lambda: (folder_of(project, run) / "attempts" / str(before + 1) / "progress.json").exists())
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()

    quick(True)
    again = project.call("ddp-hpc", "run", "of_2")

    assert again.returncode == 0, again.stderr
    assert steps_of(folder_of(project, run)) == expected
    assert record(project, run)["resumes"] == 1
    assert not (folder_of(project, run) / "checkpoint").exists()


def test_a_checkpoint_of_other_code_is_named_and_the_run_starts_anew(project, quick):
    run, expected = uninterrupted(project, quick, 1)
    supervisor, _ = start(project, run, 1)
    supervisor.send_signal(signal.SIGUSR1)
    supervisor.wait(40)
    manifest = folder_of(project, run) / "checkpoint" / "checkpoint.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"code_hash": "0123456789"}))

    quick(True)
    done, _ = train(project, run, 1, launcher="")

    assert done.returncode == 0
    assert "is not used, training starts anew: its code_hash is 0123456789, not " in done.stdout
    assert steps_of(folder_of(project, run)) == expected
    assert record(project, run)["resumes"] == 0
    assert not manifest.parent.exists()
