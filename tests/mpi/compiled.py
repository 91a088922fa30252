"""A compiled step computes what the eager one does, on several ranks; all in one launch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from catalogued import usable
from interrupted import BASE, check_same, in_parts, run
from mpi4py import MPI
from torch import nn

from ddp_hpc.cli.doctor import software
from ddp_hpc.config import catalog, spec
from ddp_hpc.models import mlp
from ddp_hpc.training import components, placement, torch_compile

compiling = pytest.mark.skipif(not software.find_compiler(), reason="no C++ compiler for Inductor")
EAGER = {"model": {"name": "mlp", "widths": []}, "dtype": "float64"}  # one for all, so that it is compiled once
STEP = EAGER | {"compile": True}


def one_of_each_kind(world_size):
    """Exchanges that are exact: one after the backward pass, one from its hooks, one that wraps the model."""
    kinds = {}
    for name in usable(world_size, EXACT=True, SYNCHRONOUS=True):
        flags = catalog.constants("exchange", name)
        kinds.setdefault((flags["OVERLAPS"], flags.get("WAITS_IN_BACKWARD", False)), name)
    assert len(kinds) == 3
    return kinds.values()


def assembled(comm, **fields):
    given = spec.load(BASE | {"world_size": comm.size} | STEP | fields)
    return given, components.assemble(given, comm, Path("unused"), torch.device("cpu"))


@compiling
def test_compiled_ranks_follow_one_eager_rank_with_the_whole_batch(comm):
    whole = {"exchange": "none", "world_size": 1, "batch_size": BASE["batch_size"] * comm.size}
    expected, alone, _ = run(MPI.COMM_SELF, **EAGER | whole)
    for name in one_of_each_kind(comm.size):
        result, replica, _ = run(comm, exchange=name, evaluate_every_steps=7, **STEP)
        np.testing.assert_allclose(replica.weights, alone.weights, rtol=0, atol=1e-11, err_msg=name)
        losses = np.mean(comm.allgather(np.array(result.losses)), axis=0)
        np.testing.assert_allclose(losses, expected.losses, rtol=1e-12, err_msg=name)
        assert len(result.evaluations) == 8  # of test sets of another size
        assert comm.allgather(result.compiled)[1:] == ["from the cache"] * (comm.size - 1)
        assert result.compile_s > 0


@compiling
def test_it_goes_on_from_checkpoints_with_the_same_bits(comm, folder):
    whole = run(comm, **STEP)
    check_same(comm, in_parts(comm, folder, (10, 30), **STEP), whole)
    assert whole[0].compiled == "from the cache"


@compiling
def test_gradients_stay_in_the_flat_tensor_and_another_shape_is_an_error(comm):
    given, parts = assembled(comm)
    weights, random = parts.replica.weights.clone(), torch.get_rng_state()
    parts, _ = torch_compile.compile_step(given, parts, comm, 0)
    assert torch.equal(parts.replica.weights, weights)
    assert torch.equal(torch.get_rng_state(), random)
    batch = parts.batches.batch()

    parts.compute(batch.inputs, batch.targets).backward()

    replica = parts.replica
    own = torch.zeros_like(replica.gradients)
    for span in replica.spans:
        assert span.parameter.grad.data_ptr() == replica.gradients[span.start :].data_ptr()
        own[span.start : span.end] = span.parameter.grad.flatten()
    assert torch.equal(own, replica.gradients)
    assert own.count_nonzero() > len(own) / 2
    with pytest.raises(RuntimeError, match=r"would have to be compiled again(.|\n)*expected 12, actual 5"):
        parts.compute(batch.inputs[:5], batch.targets[:5])


@compiling
def test_nothing_that_is_half_made_stays_in_the_cache(comm):
    comm.Barrier()
    for folder in torch_compile._root().iterdir():
        assert not folder.name.startswith("."), folder


class Talking(nn.Linear):
    def forward(self, x):
        print(end="")
        return super().forward(x)


def test_a_model_that_breaks_the_graph_is_refused(comm, monkeypatch):
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: Talking(64, outputs))
    given, parts = assembled(comm)
    with pytest.raises(RuntimeError, match=r"'mlp' cannot be compiled as a whole(.|\n)*print(.|\n)*compile: false"):
        torch_compile.compile_step(given, parts, MPI.COMM_SELF, 0)
    assert isinstance(parts.replica.model, Talking)


def test_where_there_is_no_compiler_it_says_what_to_do(comm, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "/not/there/g++"))
    given, parts = assembled(comm, batch_size=13)  # not in the cache
    with pytest.raises(placement.LaunchError, match=r"C\+\+ compiler(.|\n)*/not/there/g\+\+(.|\n)*`compile: false`"):
        torch_compile.compile_step(given, parts, MPI.COMM_SELF, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("exchange", ["none", "mpi_allreduce", "torch_ddp"])  # captured whole, in part, and not
def test_on_a_gpu_compiled_and_captured_steps_are_the_eager_ones(comm, exchange):
    fields = {"device": "cuda", "exchange": exchange, "world_size": 1}
    eager, *_ = run(MPI.COMM_SELF, capture="off", **fields)
    for _ in range(2):  # compiled anew, then from the cache
        compiled, *_ = run(MPI.COMM_SELF, compile=True, **fields)
        assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)
