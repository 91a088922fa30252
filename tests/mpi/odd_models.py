"""Models that are unlike others, and losses that break where only one rank sees it."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from catalogued import usable
from mpi4py import MPI
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import BASE, run

from ddp_hpc.config import spec
from ddp_hpc.models import mlp
from ddp_hpc.training import components, trainer


def give(monkeypatch, build):
    """Let `build()` make the models."""
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: build())


def test_a_loss_that_breaks_in_the_last_step_of_one_rank_ends_all_of_them(comm, monkeypatch):
    """Where ranks take their steps each by itself, the others may have ended well."""
    calls, assemble = itertools.count(1), trainer.assemble

    def break_the_last(*arguments):
        parts = assemble(*arguments)
        loss = parts.loss

        def broken(outputs, targets):
            last = next(calls) == trainer.WARM_UP_STEPS + BASE["budget"]["steps"]
            value = loss(outputs, targets)
            return value + (float("inf") if last and comm.rank == comm.size - 1 else 0.0)  # its gradient is finite

        object.__setattr__(parts, "loss", broken)
        return parts

    monkeypatch.setattr(trainer, "assemble", break_the_last)
    for name in usable(comm.size):
        calls = itertools.count(1)
        result, *_ = run(comm, exchange=name)
        assert result.diverged, name
        assert result.evaluations == [], name


def test_a_model_whose_outputs_would_be_broadcast_is_refused_before_the_first_step(comm, monkeypatch):
    give(monkeypatch, lambda: nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)))  # (N,), where the targets are (N, 1)
    with pytest.raises(ValueError, match=r"model mlp gives .* of shape \(8,\) .* expected for regression: .* \(8, 1\)"):
        run(comm, dataset="step_function", batch_size=8)


class Shared(nn.Module):
    """A layer used twice, each time computed anew in the backward pass: its weights get two gradients there."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(lambda y: torch.relu(self.twice(y)), x, use_reentrant=True)
        return self.last(x)


def test_a_second_gradient_in_one_backward_pass_is_right_or_refused(comm, monkeypatch):
    give(monkeypatch, Shared)
    _, expected, _ = run(MPI.COMM_SELF, exchange="none", dtype="float64", batch_size=BASE["batch_size"] * comm.size)
    for name in usable(comm.size, EXACT=True, SYNCHRONOUS=True, OVERLAPS=False):
        _, replica, _ = run(comm, exchange=name, dtype="float64")
        np.testing.assert_allclose(replica.weights, expected.weights, rtol=0, atol=1e-11, err_msg=name)
    with pytest.raises(RuntimeError, match=r"ring_overlapped: a parameter got a gradient twice.*use_reentrant=False"):
        run(MPI.COMM_SELF, exchange="ring_overlapped")  # alone: nothing must be on its way when it is left


def test_weights_that_are_not_trained_are_the_same_on_all_ranks_even_if_the_others_start_apart(comm, monkeypatch):
    def build():
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        model[1].requires_grad_(False)
        return model

    give(monkeypatch, build)
    _, replica, _ = run(comm, exchange={"name": "weight_average", "different_starts": True, "period": 5})
    frozen = comm.allgather(replica.model[1].weight.numpy())
    assert all(np.array_equal(one, frozen[0]) for one in frozen)


class Restless(nn.Module):
    """It counts and draws in evaluation too, in a buffer and in a parameter that is not trained."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.register_buffer("seen", torch.zeros(()))
        self.own = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x):
        self.seen = self.seen + torch.rand(())
        self.own.data += 1
        return self.layers(x) * (1 + 0.1 * self.seen + 0.01 * self.own)


def test_training_does_not_notice_an_evaluation_whatever_the_model_does_in_it(comm, monkeypatch):
    give(monkeypatch, Restless)
    without, *_ = run(comm)
    result, *_ = run(comm, evaluate_every_steps=4)
    assert len(result.evaluations) == 3
    assert result.losses == without.losses


class Restarting(nn.Module):
    """In one of its calls it does to its layer what `do` does."""

    def __init__(self, do, call):
        super().__init__()
        self.layer, self.do, self.calls = nn.Linear(64, 10), do, call

    def forward(self, x):
        self.calls -= 1
        if self.calls == 0:
            self.do(self.layer)
        return self.layer(x.flatten(1))


def clamp(layer):
    layer.weight.data = layer.weight.data.clamp(-1, 1)


def renew(layer):
    layer.weight = nn.Parameter(layer.weight.detach().clone())


@pytest.mark.parametrize("call", [1, trainer.WARM_UP_STEPS + 8], ids=["warm-up", "later"])
@pytest.mark.parametrize("do", [clamp, renew, nn.Linear.zero_grad, lambda layer: layer.weight.requires_grad_(False)])
def test_a_model_whose_weights_would_no_longer_be_trained_is_refused(comm, monkeypatch, do, call):
    """Its loss would stand still, or fall less, with no word of why."""
    give(monkeypatch, lambda: Restarting(do, call))
    with pytest.raises(RuntimeError, match=r"its parameter layer\.weight|has dropped 1 of the parameters"):
        run(MPI.COMM_SELF)


def normalised():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def test_what_is_evaluated_is_rank_0s_model(comm, monkeypatch):
    """The running means of BatchNorm differ between ranks."""
    give(monkeypatch, normalised)
    result, replica, _ = run(comm, dtype="float64")
    means = comm.allgather(replica.model[2].running_mean.numpy())
    assert comm.size == 1 or not np.array_equal(means[0], means[1])

    given = spec.load(BASE | {"world_size": 1, "dtype": "float64"})
    alone = components.assemble(given, MPI.COMM_SELF, Path("unused"), torch.device("cpu"))
    alone.replica.weights.copy_(replica.weights)
    for own, other in zip(alone.replica.buffers(), replica.buffers(), strict=True):
        own.copy_(comm.bcast(other))
    assert result.evaluations[-1][1:] == pytest.approx(components.evaluate(alone, MPI.COMM_SELF)[:2], rel=1e-12)
