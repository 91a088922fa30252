"""Every status of the table in DESIGN (see CONTRIBUTING.md) that one machine can show, provoked for real.

Those that only Slurm can give (queued, preempted, node_fail, rejected) are the business of the tests on a real Slurm.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from faulty import FAULTY, plan_one, record, starts_twice, state, train
from sandbox import Sandbox, wait_for

from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.runs import records
from ddp_hpc.system.files import write_json


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    sandbox = Sandbox.make(tmp_path_factory.mktemp("statuses") / "project")
    (sandbox.package / "models" / "faulty.py").write_text(FAULTY)
    yield sandbox
    sandbox.end_all()


def test_a_run_that_ends_well_is_ok_and_its_job_exits_0(project):
    run = plan_one(project, "fine", "none", 2)

    done, _ = train(project, run, 2)

    assert done.returncode == 0, done.stderr
    assert state(project, run).status == "ok"
    row = record(project, run)
    assert (row["steps"], row["samples_seen"], row["samples_asked"]) == (40, 40 * 32, 40 * 32)


def test_a_loss_that_is_not_finite_is_a_finding_and_its_job_exits_0(project):
    run = plan_one(project, "nan", "nan", 2)

    done, _ = train(project, run, 2)

    assert done.returncode == 0, done.stderr
    row = record(project, run)
    assert row["status"] == "diverged"
    assert "step" in row["reason"]
    assert row["loss_area_loss_s"] is None
    assert 0 < row["steps"] <= 8


def test_weights_that_the_last_update_broke_are_a_finding_though_no_loss_shows_it(project):
    """Such a run must not win."""
    run = plan_one(project, "last_update", "last update", 2)

    done, _ = train(project, run, 2)

    assert done.returncode == 0, done.stderr
    row = record(project, run)
    assert (row["status"], row["steps"]) == ("diverged", 40)
    assert row["reason"] == "weights are not finite after step 40, the last"
    assert (row["loss_area_loss_s"], row["test_metric"]) == (None, None)


def test_the_warm_up_leaves_no_trace_in_buffers_and_a_trace_elsewhere_is_an_error(project):
    run = plan_one(project, "buffer", "buffer put in the place of another", 1)
    assert train(project, run, 1, launcher="")[0].returncode == 0
    steps = records.read("steps", project.root / "results" / "runs" / run / "steps.parquet").to_pylist()
    losses = {step["step"]: step["rank_loss"] for step in steps}
    assert losses[1] == losses[-2]  # the first step, and the first of the warm-up

    run = plan_one(project, "hidden", "hidden state", 1)
    assert train(project, run, 1, launcher="")[0].returncode == 1
    assert "keeps state outside its parameters and buffers" in state(project, run).reason


def test_a_process_that_a_rank_leaves_behind_does_not_make_a_timeout_of_a_result(project):
    run = plan_one(project, "left_behind", "child that lives on", 2)

    done, seconds = train(project, run, 2, "--time-limit-min", "3")

    assert done.returncode == 0, done.stderr
    assert seconds < 40
    assert state(project, run).status == "ok"
    project.end_all()


def test_a_run_that_the_launcher_starts_twice_is_a_failed_launch(project):
    run = plan_one(project, "twice", "none", 1)

    done, _ = train(project, run, 1, launcher=starts_twice(project))

    assert done.returncode == 1
    assert state(project, run).status == "launch_failed"
    assert "started the run more than once" in state(project, run).reason


def test_a_folder_without_the_plan_of_a_run_starts_nothing(tmp_path):
    for plan in ({"run": "notes"}, {"run": "notes", "spec": {}}, {"run": "notes", "world_size": 1}):
        (tmp_path / "notes").mkdir(exist_ok=True)
        write_json(tmp_path / "notes" / "spec.json", plan)
        with pytest.raises(FileNotFoundError, match="not of this run: plan it"):
            supervise(tmp_path / "notes", [], tmp_path)
    assert os.listdir(tmp_path / "notes") == ["spec.json"]


def test_a_spec_file_that_was_changed_does_not_train_as_something_else(project):
    run = plan_one(project, "changed_spec", "none", 1)
    file = project.root / "results" / "runs" / run / "spec.json"
    file.write_text(file.read_text().replace('"learning_rate": 0.1', '"learning_rate": 0.9'))

    done, _ = train(project, run, 1, launcher="")

    assert done.returncode == 1
    assert "spec.json holds another spec" in state(project, run).reason


def test_too_little_gpu_memory_is_a_finding_with_the_curve_up_to_there(project):
    run = plan_one(project, "gpu_memory", "gpu memory", 2)

    done, _ = train(project, run, 2)

    assert done.returncode == 0, done.stderr
    row = record(project, run)
    assert row["status"] == "oom_gpu"
    assert "rank 1" in row["reason"]
    assert "out of memory" in row["reason"]
    assert row["loss_area_loss_s"] is None
    steps = records.read("steps", project.root / "results" / "runs" / run / "steps.parquet").to_pylist()
    assert all(step["rank"] == 1 for step in steps)


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("exception", "crashed", "ValueError: the eighth step is bad"),
        ("exception beside a thread that lives on", "crashed", "ValueError: the eighth step is bad"),
        ("before the first step", "crashed", "RuntimeError: no such file: weights.bin"),
        ("exit 0", "crashed", "SystemExit"),
        ("exit 0 at once", "crashed", "ended with exit code 0 before the training was done"),
        ("killed", "crashed", "killed by SIGKILL"),
        ("host memory", "oom_host", "memory"),
    ],
)
def test_a_rank_that_fails_ends_the_launch_within_30_s_and_is_named(project, fault, status, said):
    run = plan_one(project, "fault_" + fault.replace(" ", "_"), fault, 2)

    done, seconds = train(project, run, 2)

    assert done.returncode == 1
    assert seconds < 30
    found = state(project, run)
    assert found.status == status
    assert found.reason.startswith("rank 1 on ")
    assert said in found.reason
    assert "rank 1" in done.stderr  # the log names it too
    assert not (project.root / "results" / "runs" / run / "run.parquet").exists()
    assert not project.processes()


@pytest.mark.parametrize("exchange", ["gloo", "torch_ddp"])
def test_the_rank_that_died_is_named_and_not_those_that_lost_it(project, exchange):
    """Gloo raises in the others at once: before anybody can have seen that a process has ended."""
    run = plan_one(project, f"lost_{exchange}", "killed", 3, exchange=exchange)

    done, seconds = train(project, run, 3)

    assert done.returncode == 1
    assert seconds < 30
    reason = state(project, run).reason
    assert reason.startswith("rank 2 on ")
    assert "killed by SIGKILL" in reason


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise ImportError('libfabric.so.1: cannot open shared object file')", "ImportError: libfabric.so.1"),
        ("os._exit(0)", "ended with exit code 0 before the training was done"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_a_rank_that_fails_before_mpi_is_up_ends_the_launch_too(project, fault, said):
    run = plan_one(project, f"early_{len(said)}", "none", 2)
    rank = project.package / "execution" / "rank.py"
    source = rank.read_text()
    rank.write_text(source + f"\nif os.environ.get('OMPI_COMM_WORLD_RANK') == '1':\n    {fault}\n")
    try:
        done, seconds = train(project, run, 2)
    finally:
        rank.write_text(source)

    assert done.returncode == 1
    assert seconds < 30
    assert state(project, run).status == "crashed"
    assert state(project, run).reason.startswith("rank 1 on ")
    assert said in state(project, run).reason
    assert not project.processes()


def test_a_launch_that_takes_longer_than_allowed_is_a_timeout(project):
    run = plan_one(project, "slow", "slow", 2, steps=100_000)

    done, _ = train(project, run, 2, "--time-limit-min", "0.12")

    assert done.returncode == 1
    assert state(project, run).status == "timeout"
    assert not project.processes()


def test_a_launcher_that_is_not_there_is_a_failed_launch(project):
    run = plan_one(project, "no_launcher", "none", 2)

    done, _ = train(project, run, 2, launcher="no-such-mpiexec -n 2")

    assert done.returncode == 1
    assert state(project, run).status == "launch_failed"
    assert "no-such-mpiexec" in state(project, run).reason


def test_ranks_that_do_not_find_each_other_never_train(project):
    """The launcher starts two processes, each believes it is rank 0 of 1."""
    run = plan_one(project, "singletons", "none", 2)

    done, _ = train(project, run, 2, launcher=starts_twice(project))

    assert done.returncode == 1
    assert state(project, run).status == "launch_failed"
    assert "expected 2 ranks, MPI reports 1 (launcher or MPI build mismatch)" in state(project, run).reason
    assert not (project.root / "results" / "runs" / run / "run.parquet").exists()


def test_code_that_changed_since_planning_does_not_train(project):
    run = plan_one(project, "changed", "none", 1)
    project.append("src/ddp_hpc/models/faulty.py", "\nCHANGED = 1\n")

    done, _ = train(project, run, 1, launcher="")
    (project.package / "models" / "faulty.py").write_text(FAULTY)

    assert done.returncode == 1
    assert state(project, run).status == "launch_failed"
    assert "code changed since planning" in state(project, run).reason


def test_a_run_is_missing_then_running_then_cancelled_when_it_is_ended_from_outside(project):
    run = plan_one(project, "ended", "slow", 2, steps=100_000)
    assert state(project, run).status == "missing"

    supervisor = project.start("ddp-hpc", "train", run, "--launcher", "mpiexec -n 2")
    wait_for(lambda: state(project, run).status == "running")
    wait_for(lambda: len(project.processes()) >= 4)
    supervisor.send_signal(signal.SIGTERM)

    assert supervisor.wait(30) == 1
    assert state(project, run).status == "cancelled"
    assert not project.processes()


def test_a_supervisor_that_was_killed_leaves_a_cancelled_run_and_no_process(project):
    run = plan_one(project, "killed_supervisor", "slow", 2, steps=100_000)
    supervisor = project.start("ddp-hpc", "train", run, "--launcher", "mpiexec -n 2")
    wait_for(lambda: len(project.processes()) >= 4)

    supervisor.kill()
    supervisor.wait()

    wait_for(lambda: not project.processes())
    assert state(project, run).status == "cancelled"


@pytest.mark.parametrize("exchange", ["ring", "shared_memory"])
def test_a_launcher_that_was_killed_is_told_by_its_signal_and_leaves_nothing(project, exchange):
    run = plan_one(project, f"killed_launcher_{exchange}", "slow", 2, steps=100_000, exchange=exchange)
    attempt = project.root / "results" / "runs" / run / "attempts" / "1"
    supervisor = project.start("ddp-hpc", "train", run, "--launcher", "mpiexec -n 2")
    wait_for((attempt / "progress.json").exists)
    started = json.loads((attempt / "started.json").read_text())
    shared, session = Path("/dev/shm", started["scratch"]), Path(started["tmpdir"], started["scratch"])
    assert list(shared.iterdir())
    assert list(session.iterdir())
    others = [folder.with_name("ddp-hpc-0123456789abcdef") for folder in (shared, session)]
    for folder in others:
        folder.mkdir()
    (launcher,) = [pid for pid, command in project.processes().items() if command.startswith(("prterun", "mpiexec"))]

    os.kill(launcher, signal.SIGKILL)

    assert supervisor.wait(30) == 1
    assert state(project, run).status == "crashed"
    assert re.fullmatch(r"the launcher was killed by SIGKILL, .* step \d+", state(project, run).reason)
    assert not project.processes()
    assert not shared.exists()
    assert not session.exists()
    assert not list(attempt.glob("rank-*.pid"))
    for folder in others:
        folder.rmdir()  # what is another's is there still


def test_a_run_without_a_gpu_has_null_gpu_columns_and_says_so_in_one_line(project):
    run = plan_one(project, "no_gpu", "none", 2)

    done, _ = train(project, run, 2)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks on 1 host, 1 thread each, device cpu; no GPU is used, GPU metering is off") == 1
    row = record(project, run)
    assert (row["device_used"], row["energy_j"]) == ("cpu", None)
    notes = records.read_metadata(project.root / "results" / "runs" / run / "run.parquet")
    assert "energy_j" in notes["provenance"]["null_columns"]


@pytest.fixture
def small_disk(project):
    """The project's results on a disk of 1 MB; `small_disk(kB)` fills it but for so much, None: makes room again."""
    with project.results_on_a_disk(megabytes=1) as leave:
        yield leave


