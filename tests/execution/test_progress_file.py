"""How far a training is can be seen from outside, and costs its steps nothing."""

import json
import time

import pytest
from sandbox import wait_for

from ddp_hpc.config import spec
from ddp_hpc.execution import progress_file

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
    told = progress_file.ProgressFile(file, of())

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
    told = progress_file.ProgressFile(tmp_path / "not there" / "progress.json", of())
    told.tell(10, 0.1, 5.0)
    time.sleep(0.1)
    (tmp_path / "not there").mkdir()
    told.tell(20, 0.1, 5.0)
    wait_for((tmp_path / "not there" / "progress.json").exists)
    told.close()


def test_progress_updates_one_line_on_a_terminal(capsys):
    progress = progress_file.ProgressLine(of(world_size=2, exchange="ring"), on_terminal=True)
    for step in (10, 20, 40):
        progress(step, 0.41, step / 10)
    progress.close()
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.count("\r") == 3
    assert "step 20/40  loss 0.41  3.2e+02 samples/s  ETA 2 s" in out


def test_progress_is_sparse_in_a_log(capsys):
    progress = progress_file.ProgressLine(of(world_size=2, exchange="ring", budget={"seconds": 60}), on_terminal=False)
    for second in range(1, 60):
        progress(second, 1.0, float(second))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[1] == "step 11  loss 1  32 samples/s  ETA 49 s"
