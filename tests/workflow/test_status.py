"""Where a study stands at a glance, and what it has cost."""

import json

import factory
import pytest

from ddp_hpc.runs.state import State
from ddp_hpc.workflow import plan, status

GRID = [{"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]}]


@pytest.fixture
def study_runs(tmp_path):
    """Five runs: one finished, four of which nothing is there."""
    study_runs = factory.planned(tmp_path, grid=GRID)
    factory.write(study_runs, study_runs.planned[0], factory.realistic(study_runs.planned[0].spec))
    return study_runs


def journal(study_runs, number, attempt, **files):
    folder = study_runs.store.run(study_runs.planned[number].run).path / "attempts" / str(attempt)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_node_hours_are_those_of_all_attempts_times_their_nodes(study_runs):
    at = "2026-01-31T08:00:00+00:00"
    journal(study_runs, 0, 1, started={"at": at}, ended={"status": "ok", "wall_s": 3600})  # one node: nothing was asked
    journal(study_runs, 1, 1, started={"at": at, "request": {"nodes": 2}}, ended={"status": "timeout", "wall_s": 1800})
    journal(study_runs, 1, 2, started={"at": at, "request": {"nodes": 4}}, ended={"status": "crashed", "wall_s": 900})
    killed = {"status": "node_fail", "at": "2026-01-31T08:30:00+00:00"}  # told by Slurm
    journal(study_runs, 2, 1, started={"at": at, "request": {"nodes": 3}}, ended=killed)
    journal(study_runs, 3, 1, started={"slurm_job": None}, ended={"status": "rejected"})  # never began

    assert status.overview(study_runs)["node_hours"]["used"] == pytest.approx(1 + 2 * 0.5 + 4 * 0.25 + 3 * 0.5)


def test_what_is_expected_counts_the_time_left_of_those_that_run(study_runs):
    runs = [planned.run for planned in study_runs.planned]
    study_runs.store.run(runs[1]).path.mkdir()
    (study_runs.store.run(runs[1]).path / "request.json").write_text('{"nodes": 2}')
    states = {run: State("missing") for run in runs} | {
        runs[0]: State("ok"),
        runs[1]: State("running", progress={"eta_s": 1800.0}),
    }

    hours = status.node_hours(study_runs, states)

    assert hours == {"used": 0.0, "expected": 2 * 0.5, "of_runs": 1, "to_do": 4}


def test_of_an_interrupted_run_the_rest_is_to_come_and_the_reason_says_where_it_goes_on(study_runs, monkeypatch):
    """Slurm knows of no checkpoints: it only says that the job was cancelled."""
    run, spec = study_runs.planned[1].run, study_runs.planned[1].spec
    at = "2026-01-31T08:00:00+00:00"
    told = {"status": "cancelled", "reason": "Slurm job 17 was cancelled by user root"}
    journal(study_runs, 1, 1, started={"at": at}, ended=told)
    items = [plan.Item(one, "new", "", plan.Estimate(3600, 3600, 3600, 1)) for one in study_runs.planned[:2]]
    others = [plan.Item(one, "new", "", None) for one in study_runs.planned[2:]]
    monkeypatch.setattr(plan, "plan", lambda study_runs: items + others)

    anew = status.overview(study_runs)
    (study_runs.store.run(run).path / "checkpoint").mkdir()
    step = spec.steps_asked * 3 // 4
    (study_runs.store.run(run).path / "checkpoint" / "checkpoint.json").write_text(json.dumps({"step": step}))
    goes_on = status.overview(study_runs)

    assert [found["node_hours"]["expected"] for found in (anew, goes_on)] == [1.0, pytest.approx(0.25, rel=0.01)]
    assert [found["runs"][1]["reason"] for found in (anew, goes_on)] == [
        told["reason"],
        f"{told['reason']}; the next attempt goes on after step {step}",
    ]


def test_the_lines_say_what_runs_waits_and_has_failed(study_runs):
    runs = [planned.run for planned in study_runs.planned]
    rows = [
        {"run": runs[0], "status": "ok", "reason": None, "attempts": 1},
        {"run": runs[1], "status": "running", "reason": "since 8:00", "attempts": 1, "step": 120, "steps_asked": 400}
        | {"eta_s": 12.0},
        {"run": runs[2], "status": "queued", "reason": "Slurm job 17 waits: Resources", "attempts": 0},
        {"run": runs[3], "status": "queued", "reason": "Slurm job 18 waits: Resources", "attempts": 1},
        {"run": runs[4], "status": "timeout", "reason": "too slow", "attempts": 2},
    ]
    counts = {"ok": 1, "running": 1, "queued": 2, "timeout": 1}
    hours = {"used": 0.5, "expected": 12.0, "of_runs": 3, "to_do": 4}

    waiting = {runs[4]: "a-run of /projects/b (pid 4 of jo, since 2026-01-31T08:00:00+00:00)"}

    said = status.lines(study_runs, {"counts": counts, "node_hours": hours, "runs": rows, "waiting": waiting})

    assert said == [
        "made_up: 1 of 5 runs finished: 1 ok, 1 timeout, 2 queued, 1 running",
        "node-hours: 0.500 used, about 12.0 to come for 3 runs, without 1 like which none has finished",
        f"  running       {runs[1]} (learning_rate 0.2)  step 120 of 400, 12 s left  since 8:00",
        f"  timeout       {runs[4]} (learning_rate 0.5) (2 attempts)  too slow",
        f"  waiting       {runs[4]}: on this machine trains {waiting[runs[4]]}",
        "  queued        2 runs: Resources",
    ]
