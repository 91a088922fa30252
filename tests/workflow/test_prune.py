"""Runs that no study plans are found, and nothing else is deleted."""

import os
import time

import factory
import fake_slurm
import pytest
from fake_slurm import line, says

from ddp_hpc.cli.main import main
from ddp_hpc.config.errors import StudyError
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import mark_slurm
from ddp_hpc.slurm import client
from ddp_hpc.system.process import ourselves
from ddp_hpc.workflow import plan, prune
from ddp_hpc.workflow.driver_lock import DriverAliveError, DriverLock

GRID = [{"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 0.2]}]


@pytest.fixture
def project(tmp_path):
    """One study of two runs, one of them finished; one finished run of code that has changed, one of another study."""
    project = Project(tmp_path)
    study_runs = factory.planned(tmp_path, grid=GRID)
    plan.prepare(study_runs)
    factory.write(study_runs, study_runs.planned[0], factory.realistic(study_runs.planned[0].spec))
    spec_hash = study_runs.planned[0].spec.hash
    for run, days in ((f"a-{spec_hash}-0000000000", 3), ("b-1111111111-0000000000", 9)):
        folder = project.store.run(run)
        folder.path.mkdir()
        folder.plan = {"run": run, "spec": {}}
        folder.record().write_bytes(bytes(2_000_000))
        for file in folder.path.iterdir():
            os.utime(file, (time.time() - 86400 * days,) * 2)
    client.forget()
    yield project
    client.forget()


def rows(project, **keys):
    return [(row["run"][0], row["why"], round(row["days"])) for row in prune.left(project, **keys)]


def there(project):
    return set(os.listdir(project.store.runs))


def test_what_no_study_plans_is_listed_by_age_with_its_size_and_stays(project, monkeypatch, capsys):
    before = there(project)
    monkeypatch.setattr(Project, "here", lambda: project)

    with pytest.raises(SystemExit) as ended:
        main(["prune"])

    said = capsys.readouterr()
    assert (ended.value.code, there(project)) == (0, before)
    assert [row.split()[0][0] for row in said.out.splitlines()[1:]] == ["b", "a"]
    assert said.err == "2 runs, 4.0 MB; nothing was deleted: `ddp-hpc prune --delete` does that\n"
    assert rows(project) == [("b", "in no study", 9), ("a", "other code", 3)]
    assert rows(project, older_than_days=5) == [("b", "in no study", 9)]


def test_a_run_of_a_host_whose_clock_is_ahead_is_listed(project):
    for file in project.store.run("b-1111111111-0000000000").path.iterdir():
        os.utime(file, (time.time() + 86400,) * 2)

    assert rows(project)[-1] == ("b", "in no study", 0)


def test_what_is_deleted_is_what_was_listed(project):
    notes = project.store.run("notes")  # of a person
    notes.path.mkdir()
    notes.plan = {"run": "notes", "spec": {}}
    (project.store.runs / "b-linked").symlink_to(project.store.runs / "b-1111111111-0000000000")
    before, listed = there(project), {row["run"] for row in prune.left(project)}

    assert {row["run"] for row in prune.delete(project)} == listed
    assert there(project) == before - listed
    assert prune.summary(prune.left(project), deleted=False).startswith("nothing to delete")


def test_what_was_put_aside_is_listed_and_goes_alone(project):
    run = project.study_runs("made_up").planned[0].run
    files = [f"{run}/run.parquet.aside-1", f"{run}.aside-2", "../studies/made_up/tables/runs.tex.aside-1"]
    for name in [*files, "b-1111111111-0000000000/run.parquet.aside-1"]:  # the last goes with its run
        (project.store.runs / name).parent.mkdir(parents=True, exist_ok=True)
        (project.store.runs / name).write_text("damaged")
    before = there(project)

    found = prune.left(project)
    assert {row["run"] for row in found if row["why"] == prune.ASIDE} == set(files)
    assert prune.summary(found, deleted=False).startswith("2 runs, 3 put aside, 4.0 MB")

    assert not any("problem" in row for row in prune.delete(project))
    assert there(project) == {name for name in before if not name.startswith(("a-", "b-")) and "aside" not in name}
    assert not any(project.root.rglob("*.aside-*"))
    assert project.store.run(run).finished


def test_a_run_at_which_somebody_works_stays_also_a_finished_one(project):
    attempt = project.store.run("b-1111111111-0000000000").new_attempt()
    attempt.started = ourselves() | {"at": "2026-01-31T08:00:00+00:00"}

    assert rows(project) == [("a", "other code", 3)]

    attempt.ended = {"status": "ok"}
    assert len(rows(project)) == 2


def test_a_run_that_waits_in_the_queue_stays_and_without_an_answer_of_slurm_all_do(project, tmp_path, monkeypatch):
    run = "b-1111111111-0000000000"
    project.store.run(run).record().unlink()
    mark_slurm(project.store)
    waits = line(17, "PENDING", run, project.root)
    fake_slurm.install(tmp_path / "bin", monkeypatch, {"squeue": says(waits)})
    assert rows(project) == [("a", "other code", 3)]

    client.forget()
    fake_slurm.install(tmp_path / "bin", monkeypatch, {"squeue": "exit 1"})
    with pytest.raises(StudyError, match="Slurm does not answer"):
        prune.delete(project)


def test_nothing_is_deleted_while_a_study_cannot_be_read_or_a_driver_lives(project):
    before = there(project)
    (project.root / "config" / "studies" / "half.yaml").write_text("grid: {")
    with pytest.raises(StudyError, match="half"):
        prune.delete(project)
    (project.root / "config" / "studies" / "half.yaml").unlink()

    with DriverLock(project.root).held(), pytest.raises(DriverAliveError, match="another driver"):
        prune.delete(project)

    assert there(project) == before


def test_a_run_that_cannot_be_deleted_is_told_and_the_others_go(project, monkeypatch):
    def rmtree(path, real=prune.shutil.rmtree):
        if path.name.startswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        real(path)

    monkeypatch.setattr(prune.shutil, "rmtree", rmtree)

    found = {row["run"][0]: row.get("problem") for row in prune.delete(project)}

    assert found["a"] is None
    assert "Permission denied" in found["b"]
    assert "b" in {name[0] for name in there(project)}
