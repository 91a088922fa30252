"""Every planned run is a row, and nothing that is missing is a number."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from factory import write_run

from ddp_hpc.config import grid
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.state import State, state_of
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.system.process import process_created

STUDY = """\
name: try
base: {model: mlp, dataset: digits, exchange: ring, world_size: 2, batch_size: 8}
grid:
  learning_rate: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
budget: {steps: 10}
"""


@pytest.fixture
def study_runs(tmp_path) -> StudyRuns:
    """Six planned runs, of which nothing is there yet."""
    file = tmp_path / "try.yaml"
    file.write_text(STUDY)
    found = grid.expand(file)
    planned = tuple(Planned(identity.run_id(spec), spec) for spec in found.specs)
    return StudyRuns(found.study, Store(tmp_path / "results"), planned)


def finish(study_runs: StudyRuns, number: int, **columns: object) -> None:
    one = study_runs.planned[number]
    write_run(study_runs.store.file(one.run), one.spec, {"run": one.run, "status": "ok", **columns})


def attempt(study_runs: StudyRuns, number: int, count: int, **files: dict) -> Path:
    journal = study_runs.store.run(study_runs.planned[number].run).path / "attempts" / str(count)
    journal.mkdir(parents=True)
    for name, content in files.items():
        (journal / f"{name}.json").write_text(json.dumps(content))
    return journal


def started(pid: int, host: str | None = None) -> dict:
    at = datetime.now(UTC).isoformat()
    return {
        "pid": pid,
        "host": host or os.uname().nodename,
        "at": at,
        "process_created": process_created(pid),
    }


def test_every_planned_run_is_a_row_in_the_order_of_the_plan(study_runs):
    finish(study_runs, 3, train_s=2.0, oversubscribed=True)
    finish(study_runs, 1, status="diverged", reason="loss is nan at step 3 (rank 0)")
    attempt(study_runs, 2, 1, ended={"status": "timeout", "reason": "after 60 s"})
    attempt(study_runs, 2, 2, ended={"status": "crashed", "reason": "rank 1: ValueError"})
    runs = study_runs.runs
    assert runs["run"].tolist() == [planned.run for planned in study_runs.planned]
    assert runs["learning_rate"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert runs["status"].tolist() == ["missing", "diverged", "crashed", "ok", "missing", "missing"]
    assert runs["reason"].fillna("").tolist() == [
        "",
        "loss is nan at step 3 (rank 0)",
        "rank 1: ValueError",
        "",
        "",
        "",
    ]
    assert runs["attempts"].tolist() == [0, 0, 2, 0, 0, 0]
    assert study_runs.coverage() == "2 of 6 runs, 4 missing: 3 not yet run, 1 crashed"


def test_nothing_missing_is_a_number_or_a_truth(study_runs):
    finish(study_runs, 0, train_s=2.0, steps=10, oversubscribed=True)
    spec_columns = set(study_runs.planned[1].spec.columns()) | {"run", "spec_hash", "code_hash", "status", "attempts"}
    missing = study_runs.runs.iloc[1]
    assert [name for name in study_runs.runs if not missing.isna()[name] and name not in spec_columns] == []
    assert study_runs.runs["steps"].sum() == 10
    assert study_runs.runs["oversubscribed"].isna().sum() == 5


def test_all_finished_says_only_how_many(study_runs):
    for number in range(6):
        finish(study_runs, number)
    assert study_runs.coverage() == "6 of 6 runs"


def test_runs_that_are_not_planned_stay_out(study_runs):
    finish(study_runs, 0)
    other = StudyRuns(study_runs.study, study_runs.store, study_runs.planned[1:])
    assert other.coverage() == "0 of 5 runs, 5 missing: 5 not yet run"


def test_a_record_in_the_folder_of_another_run_is_missing(study_runs):
    finish(study_runs, 0)
    wrong = study_runs.store.file(study_runs.planned[1].run)
    wrong.parent.mkdir(parents=True)
    wrong.write_bytes(study_runs.store.file(study_runs.planned[0].run).read_bytes())
    assert study_runs.runs["status"].tolist()[:2] == ["ok", "missing"]
    assert f"{wrong} is the record of another run" in study_runs.runs["reason"][1]


def test_an_unreadable_record_is_named_in_the_row_of_its_run_and_the_others_are_read(study_runs):
    finish(study_runs, 0)
    finish(study_runs, 1)
    file = study_runs.store.file(study_runs.planned[0].run)
    file.write_bytes(b"")
    assert study_runs.runs["status"].tolist()[:2] == ["missing", "ok"]
    assert f"{file} is damaged" in study_runs.runs["reason"][0]


@pytest.mark.parametrize(
    "status", ["oom_host", "timeout", "preempted", "node_fail", "launch_failed", "crashed", "rejected"]
)
def test_a_failure_stands_as_its_journal_says(study_runs, status):
    attempt(study_runs, 0, 1, started=started(1, "elsewhere"), ended={"status": status, "reason": "because"})
    assert state_of(study_runs.store, study_runs.planned[0].run) == State(status, "because", 1)


def test_the_last_attempt_counts_by_number_not_by_text(study_runs):
    for count in range(1, 11):
        attempt(study_runs, 0, count, ended={"status": "crashed" if count < 10 else "timeout", "reason": str(count)})
    assert state_of(study_runs.store, study_runs.planned[0].run) == State("timeout", "10", 10)


def test_a_record_outweighs_the_journal(study_runs):
    attempt(study_runs, 0, 1, ended={"status": "crashed", "reason": "once"})
    finish(study_runs, 0)
    assert state_of(study_runs.store, study_runs.planned[0].run) == State("ok", None, 1)


@pytest.mark.parametrize("status", ["ok", "diverged", "oom_gpu"])
def test_a_result_whose_record_was_deleted_is_missing(study_runs, status):
    """Its journal still says that it ended well: without its numbers that is worth nothing."""
    attempt(study_runs, 0, 1, ended={"status": status})
    state = state_of(study_runs.store, study_runs.planned[0].run)
    assert state.status == "missing"
    assert "record was removed" in state.reason
    assert study_runs.coverage().startswith("0 of 6 runs")


def test_a_live_supervisor_is_running_and_a_dead_one_cancelled(study_runs):
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        attempt(study_runs, 0, 1, started=started(sleeper.pid))
        state = state_of(study_runs.store, study_runs.planned[0].run)
        assert state.status == "running"
        assert f"pid {sleeper.pid}" in state.reason
    finally:
        sleeper.kill()
        sleeper.communicate()
    state = state_of(study_runs.store, study_runs.planned[0].run)
    assert state.status == "cancelled"
    assert "without a word" in state.reason


def test_a_process_that_got_a_dead_supervisors_number_is_not_taken_for_it(study_runs):
    other = started(os.getpid())
    attempt(study_runs, 0, 1, started=other | {"process_created": other["process_created"] - 100})
    assert state_of(study_runs.store, study_runs.planned[0].run).status == "cancelled"


def test_a_supervisor_on_another_host_is_believed(study_runs):
    attempt(study_runs, 0, 1, started=started(os.getpid(), "node17"))
    assert state_of(study_runs.store, study_runs.planned[0].run).status == "running"


@pytest.mark.parametrize("content", ["", "{", "null", "[]"])
def test_half_a_journal_is_no_word(study_runs, content):
    (attempt(study_runs, 0, 1) / "ended.json").write_text(content)
    assert state_of(study_runs.store, study_runs.planned[0].run).status == "cancelled"


def test_steps_and_evaluations_come_as_frames(study_runs):
    run = study_runs.planned[0].run
    records.write(
        "steps", {"step": [0, 1], "rank": [0, 0], "warm_up": [True, False]}, study_runs.store.file(run, "steps")
    )
    records.write("evaluations", {"step": [1], "metric": [0.9]}, study_runs.store.file(run, "evaluations"))
    assert study_runs.steps(run)["warm_up"].tolist() == [True, False]
    assert study_runs.evaluations(run)["metric"].tolist() == [0.9]
