"""The process of a rank: what it leaves when all goes well, and how fast all ranks end when one does not."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ddp_hpc.config import spec
from ddp_hpc.execution.rank import _status_of
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.runs.ending import Evidence, classify
from ddp_hpc.system.process import boot_id

FAULTY = Path(__file__).parents[1] / "mpi" / "faulty_rank.py"
BASE = {
    "model": "mlp",
    "dataset": "digits",
    "exchange": "ring",
    "world_size": 2,
    "batch_size": 16,
    "learning_rate": 0.5,
    "budget": {"samples_seen": 1280},
    "device": "cpu",
}


@pytest.fixture
def attempt(tmp_path):
    """Make the folder of an attempt: `attempt(world_size=1, ...)`."""

    def make(code_hash=None, **fields):
        given = spec.load(BASE | fields)
        launch = {
            "run": identity.run_id(given),
            "spec": given.canonical,
            "world_size": given.world_size,
            "spec_hash": given.hash,
            "code_hash": code_hash or identity.code_hash(given),
            "launched_on": boot_id(),
            "launched_ns": time.monotonic_ns(),
            "data_dir": str(tmp_path / "data"),
            "command": ["mpiexec"],
        }
        (tmp_path / "launch.json").write_text(json.dumps(launch))
        return tmp_path

    return make


def row(folder):
    return records.read("run", folder / "run.parquet").to_pylist()[0]


def reports(folder):
    return {file.name: json.loads(file.read_text()) for file in folder.glob("rank-*.json")}


def test_two_ranks_leave_the_three_records(attempt, mpiexec):
    folder = attempt(evaluate_every_steps=20, noise_scale_every_steps=15)
    done = mpiexec(2, "-m", "ddp_hpc.execution.rank", folder)
    assert done.returncode == 0, done.stdout
    assert "step 40/40" in done.stdout

    run = row(folder)
    assert (run["status"], run["reason"]) == ("ok", None)
    assert (run["steps"], run["samples_seen"], run["samples_asked"]) == (40, 1280, 1280)
    assert 0 < run["train_s"] < run["wall_s"]
    assert 0 < run["import_s"] + run["warm_up_s"] < run["startup_s"] < run["wall_s"]
    assert run["samples_per_s"] == pytest.approx(1280 / run["train_s"])
    assert run["parameters"] == 64 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
    assert (run["device_used"], run["hosts"], run["energy_j"]) == ("cpu", 1, None)
    assert run["cores"] >= 1
    assert run["oversubscribed"] == (2 * run["threads_used"] > run["cores"])

    steps = records.read("steps", folder / "steps.parquet").to_pandas()
    assert len(steps) == 2 * (3 + 40)
    assert not steps.duplicated(["step", "rank"]).any()
    warm = steps[steps["warm_up"]]
    assert sorted(warm["step"].unique()) == [-2, -1, 0]
    assert warm["t_s"].isna().all()
    assert warm["loss"].isna().all()
    counted = steps[~steps["warm_up"]]
    mean = counted.groupby("step")["rank_loss"].mean()
    assert (counted.groupby("step")["loss"].first() - mean).abs().max() < 1e-12
    assert run["min_loss"] == mean.min()
    assert (run["first_loss"], run["final_loss"]) == (mean.iloc[0], mean.iloc[-1])
    t_s = counted.groupby("step")["t_s"].first()
    assert (t_s == counted.groupby("step")["rank_t_s"].max()).all()
    trapezoids = (mean.iloc[1:].to_numpy() + mean.iloc[:-1].to_numpy()) / 2 * t_s.diff().iloc[1:].to_numpy()
    assert run["loss_area_loss_s"] == pytest.approx(mean.iloc[0] * t_s.iloc[0] + trapezoids.sum())

    sampled = steps[steps["gradient_norm2"].notna()]
    assert sampled[["step", "rank"]].to_numpy().tolist() == [[15, 0], [15, 1], [30, 0], [30, 1]]
    assert (sampled["part_gradient_norm2"] > sampled["gradient_norm2"]).all()  # a mean is shorter than what it is of

    evaluations = records.read("evaluations", folder / "evaluations.parquet").to_pandas()
    assert evaluations["step"].tolist() == [20, 40]
    assert evaluations["samples_seen"].tolist() == [640, 1280]
    assert evaluations["t_s"].tolist() == [t_s[20], t_s[40]]
    assert run["test_metric"] == evaluations["metric"].iloc[-1] > 0.3  # chance is 0.1

    provenance = records.read_metadata(folder / "run.parquet")["provenance"]
    assert [rank["rank"] for rank in provenance["ranks"]] == [0, 1]
    assert "energy_j" in provenance["null_columns"]
    assert json.loads((folder / "summary.json").read_text())["status"] == "ok"
    assert reports(folder) == {}


def test_ranks_that_do_not_sit_as_asked_train_and_say_so(attempt, mpiexec):
    folder = attempt(placement="spread", threads_per_rank=1, budget={"steps": 10})
    done = mpiexec(2, "-m", "ddp_hpc.execution.rank", folder)
    assert done.returncode == 0, done.stdout
    assert "placed otherwise than asked, 2 on 1 host: kept out of comparisons" in done.stdout

    run, provenance = row(folder), records.read_metadata(folder / "run.parquet")["provenance"]
    assert (run["status"], run["placement"], run["placement_verified"], run["hosts"]) == ("ok", "spread", False, 1)
    assert provenance["ranks_on_nodes"] == [2]
    assert [rank["host"] for rank in provenance["ranks"]] == [os.uname().nodename] * 2
    assert all(set(rank["core_set"]) <= os.sched_getaffinity(0) for rank in provenance["ranks"])


def test_one_rank_needs_no_launcher_and_gives_the_same_columns(attempt, mpiexec, monkeypatch):
    folder = attempt(world_size=1, exchange="none", budget={"steps": 10})
    done = mpiexec(1, "-m", "ddp_hpc.execution.rank", folder)
    assert done.returncode == 0, done.stdout
    run = row(folder)
    assert run["status"] == "ok"
    assert run["exchange_exposed_s"] == run["wait_s"] == run["move_s"] == 0  # true: there is no exchange


def test_another_number_of_ranks_is_refused_before_training(attempt, mpiexec):
    folder = attempt(world_size=4)
    done = mpiexec(1, "-m", "ddp_hpc.execution.rank", folder)
    assert done.returncode == 3
    assert "expected 4 ranks, MPI reports 1 (launcher or MPI build mismatch)" in done.stdout
    report = reports(folder)["rank-0.json"]
    assert (report["error"], report["status"], report["steps"]) == ("LaunchError", "launch_failed", 0)
    assert not (folder / "run.parquet").exists()


def test_code_that_changed_since_planning_is_refused(attempt, mpiexec):
    folder = attempt(world_size=1, code_hash="0123456789")
    done = mpiexec(1, "-m", "ddp_hpc.execution.rank", folder)
    assert done.returncode == 3
    assert "code changed since planning: planned 0123456789" in reports(folder)["rank-0.json"]["message"]


@pytest.mark.parametrize(
    ("how", "error", "message", "status"),
    [
        ("raise", "RuntimeError", "the disk is on fire", "crashed"),
        ("exit", "SystemExit", "0", "crashed"),
        ("gpu memory", "OutOfMemoryError", "CUDA out of memory: as a device would say it", "oom_gpu"),
    ],
)
def test_a_rank_that_fails_ends_all_and_says_why(attempt, mpiexec, how, error, message, status):
    folder = attempt()
    began = time.monotonic()
    done = mpiexec(2, FAULTY, folder, how, 1, timeout_s=30)
    assert done.returncode != 0
    assert time.monotonic() - began < 30
    assert f"rank 1 on {os.uname().nodename}: {error}: {message}" in done.stdout
    report = reports(folder)["rank-1.json"]
    assert (report["rank"], report["error"], report["message"], report["status"]) == (1, error, message, status)
    assert report["steps"] == len(report["curve"]["rank_loss"]) == len(report["curve"]["t_s"]) == 19
    assert not (folder / "run.parquet").exists()


def test_a_rank_that_vanishes_without_a_word_ends_all(attempt, mpiexec):
    folder = attempt()
    assert mpiexec(2, FAULTY, folder, "vanish", 1, timeout_s=30).returncode != 0
    assert not (folder / "run.parquet").exists()


@pytest.mark.parametrize(
    ("number", "more"), [(signal.SIGSEGV, ""), (signal.SIGBUS, ", which .* most often /dev/shm is full .*")]
)
def test_a_crash_within_mpi_init_is_the_launch_not_the_training(attempt, number, more):
    """Open MPI 5.0 does so now and then (its issue 12495): the machine file says how often that is tried again."""
    folder = attempt(world_size=1)
    (folder / "mpi4py.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})\n")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])

    done = subprocess.run(
        [sys.executable, "-m", "ddp_hpc.execution.rank_watchdog", folder],
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )

    assert done.returncode == 128 + number
    ending = classify(Evidence(exit_code=done.returncode, reports=Attempt(folder).reports))
    assert ending.status == "launch_failed"
    assert re.fullmatch(f"rank 0 on .*: killed by {number.name} before MPI was up{more}", ending.reason)


def test_a_thread_that_lives_on_holds_no_rank(attempt, mpiexec):
    folder = attempt()
    assert mpiexec(2, FAULTY, folder, "thread", 1, timeout_s=30).returncode == 0
    assert row(folder)["status"] == "ok"


NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error, NCCL version 2.28.3\nncclUnhandledCudaError: Call "
    "to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)
CAPTURED = "CUDA error: out of memory\nthis step cannot be captured in a CUDA graph: set `capture: off`"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("CUDA error: out of memory", "oom_gpu"),
        (CAPTURED, "oom_gpu"),
        (NCCL, "oom_gpu"),
        ("Triton Error [CUDA]: out of memory", "oom_gpu"),
        ("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY", "oom_gpu"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "oom_gpu"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom_gpu"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "oom_gpu"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "oom_gpu"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "oom_host"),
        ("MPI_ERR_NO_MEM: out of memory", "oom_host"),
        ("its last words: numpy._core._exceptions._ArrayMemoryError: Unable to allocate 15 TiB", "oom_host"),
        ("its last words: terminate called after throwing an instance of 'std::bad_alloc'", "oom_host"),
        ("its last words: torch.OutOfMemoryError: CUDA: no room", "oom_gpu"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "launch_failed"),
        ("CUDA error: an illegal memory access was encountered", "crashed"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "crashed"),
        ("NCCL error: Cuda failure 700 'an illegal memory access was encountered'", "crashed"),
    ],
)
def test_memory_of_a_gpu_and_of_the_host_are_told_apart_by_their_words(words, status):
    """Also where the launcher passes on what the rank has printed."""
    error, printed = RuntimeError(words), f"Traceback (most recent call last):\nRuntimeError: {words}"
    assert _status_of(error) == status
    report = {"rank": 0, "host": "n0", "error": "RuntimeError", "message": words, "traceback": printed}
    said = [*printed.splitlines(), f"rank 0 on n0: RuntimeError: {words}".splitlines()[0], "MPI_ABORT was invoked"]
    assert classify(Evidence(exit_code=1, reports=[report | {"status": status}], last_words=said)).status == status


def test_memory_that_torch_or_python_does_not_get_is_told_apart():
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(1 << 50)
    assert _status_of(torchs.value) == _status_of(MemoryError()) == "oom_host"
    assert _status_of(torch.cuda.OutOfMemoryError("CUDA out of memory")) == "oom_gpu"
    assert _status_of(ValueError("out of range")) == "crashed"
