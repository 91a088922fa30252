"""The example programs of `ddp-hpc init` train in their smallest form, and tables come out of what they record."""

from pathlib import Path

import pytest
from launching import MPI_ENVIRONMENT
from ruamel.yaml import YAML

from ddp_hpc.analysis.tables import scaling, winners
from ddp_hpc.config import catalog
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.process import path_with_own_scripts
from ddp_hpc.workflow import new_project, plan


@pytest.fixture
def launches(monkeypatch):
    before = catalog.project()
    for name, value in (MPI_ENVIRONMENT | {"PATH": path_with_own_scripts()}).items():
        monkeypatch.setenv(name, value)
    yield
    catalog.use_project(before)


def trained(root: Path, name: str, **grid) -> StudyRuns:
    """The runs of an example, of which all have a result, with another grid and few steps."""
    new_project.make(root, name)
    file = root / "config" / "studies" / f"{name}.yaml"
    study = YAML(typ="safe").load(file)
    YAML().dump(study | {"budget": {"steps": 20}, "repeats": 1, "grid": study["grid"] | grid}, file)
    identity.forget()
    study_runs = Project.here(root).study_runs(name)
    plan.prepare(study_runs)
    for one in study_runs.planned:
        launcher = ["mpiexec", "-n", str(one.spec.world_size)] if one.spec.world_size > 1 else []
        ending = supervise(study_runs.store.run(one.run).path, launcher, root)
        assert ending.status == "ok", ending.reason
    return study_runs


def test_a_numpy_script_with_mpi_has_winners_and_a_speedup(launches, tmp_path):
    found = trained(tmp_path, "own_mpi", learning_rate=[0.1])

    won, rows = winners.build(found), scaling.build(found)

    assert won[["exchange", "world_size", "learning_rate"]].values.tolist() == [["none", 1, 0.1], ["program", 2, 0.1]]
    assert rows["world_size"].tolist() == [1, 2]
    assert rows["speedup"].iloc[0] == 1
    assert rows["speedup"].iloc[1] == pytest.approx(rows["train_s"].iloc[0] / rows["train_s"].iloc[1])
    first = found.runs[found.runs["world_size"] == 2].iloc[0]
    assert first[["data_s", "forward_backward_s", "exchange_exposed_s", "update_s", "wait_s"]].notna().all()
    assert first["test_metric"] > 0.5
    losses = [
        records.read("steps", found.store.file(run, "steps")).column("loss")[0].as_py() for run in found.runs["run"]
    ]
    assert losses[0] == pytest.approx(losses[1])  # the same global batches, and ln 2 before anything is learnt
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)


def test_a_plain_ddp_script_finds_its_ranks_by_torchruns_variables(launches, tmp_path):
    found = trained(tmp_path, "own_ddp", learning_rate=[0.1])

    assert winners.build(found)["world_size"].tolist() == scaling.build(found)["world_size"].tolist() == [1, 2]
    assert scaling.build(found)["speedup"].notna().all()
    row = found.runs[found.runs["world_size"] == 2].iloc[0]
    assert (row["exchange"], row["program_options"], row["samples_seen"]) == ("program", '{"width":64}', 20 * 64)
    assert row["final_loss"] < row["first_loss"]


def test_callbacks_record_a_training_whose_loop_is_a_librarys(launches, tmp_path):
    found = trained(tmp_path, "own_callbacks", global_batch_size=[32], learning_rate=[0.3])

    assert winners.build(found)["world_size"].tolist() == scaling.build(found)["world_size"].tolist() == [1, 2]
    assert scaling.build(found)["speedup"].notna().all()
    row = found.runs.iloc[0]
    assert (row["steps"], row["test_metric_name"]) == (20, "error")
    assert row["test_metric"] < 3  # that of the slope it began with


MORE = {  # of the command line, how the example then ends, and what is put before it
    "diverged": ("--lr 1e200", ""),
    "oom_host": ("--batch 1000000000", "prlimit --as=8000000000 "),
    "timeout": ("--steps 1000000000", ""),
    "killed": ("", "timeout --signal=KILL 0.2 "),
    "silent": ("--steps 0", ""),
}
ENDS = {
    "own_mpi": ("oom_host", "timeout", "killed", "silent"),  # its losses are bounded
    "own_callbacks": ("diverged", "timeout", "killed", "silent"),
    "own_ddp": ("oom_host", "timeout"),
}


@pytest.mark.parametrize("name", ENDS)
def test_each_end_of_an_example_has_its_status(launches, tmp_path, name):
    new_project.make(tmp_path, name)
    file = tmp_path / "config" / "studies" / f"{name}.yaml"
    study = YAML(typ="safe").load(file)
    program = study["base"]["program"]
    programs = [
        program | {"command": f"{MORE[end][1]}{program['command']} {MORE[end][0]}", "name": end} for end in ENDS[name]
    ]
    base = {"threads_per_rank": 1, "world_size": 1, "batch_size": 16, "learning_rate": 0.1}
    YAML().dump(study | {"budget": {"steps": 10**6}, "repeats": 1, "base": base, "grid": {"program": programs}}, file)
    identity.forget()
    study_runs = Project.here(tmp_path).study_runs(name)
    plan.prepare(study_runs)

    found = {}
    for one in study_runs.planned:
        limit_s = (4.0 if name == "own_ddp" else 1.5) if one.spec.program.name == "timeout" else 60.0
        found[one.spec.program.name] = supervise(study_runs.store.run(one.run).path, [], tmp_path, time_limit_s=limit_s)

    crashed = {"killed": "crashed", "silent": "crashed"}
    statuses = {end: ending.status for end, ending in found.items()}
    assert statuses == {end: crashed.get(end, end) for end in ENDS[name]}, found
    assert "silent" not in found or "recorded no step" in found["silent"].reason
