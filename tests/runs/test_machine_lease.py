"""Projects of one machine train one after the other, in the order in which they came; who waits can say for whom."""

import os
import threading
from pathlib import Path

import pytest

from ddp_hpc.runs import machine_lease
from ddp_hpc.runs.machine_lease import WAITING, beside, enter, entries, held, held_alone, holder, leave, waiting
from ddp_hpc.system.files import read_json, write_json

A, B, C = (Path("/projects") / name for name in "abc")


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine of its own, on which nobody trains."""
    monkeypatch.setenv(machine_lease.FOLDER, str(tmp_path / "trainings"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(machine_lease, "POLL_S", 0.01)
    monkeypatch.setattr(machine_lease, "die_with_parent", lambda number: None)
    return tmp_path / "trainings"


def changed(entry, **told):
    write_json(entry.file, read_json(entry.file) | told)
    return next((one for one in entries() if one.file == entry.file), None)


def test_who_came_later_waits_for_other_projects_alone_and_in_turn():
    first, same, second, third = enter(A, "one"), enter(A, "two"), enter(B, "three", WAITING), enter(C, "four", WAITING)
    assert [str(holder(one)) if holder(one) else None for one in (first, same)] == [None, None]
    assert holder(second) == first
    leave(first)
    assert holder(second) == same
    leave(same)
    assert holder(second) is None
    assert holder(third) == second  # which has its turn first
    assert waiting(C) == [("four", second)]
    assert waiting(B) == []
    later = enter(A, "five", WAITING)
    assert holder(later) == second  # a project with many runs does not keep others waiting


def test_a_training_begins_when_the_other_has_ended_and_says_for_whom_it_waits(capfd):
    other, begun = enter(A, "one"), threading.Event()

    def train():
        with held(B, "two"):
            begun.set()
            assert [entry.file.suffix for entry in entries()] == [".training"]

    thread = threading.Thread(target=train)
    thread.start()
    told = ""
    while not told.endswith("\n"):  # it has looked, and found the other one
        thread.join(0.01)
        told += capfd.readouterr().err
    assert [run for run, _ in waiting(B)] == ["two"]
    assert not begun.is_set()
    leave(other)
    thread.join(60)
    assert begun.is_set()
    assert entries() == []
    assert told.startswith("waiting: on this machine trains one of /projects/a (pid ")
    assert f"(pid {os.getpid()} of " in told
    assert ", since 20" in told


def test_a_benchmark_waits_for_its_own_project_too_and_trainings_of_its_own_do_not_wait_for_it(machine):
    first = enter(A, "one")
    second, third = enter(A, "ddp-hpc bench", WAITING, alone=True), enter(A, "two", WAITING)
    assert (holder(second), holder(third)) == (first, second)
    leave(first)
    assert (holder(second), holder(third)) == (None, second)
    leave(second)
    leave(third)
    with held_alone(A, "ddp-hpc bench exchange"):
        assert machine_lease.folder() != machine
        with held(A, "part of it"):  # would wait for ever
            assert [entry.told["run"] for entry in entries()] == ["part of it"]
    assert machine_lease.folder() == machine
    assert entries() == []


def test_the_dead_hinder_nobody(machine):
    dead = changed(enter(A, "one"), process_created=1)
    assert dead is None
    assert list(machine.iterdir()) == []


def test_trainings_on_other_cores_do_not_wait():
    first, second = enter(A, "one"), enter(B, "two", WAITING)
    assert holder(changed(second, cores=[10**6])) is None
    assert holder(second) == first


def test_in_a_slurm_job_nobody_waits_but_trainings_of_other_jobs_count(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with held(A, "one"), held(B, "two"), held(A, "three"):
        assert beside(A, "one") == []  # all of one allocation, by its owner's will
        monkeypatch.setenv("SLURM_JOB_ID", "8")
        assert [entry.told["run"] for entry in beside(A, "one")] == ["two", "three"]
        assert len(beside(C, "four")) == 3
    assert beside(C, "four") == []


def test_out_of_jobs_a_project_may_train_several_at_a_time(machine):
    with held(A, "one"), held(A, "two"):
        assert beside(A, "one") == []
        assert len(beside(B, "one")) == 2


def test_where_nothing_can_be_written_trainings_go_on(machine, monkeypatch):
    machine.write_text("no folder")
    with held(A, "one"):
        assert entries() == []


def test_anybody_may_enter(machine):
    enter(A, "one")
    assert machine.stat().st_mode & 0o7777 == 0o1777
