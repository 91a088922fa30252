"""Where a run stands when Slurm has a say: queued, running or how it ended, and never an end that nobody has seen."""

import json
import os
import time

import fake_slurm
import pytest
from fake_slurm import line, says, shown

from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.ending import Ending
from ddp_hpc.runs.state import State, keep_end, keep_slurm_ends, record_is_late, state_of
from ddp_hpc.slurm import client
from ddp_hpc.system.deadlines import SILENT_S

NO_ANSWER = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"


@pytest.fixture
def store(tmp_path) -> Store:
    """A project that uses Slurm, in which run `one` is planned."""
    (tmp_path / "results" / "runs" / "one").mkdir(parents=True)
    (tmp_path / "results" / "slurm.json").write_text("{}")
    return Store(tmp_path / "results")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    client.forget()
    yield lambda **commands: fake_slurm.install(tmp_path / "bin", monkeypatch, commands)
    client.forget()


def attempt(
    store: Store, number: int, job: str | None, silent_s: float = 0.0, cluster: str | None = None, **files: dict
):
    journal = store.run("one").path / "attempts" / str(number)
    journal.mkdir(parents=True)
    started = {"at": "2026-01-31T08:00:00+00:00", "host": "node1", "pid": 4, "process_created": 5, "slurm_job": job}
    started |= {"slurm_cluster": cluster}
    for name, content in ({"started": started} | files).items():
        (journal / f"{name}.json").write_text(json.dumps(content))
    os.utime(journal / "started.json", (time.time() - silent_s,) * 2)
    return journal


def test_a_job_that_waits_is_queued_with_slurms_reason(store, cluster):
    cluster(squeue=says(line(17, "PENDING", folder=store.root.parent, reason="QOSMaxJobsPerUserLimit")))
    assert state_of(store, "one") == State("queued", "Slurm job 17 waits: QOSMaxJobsPerUserLimit")
    assert state_of(store, "two") == State("missing")


def test_a_job_of_the_same_run_in_another_project_is_not_ours(store, cluster):
    cluster(squeue=says(line(17, "PENDING", folder="/elsewhere")))
    assert state_of(store, "one") == State("missing")


def test_a_job_that_has_begun_runs_before_its_supervisor_says_so(store, cluster):
    cluster(squeue=says(line(17, "RUNNING", folder=store.root.parent)))
    assert state_of(store, "one").status == "running"
    assert "its ranks not yet" in state_of(store, "one").reason


def test_a_retry_that_waits_counts_more_than_the_failure_before(store, cluster):
    attempt(store, 1, "16", ended={"status": "timeout", "reason": "too slow"})
    cluster(squeue=says(line(16, "TIMEOUT", folder=store.root.parent)))
    assert state_of(store, "one") == State("timeout", "too slow", 1)
    client.forget()
    cluster(
        squeue=says(
            "\n".join([line(17, "PENDING", folder=store.root.parent), line(16, "TIMEOUT", folder=store.root.parent)])
        )
    )
    assert state_of(store, "one").status == "queued"


def test_a_running_one_tells_step_and_eta(store, cluster):
    journal = attempt(store, 1, "17", progress={"step": 30, "steps_asked": 100, "eta_s": 7.0})
    cluster(squeue=says(line(17, "RUNNING", folder=store.root.parent)))
    state = state_of(store, "one")
    assert (state.status, state.progress["step"], state.job) == ("running", 30, "17")
    os.utime(journal / "started.json", (1e9, 1e9))
    assert "no sign of life for" in state_of(store, "one").reason


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "A_STATE_OF_NEXT_YEAR"])
def test_a_supervisor_whose_job_is_not_over_is_not_over(store, cluster, state):
    attempt(store, 1, "17")
    cluster(squeue=says(line(17, state, folder=store.root.parent)))
    assert state_of(store, "one").status == "running"


