"""One supervisor at a time works at a run, and a dead one is not taken for alive."""

import json
import os
import subprocess
import threading
import time

import fake_slurm
import pytest
from fake_slurm import line, says, shown

from ddp_hpc.runs import lease
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.slurm import client
from ddp_hpc.system import deadlines
from ddp_hpc.system.process import process_created


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    client.forget()
    monkeypatch.setattr(deadlines, "PREDECESSOR_S", 0.2)
    yield lambda **commands: fake_slurm.install(tmp_path / "bin", monkeypatch, commands)
    client.forget()


def attempt(run, number, silent_s=0.0, **started):
    """A journal whose last sign of life is so old."""
    journal = run / "attempts" / str(number)
    journal.mkdir(parents=True)
    at = {"at": "2026-01-31T08:00:00+00:00", "host": "node1", "pid": 4, "process_created": 5, "slurm_job": None}
    (journal / "started.json").write_text(json.dumps(at | started))
    os.utime(journal / "started.json", (time.time() - silent_s,) * 2)
    return Attempt(journal)


HERE = {"host": os.uname().nodename, "pid": os.getpid(), "process_created": process_created(os.getpid())}
OLD = 10 * deadlines.SILENT_S


@pytest.mark.parametrize(
    ("squeue", "scontrol", "silent_s", "expected"),
    [
        (says(line(17, "RUNNING")), "exit 1", OLD, True),  # suspended by Slurm, say
        (says(line(17, "PENDING")), "exit 1", OLD, True),
        (says(line(17, "NODE_FAIL")), "exit 1", 0, False),
        ("exit 0", "exit 1", 0, False),  # Slurm has forgotten it
        ("exit 0", says(shown(17, "RUNNING")), 0, True),  # of another user
        ("exit 1", "exit 1", 0, True),  # the controller is away
        ("exit 1", "exit 1", OLD, None),
    ],
)
def test_on_another_host_slurm_knows_and_the_heartbeat_counts_when_it_does_not_answer(
    tmp_path, cluster, squeue, scontrol, silent_s, expected
):
    cluster(squeue=squeue, scontrol=scontrol)
    assert lease.alive(attempt(tmp_path, 1, silent_s, slurm_job="17")) is expected


CONFIG = "Configuration data as of 2026-01-31T08:00:00\nClusterName             = here\nSlurmctldPort = 6817"


@pytest.mark.parametrize(
    ("squeue", "silent_s", "expected"),
    [("exit 0", 0, True), (says(line(17, "FAILED")), 0, True), (says(line(17, "RUNNING")), OLD, False)],
)
def test_numbers_of_jobs_on_another_cluster_mean_nothing_here(tmp_path, cluster, squeue, silent_s, expected):
    cluster(squeue=squeue, scontrol=f'[ "$2" = config ] || exit 1\n{says(CONFIG)}')

    assert lease.alive(attempt(tmp_path, 1, silent_s, slurm_job="17", slurm_cluster="there")) is expected
    assert lease.alive(attempt(tmp_path, 2, silent_s, slurm_job="17", slurm_cluster="here")) is not expected


@pytest.mark.parametrize(("silent_s", "expected"), [(0, True), (OLD, False)])
def test_an_allocation_for_many_runs_outlives_the_supervisor_of_one(tmp_path, cluster, silent_s, expected):
    cluster(squeue=says(line(17, "RUNNING").replace("rule_train_wildcards_one", "")))
    assert lease.alive(attempt(tmp_path, 1, silent_s, slurm_job="17")) is expected


@pytest.mark.parametrize("ahead_s", [-86400, -600, 600, 86400])
def test_a_clock_that_is_not_the_file_systems_makes_no_live_run_dead(tmp_path, cluster, monkeypatch, ahead_s):
    """Dates of files are compared with each other: they are a server's, or another host's."""
    cluster()
    ours = time.time
    monkeypatch.setattr(time, "time", lambda: ours() + ahead_s)
    journal = attempt(tmp_path, 1, ahead_s)  # so that its date is right now
    before = set(tmp_path.rglob("*"))
    assert lease.alive(journal) is True
    os.utime(journal.path / "started.json", (ours() - OLD,) * 2)
    assert lease.alive(journal) is False
    assert set(tmp_path.rglob("*")) == before  # to ask for the time leaves nothing


