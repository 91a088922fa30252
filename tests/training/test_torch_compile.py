"""Compiled steps; the facts about several ranks are in tests/mpi."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from ddp_hpc.cli.doctor import software
from ddp_hpc.config import catalog


def test_compiled_steps_are_those_of_one_operation_at_a_time(on_ranks, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # the processor's word is taken: seconds less
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    on_ranks(2, "compiled.py")
    if software.find_compiler() is None:
        pytest.skip("only refusals were tested: Inductor needs a C++ compiler, install g++ or name one in CXX")


@pytest.mark.parametrize("name", catalog.names("model"))
def test_every_model_of_the_catalogue_can_be_compiled_as_a_whole(name):
    """Graphs are traced, forward and backward, without a compiler for them."""
    file = import_module(f"ddp_hpc.models.{name}")
    shape = tuple(size or 4 for size in getattr(file, "INPUT_SHAPE", (5,)))
    tokens = getattr(file, "TOKENS", False)
    inputs = torch.randint(7, (3, *shape)) if tokens else torch.rand(3, *shape)
    outputs = 7 if tokens else 10 if name == "alexnet_l2" else 1
    model = file.build(shape, outputs)
    loss = getattr(file, "loss", F.mse_loss)
    targets = torch.rand(*model.eval()(inputs).shape)
    model.train()

    def compute(inputs, targets):
        return loss(model(inputs), targets)

    def gradients(compute):
        return torch.autograd.grad(compute(inputs, targets), list(model.parameters()))

    compiled = torch.compile(compute, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(gradients(compiled), gradients(compute))