@pytest.mark.parametrize("here", ["PENDING", "FAILED"])
def test_a_run_on_another_cluster_is_none_of_a_job_with_its_number_here(store, cluster, here):
    attempt(store, 1, "17", cluster="there")
    listed = line(17, here, "another", folder=store.root.parent)
    cluster(squeue=says(listed), scontrol=f'[ "$2" = config ] || exit 1\n{says("ClusterName = here")}')
    assert state_of(store, "one").status == "running"
    assert "Slurm job 17 of there" in state_of(store, "one").reason


def test_a_job_that_slurm_has_put_back_into_the_queue_is_queued(store, cluster):
    attempt(store, 1, "17")
    cluster(squeue=says(line(17, "PENDING", folder=store.root.parent, reason="BeginTime")))
    assert state_of(store, "one") == State("queued", "Slurm job 17 waits: BeginTime, after Slurm had ended it", 1)


@pytest.mark.parametrize("squeue", [NO_ANSWER, says("Welcome to this cluster!")])
def test_while_slurm_does_not_answer_nothing_has_ended(store, cluster, squeue):
    attempt(store, 1, "17", silent_s=10 * SILENT_S)
    cluster(squeue=squeue, scontrol="exit 1")
    state = state_of(store, "one")
    assert state.status == "running"
    assert "Slurm does not answer: not known whether it still runs" in state.reason


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("NODE_FAIL", "node_fail"),
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "timeout"),
        ("PREEMPTED", "preempted"),
        ("OUT_OF_MEMORY", "oom_host"),
        ("FAILED", "crashed"),
    ],
)
def test_of_a_supervisor_without_a_word_slurm_tells_the_end_and_it_is_kept(store, cluster, said, status):
    attempt(store, 1, "17")
    cluster(squeue=says(line(17, said, folder=store.root.parent)), scontrol=says(shown(17, said, "ExitCode=0:9")))
    state = state_of(store, "one")
    assert (state.status, state.attempts, state.job) == (status, 1, "17")
    assert "Slurm job 17" in state.reason

    keep_slurm_ends(store, ["one"])

    client.forget()
    cluster(squeue="exit 0", scontrol="exit 1")  # it has forgotten
    assert state_of(store, "one") == State(status, state.reason, 1)
    assert state_of(store, "one").job is None


def test_memory_near_the_limit_is_a_lack_of_memory_though_slurm_says_failed(store, cluster):
    attempt(store, 1, "17", progress={"memory_bytes": 500_000_000}, launch={"world_size": 2})
    cluster(squeue=says(line(17, "FAILED")), scontrol=says(shown(17, "FAILED", "ExitCode=0:9")))
    state = state_of(store, "one")
    assert state.status == "oom_host"
    assert "1.00 of 1.05 GB in use: most likely" in state.reason


@pytest.mark.parametrize(
    ("said", "status"), [("TIMEOUT", "timeout"), ("PREEMPTED", "preempted"), ("NODE_FAIL", "node_fail")]
)
def test_a_supervisor_that_only_saw_a_signal_learns_from_slurm_why(store, cluster, said, status):
    saw = {"status": "cancelled", "reason": "SIGTERM: asked to end", "signal": "SIGTERM", "wall_s": 60.0}
    journal = attempt(store, 1, "17", ended=saw)
    cluster(squeue=says(line(17, said)), scontrol=says(shown(17, said)))
    state = state_of(store, "one")
    assert (state.status, state.job) == (status, "17")
    keep_slurm_ends(store, ["one"])
    assert json.loads((journal / "ended.json").read_text()) == saw  # whose word that is
    client.forget()
    cluster(squeue="exit 0")
    assert state_of(store, "one").status == status


@pytest.mark.parametrize("squeue", [NO_ANSWER, "exit 0", says(line(17, "FAILED")), says(line(17, "COMPLETING"))])
def test_what_a_supervisor_says_stands_where_slurm_knows_no_better(store, cluster, squeue):
    attempt(store, 1, "17", ended={"status": "cancelled", "reason": "SIGTERM: asked to end", "signal": "SIGTERM"})
    cluster(squeue=squeue, scontrol=says(shown(17, "FAILED", "ExitCode=1:0")))
    assert state_of(store, "one") == State("cancelled", "SIGTERM: asked to end", 1)


