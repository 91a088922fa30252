"""Training programs of one's own: what they record, how they end, which status follows; small ones, without torch."""

import os
import re
import sys
from pathlib import Path

import pytest
from factory import planned, realistic, write
from metered import STAND_INS, stand_in

from ddp_hpc.config import catalog
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.process import path_with_own_scripts
from ddp_hpc.workflow import plan

STEP = """
import sys, time, os, signal
import ddp_hpc

how, steps = sys.argv[1], int(sys.argv[2])
"""
TRAINS = (
    STEP
    + """
with ddp_hpc.recorder() as record:
    for step in range(steps):
        with record.phase("compute"):
            loss = 4.0 / (step + 1)
        if how == "nan" and step == 2:
            loss = float("nan")
        record.step(loss=loss, samples=8)
        if how == "killed" and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises" and step == 2:
            raise ValueError("no such file: labels.csv")
        if how == "memory" and step == 2:
            raise MemoryError("cannot hold the batch")
        if how == "gpu memory" and step == 2:
            sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        if how == "slow":
            time.sleep(0.05)
            if record.should_stop:
                (record.folder / "step").write_text(str(record.steps))
                break
    record.metric(accuracy=0.75)
"""
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project around a study, with our environment's Python; the package's choices alone afterwards."""
    before = catalog.project()
    monkeypatch.setenv("PATH", path_with_own_scripts())
    catalog.use_project(tmp_path)
    yield tmp_path
    catalog.use_project(before)


def study_of(project: Path, text: str, how: str, steps: int = 5, **keys) -> StudyRuns:
    (project / "train.py").write_text(text)
    identity.forget()
    program = {"command": "python train.py {how} {steps}", "files": ["train.py"], "parameters": {"how": how}}
    axes = {"world_size": 1, "batch_size": 8, "learning_rate": 0.1, **keys.pop("grid", {})}
    base = {"program": program, "threads_per_rank": 1}
    study = planned(project, base=base, grid=axes, budget={"steps": steps}, rules={}, **keys)
    plan.prepare(study)
    return study


def trained(study: StudyRuns, launcher=(), **given):
    """How an attempt at the first run of a study ends, and its folder."""
    folder = study.store.run(study.planned[0].run)
    return supervise(folder.path, launcher, Path("unused"), **given), folder


def row_of(folder) -> dict:
    return records.read("run", folder.record()).to_pylist()[0]


def test_what_a_program_records_is_a_record_like_any_other(project):
    study = study_of(project, TRAINS, "well")

    ending, folder = trained(study)

    assert (ending.status, ending.reason) == ("ok", None)
    row = row_of(folder)
    assert (row["steps"], row["samples_seen"], row["test_metric"], row["test_metric_name"]) == (5, 40, 0.75, "accuracy")
    assert (row["first_loss"], row["final_loss"]) == (4.0, 0.8)
    assert (row["exchange"], row["program"], row["program_options"]) == (
        "none",
        "train.py",
        '{"how":"well"}',
    )
    assert row["model"] is row["optimizer"] is row["parameters"] is row["exchange_exposed_s"] is None
    steps = records.read("steps", folder.record("steps")).to_pylist()
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    assert all(0 < step["forward_backward_s"] < step["step_s"] for step in steps)
    assert steps[-1]["t_s"] == pytest.approx(sum(step["step_s"] for step in steps))
    assert row["startup_s"] + row["train_s"] == pytest.approx(row["wall_s"], abs=0.01)
    assert (
        records.read_metadata(folder.record())["provenance"]["null_columns"]["parameters"] == "only the program knows"
    )


def test_a_loss_that_is_not_finite_is_a_finding(project):
    ending, folder = trained(study_of(project, TRAINS, "nan"))

    assert (ending.status, ending.reason) == ("diverged", "loss is nan at step 3 (rank 0)")
    assert (row_of(folder)["steps"], row_of(folder)["loss_area_loss_s"]) == (3, None)


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("raises", "crashed", "ended with exit code 1; its last words: .*no such file: labels.csv"),
        ("killed", "crashed", "was killed by SIGKILL"),
        ("memory", "oom_host", "MemoryError: cannot hold the batch"),
        ("gpu memory", "oom_gpu", "CUDA out of memory"),
    ],
)
def test_a_program_that_fails_says_how(project, how, status, words):
    ending, folder = trained(study_of(project, TRAINS, how))

    assert ending.status == status
    assert re.search(words, ending.reason.replace("\n", " "))
    assert ending.numbers["steps"] == 3 or how == "killed"
    if status == "oom_gpu":
        assert row_of(folder)["min_loss"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STEP, "ended with exit code 0, but recorded no step"),
        (
            STEP + 'open(os.environ["DDP_HPC_RECORD"], "w").write(\'{"begin": 1}\\n{"t": "soon"}\\n\')',
            "line 2 of the record",
        ),
    ],
)
def test_a_program_that_records_nothing_or_nonsense_has_crashed(project, text, words):
    ending, _ = trained(study_of(project, text, "well"))

    assert ending.status == "crashed"
    assert words in ending.reason


def test_a_program_whose_time_is_up_leaves_a_checkpoint_from_which_the_next_attempt_goes_on(project):
    goes_on = TRAINS.replace(
        "    for step in range(steps):",
        """    saved = record.folder / "step"
    if saved.exists():
        record.resumed(int(saved.read_text()))
    for step in range(record.steps, steps):""",
    )
    study = study_of(project, goes_on, "slow", steps=60)

    ending, folder = trained(study, time_limit_s=2.0)

    assert ending.status == "timeout"
    left = folder.checkpointed_step
    assert 0 < left < 60
    assert f"the next attempt goes on after step {left}" in ending.reason

    ending, folder = trained(study)

    row, steps = row_of(folder), records.read("steps", folder.record("steps")).to_pylist()
    assert (ending.status, row["steps"], row["resumes"]) == ("ok", 60, 1)
    assert [step["loss"] for step in steps] == [4.0 / number for number in range(1, 61)]
    assert row["train_s"] < row["wall_s"] - row["lost_s"]
    assert row["lost_s"] > 0


def test_a_program_that_does_not_listen_is_ended_at_its_time_limit(project):
    sleeps = STEP + "with ddp_hpc.recorder() as record:\n    record.step(loss=1.0)\ntime.sleep(60)"

    ending, _ = trained(study_of(project, sleeps, "well"), time_limit_s=1.5)

    assert ending.status == "timeout"


def test_any_language_may_write_the_lines(project):
    lines = ['{"begin": 10}', '{"t": 10.5, "loss": 2}', '{"t": 11.5, "loss": 1, "exchange": 0.25}', '{"t": 12']
    writes = f'import os\nopen(os.environ["DDP_HPC_RECORD"], "a").write({chr(10).join(lines)!r})'

    ending, folder = trained(study_of(project, writes, "well", steps=2))

    row = row_of(folder)
    assert (ending.status, row["steps"], row["train_s"], row["loss_area_loss_s"]) == ("ok", 2, 1.5, 2 * 0.5 + 1.5 * 1)
    assert row["samples_seen"] == 2 * 8  # not said: the batch of the spec


def test_ranks_have_torchruns_variables_and_only_the_first_need_record_a_loss(project):
    text = """
import os
import ddp_hpc

rank = int(os.environ["RANK"])
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
with open(f"seen-{rank}", "w") as file:
    file.write(" ".join(os.environ[name] for name in names))
with ddp_hpc.recorder() as record:
    for step in range(5):
        with record.phase("compute"):
            pass
        record.step(loss=1.0 if rank == 0 else None)
    record.metric(error=0.5)
"""
    study = study_of(project, text, "well", grid={"world_size": 2})

    ending, folder = trained(study, ["mpiexec", "-n", "2"])

    assert ending.status == "ok", ending.reason
    seen = [(project / f"seen-{rank}").read_text().split() for rank in (0, 1)]
    assert [words[:3] for words in seen] == [["2", "0", "2"], ["2", "1", "2"]]
    assert seen[0][3:] == seen[1][3:]
    assert seen[0][3] == "127.0.0.1"
    steps = records.read("steps", folder.record("steps")).to_pylist()
    assert [(step["rank"], step["rank_loss"], step["loss"]) for step in steps[:2]] == [(0, 1.0, 1.0), (1, None, 1.0)]
    assert row_of(folder)["exchange"] == "program"
    assert {name: len(catalog.load("table", name).build(study)) for name in study.study.table_names}["runs"] == 1


def test_a_rank_that_records_nothing_is_null_and_halves_nothing(project):
    text = """
import os, time
import ddp_hpc

if os.environ["RANK"] == "0":
    with ddp_hpc.recorder() as record:
        for step in range(5):
            with record.phase("compute"):
                time.sleep(0.01)
            record.step(loss=1.0)
"""
    study = study_of(project, text, "well", grid={"world_size": 2})

    ending, folder = trained(study, ["mpiexec", "-n", "2"])

    assert ending.status == "ok", ending.reason
    row, steps = row_of(folder), records.read("steps", folder.record("steps")).to_pylist()
    assert row["forward_backward_s"] > 0.01
    assert row["samples_seen"] == 5 * 16
    assert [step["step_s"] is None for step in steps] == [False, True] * 5
    assert {name: len(catalog.load("table", name).build(study)) for name in study.study.table_names}["runs"] == 1


TWO = {"world_size": 2}
TOGETHER = """
time.sleep(1.5)  # as an import of torch would take
open(f"here-{os.environ['RANK']}", "w").close()
while not all(os.path.exists(f"here-{rank}") for rank in "01"):
    time.sleep(0.005)
"""
BOTH_SEEN = ("sh", "-c", 'exec "$@"', "sh")
OWN_SEEN = (  # as Slurm does it by control groups
    "sh",
    "-c",
    "export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_RANK FAKE_NVML_SEES=$0; "
    '[ $OMPI_COMM_WORLD_RANK = 0 ] || FAKE_NVML_SEES=$1; shift; exec "$@"',
    stand_in().UUIDS[2],
    stand_in().UUIDS[0],
)


@pytest.mark.parametrize(("mode", "seen"), [("", BOTH_SEEN), ("own only", OWN_SEEN)])
def test_the_gpus_of_a_programs_ranks_are_metered_once_each(project, monkeypatch, mode, seen):
    """By a stand-in of NVML, whose first two GPUs draw 300 W and 100 W."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), *sys.path]))
    monkeypatch.setenv("FAKE_NVML", mode)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    study = study_of(project, TRAINS.replace("with ddp_hpc", f"{TOGETHER}with ddp_hpc"), "slow", 12, grid=TWO)

    ending, folder = trained(study, ["mpiexec", "-n", "2", *seen])

    assert ending.status == "ok", ending.reason
    row, samples = row_of(folder), records.read("gpu", folder.record("gpu")).to_pandas()
    nulls = records.read_metadata(folder.record())["provenance"]["null_columns"]
    assert (row["device_used"], row["gpus"], samples["uuid"].nunique()) == ("cuda", 2, 2)
    assert samples.groupby("uuid")["power_w"].first().tolist() == [100.0, 300.0]
    assert row["energy_j"] == pytest.approx(400 * row["train_s"], rel=0.3), nulls  # ranks may begin a little apart
    assert nulls["peak_memory_bytes"].startswith("only the program's allocator")


def test_a_rank_that_is_killed_while_the_others_wait_for_it_ends_the_run(project):
    text = """
import os, signal, time
import ddp_hpc

with ddp_hpc.recorder() as record:
    for step in range(3):
        record.step(loss=1.0)
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""
    ending, _ = trained(study_of(project, text, "well", grid={"world_size": 2}), ["mpiexec", "-n", "2"])

    assert ending.status == "crashed"
    assert re.match("rank 1 on .*was killed by SIGKILL", ending.reason), ending.reason


def test_a_changed_file_of_a_program_makes_exactly_its_runs_new(project):
    def edited(text: str) -> list[str]:
        (project / "train.py").write_text(text)
        identity.forget()
        fresh = planned(project, base=base, grid=grid, budget={"steps": 5}, rules={})
        return [item.reason for item in plan.plan(fresh)]

    (project / "train.py").write_text(TRAINS)
    (project / "other.py").write_text(TRAINS)
    programs = [
        {"command": f"python {name}.py well {{steps}}", "files": [f"{name}.py"], "name": name}
        for name in ("train", "other")
    ]
    base, grid = {"threads_per_rank": 1, "world_size": 1, "batch_size": 8, "learning_rate": 0.1}, {"program": programs}
    identity.forget()
    study = planned(project, base=base, grid=grid, budget={"steps": 5}, rules={})
    plan.prepare(study)
    for run in study.planned:
        write(study, run, realistic(run.spec))

    assert edited(TRAINS + "\n# a comment\n") == ["finished", "finished"]
    assert edited(TRAINS.replace("4.0", "5.0")) == ["./train.py has changed", "finished"]
    assert edited(TRAINS) == ["finished", "finished"]
