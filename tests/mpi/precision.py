"""Coarser products are where they were asked for, and nowhere else."""

from pathlib import Path

import pytest
import torch
from mpi4py import MPI

from ddp_hpc.config import spec
from ddp_hpc.training import components, precision, trainer
from ddp_hpc.training.placement import LaunchError, survey
from ddp_hpc.training.step import training_step

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SPEC = {
    "model": {"name": "mlp", "widths": [32]},
    "dataset": "digits",
    "exchange": "none",
    "world_size": 1,
    "batch_size": 32,
    "learning_rate": 0.3,
    "budget": {"steps": 150},
    "device": "cpu",
    "threads_per_rank": 1,
}


@pytest.fixture(autouse=True)
def restored(comm):
    """The switches are those of the process."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_bfloat16_learns_the_digits_with_weights_and_gradients_in_float32():
    given = spec.load(SPEC | {"precision": "bfloat16"})
    training = trainer.Trainer(given, MPI.COMM_SELF, survey(given, MPI.COMM_SELF), Path("unused"))
    result, replica = training.run(), training.components.replica
    assert result.evaluations[-1][1] > 0.85
    assert replica.weights.dtype == replica.gradients.dtype == torch.float32
    # no weight is one that bfloat16 could hold: updates were not rounded
    assert (replica.weights.bfloat16().float() != replica.weights).float().mean() > 0.9


def test_products_are_rounded_where_bfloat16_was_asked_for_and_only_there():
    losses = {}
    for name in ("full", "bfloat16"):
        parts = components.assemble(spec.load(SPEC | {"precision": name}), MPI.COMM_SELF, Path("unused"), CPU)
        losses[name] = training_step(parts, 0)
        with parts.arithmetic():
            assert parts.replica.model(parts.dataset.test.inputs[:2]).dtype == getattr(
                torch, "bfloat16" if name == "bfloat16" else "float32"
            )
    assert losses["bfloat16"].dtype == torch.float32
    assert 0 < abs(losses["bfloat16"] - losses["full"]) < 0.02 * losses["full"]


def test_kernels_that_add_in_the_same_order_are_for_gpus_that_are_asked_for_them(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    try:
        components.assemble(spec.load(SPEC | {"deterministic": True}), MPI.COMM_SELF, Path("unused"), CPU)
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.deterministic
        precision.same_order_each_time(GPU)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_switches_are_set_both_ways(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name, products, convolutions in [("tf32", "high", True), ("full", "highest", False), ("tf32", "high", True)]:
        precision.choose(name, GPU)
        assert torch.get_float32_matmul_precision() == products
        assert torch.backends.cudnn.allow_tf32 is convolutions
    precision.choose("bfloat16", GPU)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)


def test_tf32_is_refused_where_there_is_none(monkeypatch):
    with pytest.raises(LaunchError, match=r"tf32 needs an NVIDIA GPU of compute capability 8\.0"):
        precision.choose("tf32", CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(LaunchError, match="this run is on cuda:0: expected here: full, bfloat16"):
        precision.choose("tf32", GPU)


@pytest.mark.gpu
def test_products_on_a_gpu_are_as_exact_as_asked_for():
    factor = torch.rand(512, 512, device=GPU)
    exact, errors = factor.double() @ factor.double(), {}
    for name in ("full", "tf32", "bfloat16"):
        with precision.choose(name, GPU)():
            errors[name] = float(((factor @ factor).double() - exact).abs().max() / exact.max())
    assert errors["full"] < 1e-6 < 1e-5 < errors["tf32"] < errors["bfloat16"]