@pytest.mark.parametrize(("said", "status"), [("CANCELLED", "cancelled"), ("NODE_FAIL", "node_fail")])
def test_a_job_that_never_came_to_its_supervisor_is_an_attempt_once_kept(store, cluster, said, status):
    cluster(squeue=says(line(17, said, folder=store.root.parent)), scontrol="exit 1")
    state = state_of(store, "one")
    assert (state.status, state.attempts) == (status, 1)
    keep_slurm_ends(store, ["one"])
    client.forget()
    cluster(squeue="exit 0", scontrol="exit 1")
    assert state_of(store, "one") == State(status, state.reason, 1)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "Building DAG of jobs...\nInputFunctionException in rule train in file train.smk, line 14:\nError:\n"
            "  KeyError: 'ring-w3'\nWildcards:\n  run=ring-w3\nTraceback:\n  File targets.py\n",
            "says: InputFunctionException in rule train in file train.smk, line 14: Error: KeyError: 'ring-w3'",
        ),
        ("/bin/sh: 1: python: not found\nslurmstepd: error: gone\nmore\n", "says: slurmstepd: error: gone more"),
        ("bash: module: command not found\n", "says: bash: module: command not found"),
        ("something else\nthe last line\n", "says: the last line"),
    ],
)
def test_of_a_job_that_never_came_to_its_supervisor_its_log_says_why(store, cluster, tmp_path, log, said):
    (tmp_path / "job.log").write_text(log)
    told = shown(17, "FAILED", f"ExitCode=1:0 StdOut={tmp_path}/job.log Power=")
    cluster(squeue=says(line(17, "FAILED", folder=store.root.parent)), scontrol=says(told))
    state = state_of(store, "one")
    assert state.status == "launch_failed"
    assert state.reason.endswith(f"before its supervisor began; its log, {tmp_path}/job.log, {said}")


def test_the_words_of_a_supervisor_count_more_than_those_of_slurm(store, cluster):
    journal = attempt(store, 1, "17")
    cluster(squeue=says(line(17, "FAILED")), scontrol=says(shown(17, "FAILED")))
    keep_slurm_ends(store, ["one"])
    assert state_of(store, "one").status == "crashed"
    (journal / "ended.json").write_text('{"status": "oom_host", "reason": "rank 1: MemoryError"}')  # seen late
    assert state_of(store, "one").reason == "rank 1: MemoryError"


def test_a_refused_submission_is_kept_as_an_attempt_of_its_own(store, cluster):
    attempt(store, 1, "17", ended={"status": "timeout", "reason": "too slow"})
    cluster(squeue="exit 0")
    keep_end(store, "one", Ending("rejected", "sbatch: error: invalid partition"))
    assert state_of(store, "one") == State("rejected", "sbatch: error: invalid partition", 2)


def test_slurm_is_not_asked_about_projects_that_do_not_use_it(store, cluster, tmp_path):
    (store.root / "slurm.json").unlink()
    attempt(store, 1, None, silent_s=10 * SILENT_S)
    cluster(squeue=f"touch {tmp_path}/asked")
    assert state_of(store, "one").status == "cancelled"
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(("ended", "late"), [({"status": "ok"}, True), ({"status": "crashed"}, False), ({}, False)])
def test_a_record_is_late_if_its_run_has_ended_well_and_it_is_not_there(store, cluster, ended, late):
    """Outputs seen late."""
    assert not record_is_late(store, "one")
    attempt(store, 1, "17", ended=ended)
    assert record_is_late(store, "one") is late
    (store.run("one").path / "run.parquet").touch()
    assert not record_is_late(store, "one")
