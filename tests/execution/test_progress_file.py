"""How far a training is can be seen from outside, and costs its steps nothing."""

import json
import time

import pytest
from sandbox import wait_for

from ddp_hpc.config import spec
from ddp_hpc.execution import progress_file
from ddp_hpc.runs.attempt import Attempt

BASE = {"model": "mlp", "dataset": "digits", "exchange": "none", "world_size": 1, "batch_size": 16}


def of(**keys):
    return spec.load(BASE | {"learning_rate": 0.1, "budget": {"steps": 40}} | keys)


@pytest.mark.parametrize(
    ("budget", "step", "elapsed_s", "left_s"),
    [
        ({"steps": 40}, 10, 5.0, 15.0),
        ({"steps": 40}, 40, 20.0, 0.0),
        ({"seconds": 60}, 10, 5.0, 55.0),
        ({"seconds": 60}, 10, 61.0, 0.0),
    ],
)
def test_the_time_left_follows_from_the_budget(budget, step, elapsed_s, left_s):
    assert progress_file.remaining_s(of(budget=budget), step, elapsed_s) == pytest.approx(left_s)


def test_the_latest_step_is_in_the_file_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_file, "EVERY_S", 0.02)
    file = tmp_path / "progress.json"
    told = progress_file.ProgressFile(Attempt(tmp_path), of())

    time.sleep(0.1)
    assert not file.exists()  # nothing to tell

    for step in range(1, 11):
        told.tell(step, 1 / step, 0.5 * step)
    wait_for(lambda: file.exists() and json.loads(file.read_text())["step"] == 10)

    said = json.loads(file.read_text())
    assert (said["steps_asked"], said["loss"], said["elapsed_s"], said["eta_s"]) == (40, 0.1, 5.0, 15.0)
    assert 1e6 < said["memory_bytes"] < 1e11
    told.close()


def test_a_disk_that_refuses_ends_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_file, "EVERY_S", 0.02)
    told = progress_file.ProgressFile(Attempt(tmp_path / "not there"), of())
    told.tell(10, 0.1, 5.0)
    time.sleep(0.1)
    (tmp_path / "not there").mkdir()
    told.tell(20, 0.1, 5.0)
    wait_for((tmp_path / "not there" / "progress.json").exists)
    told.close()


def test_progress_is_a_line_with_loss_rate_and_time_left_and_the_last_one_stays(capsys):
    progress = progress_file.StepProgress(
        of(world_size=2, exchange="ring"), heading=lambda: "2 ranks", on_terminal=True
    )
    for step in (20, 21, 40):
        progress(step, 0.41, step / 10)
    progress.close()
    first, second, _ = capsys.readouterr().out.split("\n")
    assert first == "2 ranks"
    assert "step 20/40  loss 0.41  3.2e+02 samples/s  ETA 2 s" in second
    assert "step 40/40" in second
    assert "step 21" not in second


def test_without_a_number_of_steps_the_time_left_is_that_of_the_budget(capsys):
    progress = progress_file.StepProgress(of(budget={"seconds": 60}, batch_size=32), on_terminal=False)
    progress(11, 1.0, 11.0)
    progress(12, 1.0, 12.0)  # too early for another line
    assert capsys.readouterr().out.splitlines() == ["step 11  loss 1  32 samples/s  ETA 49 s"]