@pytest.mark.parametrize(("silent_s", "expected"), [(0, True), (OLD, False)])
def test_of_a_process_in_another_container_only_the_heartbeat_tells(tmp_path, cluster, silent_s, expected):
    cluster()
    assert lease.alive(attempt(tmp_path, 1, silent_s, **HERE, process_space="another")) is expected
    other = attempt(tmp_path, 2)
    if expected:
        with pytest.raises(lease.HeldError, match="attempt 1"):
            lease.take(other)
    else:
        lease.take(other)


@pytest.mark.parametrize(("silent_s", "expected"), [(0, True), (OLD, False)])
@pytest.mark.parametrize("job", [None, "17"])
def test_without_slurm_only_the_heartbeat_tells(tmp_path, cluster, job, silent_s, expected):
    cluster()
    journal = attempt(tmp_path, 1, silent_s, slurm_job=job)
    assert lease.alive(journal) is expected
    journal.beat()
    assert lease.alive(journal) is True


def test_on_this_host_the_process_tells_whatever_slurm_says(tmp_path, cluster):
    cluster(squeue=says(line(17, "RUNNING")))
    assert lease.alive(attempt(tmp_path, 1, OLD, **HERE)) is True
    assert lease.alive(attempt(tmp_path, 2, 0, **HERE | {"process_created": 1}, slurm_job="17")) is False


def test_a_second_supervisor_is_refused_and_told_who_works(tmp_path, cluster):
    cluster(squeue=says(line(17, "RUNNING")))
    attempt(tmp_path, 1, slurm_job="17")
    with pytest.raises(lease.HeldError, match=r"attempt 1: since 2026-.* on node1, pid 4, Slurm job 17"):
        lease.take(attempt(tmp_path, 2, **HERE))


def test_of_several_that_start_at_once_the_first_goes_on(tmp_path, cluster):
    cluster()
    (tmp_path / "attempts" / "1").mkdir(parents=True)  # has not written its journal yet
    second, third = attempt(tmp_path, 2, **HERE), attempt(tmp_path, 3, **HERE)
    for journal in (second, third):
        with pytest.raises(lease.HeldError, match=r"attempt [12]: "):
            lease.take(journal)
    lease.take(attempt(tmp_path, 0, **HERE))


def test_one_that_is_about_to_leave_this_host_is_waited_for(tmp_path, cluster, monkeypatch):
    cluster()
    monkeypatch.setattr(deadlines, "PREDECESSOR_S", 30)
    sleeper = subprocess.Popen(["/bin/sleep", "1"])
    attempt(tmp_path, 1, **HERE | {"pid": sleeper.pid, "process_created": process_created(sleeper.pid)})
    threading.Thread(target=sleeper.wait).start()
    lease.take(attempt(tmp_path, 2, **HERE))
    assert sleeper.poll() == 0


def test_attempts_that_have_ended_or_died_are_no_hindrance(tmp_path, cluster):
    cluster(squeue="exit 0", scontrol="exit 1")
    (attempt(tmp_path, 1, **HERE).path / "ended.json").write_text("{}")
    attempt(tmp_path, 2, **HERE | {"process_created": 1})
    attempt(tmp_path, 3, OLD)
    attempt(tmp_path, 4, slurm_job="17")
    lease.take(attempt(tmp_path, 5, **HERE))


def test_an_attempt_that_has_no_journal_yet_has_just_begun(tmp_path):
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    assert lease.alive(Attempt(folder))
    long_ago = time.time() - deadlines.SILENT_S - 1
    os.utime(folder, (long_ago, long_ago))
    assert not lease.alive(Attempt(folder))