@pytest.mark.parametrize("kilobytes", [4, 12, 24, 40])
def test_a_full_disk_is_named_with_the_file_and_the_next_call_goes_on(project, small_disk, kilobytes):
    run = plan_one(project, f"disk_{kilobytes}", "none", 1)
    small_disk(kilobytes)

    done, _ = train(project, run, 1, launcher="")

    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    found = state(project, run)
    if found.attempts:  # else there was not even room for what says that one has begun
        assert found.status == "crashed", found
        assert re.search(r"No space left on device.*results/runs/", found.reason), found.reason
    small_disk(None)
    assert train(project, run, 1, launcher="")[0].returncode == 0
    assert state(project, run).status == "ok"
    left = [file.name for file in (project.root / "results" / "runs" / run).rglob("*")]
    assert not [name for name in left if name.endswith(".tmp") or name == "room"], left


def test_a_supervisor_that_has_waited_for_another_finds_nothing_to_do(project):
    run = plan_one(project, "twice_at_once", "slow", 1, steps=60)
    command = ("ddp-hpc", "train", run, "--launcher", "")
    both = [project.start(*command, stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("trained meanwhile, by another supervisor" in text for text in said) == 1
    assert record(project, run)["wall_s"] < 30
    assert len(list((project.root / "results" / "runs" / run / "attempts").iterdir())) == 1


def test_a_run_under_nohup_outlives_its_terminal(project):
    run = plan_one(project, "nohup", "slow", 1, steps=60)
    supervisor = project.start("nohup", "ddp-hpc", "train", run, "--launcher", "", stdout=subprocess.DEVNULL)
    wait_for(lambda: state(project, run).progress, 60)
    supervisor.send_signal(signal.SIGHUP)
    assert supervisor.wait(timeout=60) == 0
    assert state(project, run).status == "ok"


def test_a_word_that_cannot_be_written_after_the_record_does_not_cost_it(project):
    run = plan_one(project, "no_last_word", "slow", 1, steps=30)
    supervisor = project.start("ddp-hpc", "train", run, "--launcher", "", stderr=subprocess.PIPE)
    attempt = project.root / "results" / "runs" / run / "attempts" / "1"
    wait_for(lambda: (attempt / "rank-0.pid").exists(), 60)
    (attempt / "ended.json").mkdir()
    said = supervisor.communicate(timeout=60)[1]
    assert supervisor.returncode == 0, said
    assert re.search(r"how the attempt ended cannot be written down: .*ended.json", said)
    assert state(project, run).status == "ok"
    assert not (attempt.parents[1] / "checkpoint").exists()
