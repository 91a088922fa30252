"""GPU memory given to MPI: not before ranks like those of the run have sent it to each other."""

import os
import sys
from types import SimpleNamespace

import pytest

from ddp_hpc.config import spec as specs
from ddp_hpc.execution import cuda_aware_check
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.system.files import write_json
from ddp_hpc.training import placement

SPEC = {
    "model": "mlp",
    "dataset": "digits",
    "exchange": {"name": "ring", "gpu_path": "direct"},
    "world_size": 2,
    "batch_size": 16,
    "learning_rate": 0.1,
    "budget": {"steps": 4},
}


def says(*lines):
    """A launcher that starts something else."""
    return [sys.executable, "-c", "\n".join(lines), "--"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_averages_of_tensors_where_they_lie(on_ranks, ranks):
    on_ranks(ranks, "direct.py")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (says("import os, signal", "os.kill(os.getpid(), signal.SIGSEGV)"), "did not come through: SIGSEGV"),
        (says("raise SystemExit('mpiexec: 139')"), "did not come through: mpiexec: 139"),
        (says("import time", "time.sleep(60)"), "no answer within 1 s"),
        (says("""print('{"refused": "rank 1: ring_average gave [0.0]"}')"""), "rank 1: ring_average gave"),
        (says("print('[1]')"), "did not come through"),
        (["no-such-launcher"], "no-such-launcher: No such file"),
    ],
)
def test_an_mpi_that_cannot_is_refused_however_it_ends(launcher, words):
    refusal = cuda_aware_check.refusal(launcher, {}, timeout_s=1)
    assert words in refusal
    assert "expected: gpu_path: host" in refusal


def test_what_has_come_through_is_not_refused():
    assert cuda_aware_check.refusal(says("""print('{"refused": null}')"""), {}) is None


def test_ranks_that_try_it_take_a_slice_of_a_gpu_each_as_those_of_a_run(monkeypatch, capsys):
    node = SimpleNamespace(rank=1)
    world = SimpleNamespace(rank=0, size=2, Split_type=lambda kind: node, allgather=lambda mine: [mine] * 2)
    monkeypatch.setattr("mpi4py.MPI", SimpleNamespace(COMM_WORLD=world, COMM_TYPE_SHARED=0))
    monkeypatch.setenv(placement.VISIBLE, "MIG-a,MIG-b")
    cuda_aware_check._try()
    assert "ranks [0, 1] of 2 see no GPU" in capsys.readouterr().out
    assert os.environ[placement.VISIBLE] == "MIG-b"


def test_a_run_that_is_refused_starts_no_rank(tmp_path):
    folder = tmp_path / "run-0123456789"
    folder.mkdir()
    write_json(folder / "spec.json", {"run": folder.name, "spec": SPEC, "world_size": 2, "cuda_aware_mpi": True})
    outcome = supervise(folder, says("raise SystemExit('no GPU here')"), tmp_path)
    assert outcome.status == "launch_failed"
    assert "no GPU here" in outcome.reason
    assert not list(folder.glob("attempts/1/rank-*"))


def test_only_gpus_have_two_paths():
    with pytest.raises(ValueError, match=r"gpu_path direct\)' works on cuda, given device=cpu; .*: .*ring,"):
        specs.load(SPEC | {"device": "cpu"})
    on_cpus = SimpleNamespace(hosts=1, world_size=2)
    with pytest.raises(placement.LaunchError, match=r"gpu_path direct\)' works on cuda, and this run is on cpu"):
        placement.check_exchange(specs.load(SPEC), on_cpus, SimpleNamespace(type="cpu"))
    with pytest.raises(ValueError, match="where it means nothing"):
        specs.load(SPEC | {"exchange": {"name": "mpi_allreduce", "gpu_path": "direct", "compression": "top_k"}})
    with pytest.raises(ValueError, match="where it means nothing"):
        specs.load(SPEC | {"exchange": {"name": "parameter_server", "gpu_path": "direct", "compression": "float16"}})
