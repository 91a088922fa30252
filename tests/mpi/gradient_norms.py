"""Gradients that are sampled for the noise scale, of real trainings on several ranks."""

import numpy as np
import pytest
import torch
from catalogued import usable
from interrupted import BASE, in_parts, run
from odd_models import Restless, give

from ddp_hpc.config import catalog, spec
from ddp_hpc.execution.noise_scale import NoiseSampler
from ddp_hpc.training import sampler
from ddp_hpc.training.result import TrainResult

EVERY = {"noise_scale_every_steps": 4}


def test_samples_change_no_loss_and_are_in_no_time(comm):
    steps = {"budget": {"steps": 10}, "momentum": 0.9}
    names = usable(comm.size, DETERMINISTIC=True, SYNCHRONOUS=True, EXACT=True) if comm.size > 1 else ["none"]
    for name in names:
        plain, sampled = (run(comm, exchange=name, **steps, **key) for key in ({}, EVERY))
        assert plain[0].losses == sampled[0].losses, name
        assert torch.equal(plain[1].weights, sampled[1].weights), name
        assert [step for step, *_ in sampled[0].gradient_norms] == [4, 8], name
        result = sampled[0]
        assert result.traced_s > 0
        counted_s = result.history().timings.phases_s[3:].sum()
        assert counted_s < (result.ended_ns - result.time_zero_ns) / 1e9 - result.traced_s


def test_a_model_that_counts_and_draws_does_not_notice(comm, monkeypatch):
    give(monkeypatch, Restless)
    plain, sampled = (run(comm, budget={"steps": 10}, **key)[0] for key in ({}, EVERY))
    assert plain.losses == sampled.losses


def test_norms_are_those_of_gradients_that_are_computed_sample_by_sample(comm):
    rate = 1e-3
    fields = {"dtype": "float64", "budget": {"steps": 1}, "learning_rate": rate, "noise_scale_every_steps": 1}
    result, replica, _ = run(comm, **fields)
    still = run(comm, **fields | {"learning_rate": 1e-300})
    ((step, part, whole),) = result.gradient_norms
    moved = float(((replica.weights - still[1].weights) / rate).square().sum())

    assert step == 1
    assert whole == pytest.approx(moved, rel=1e-9)  # plain SGD moves by the rate times the mean gradient
    assert part == pytest.approx(
        np.mean(_squares(comm, still[1], spec.load(BASE | {"world_size": comm.size} | fields))), rel=1e-9
    )


def _squares(comm, replica, given):
    """Return the squared norm of the mean gradient of each part, from the gradients of single samples."""
    torch.manual_seed(given.seed)
    train = catalog.load("dataset", "digits").build(None).train
    parts, samples = spec.noise_parts(given.world_size, given.batch_size)
    chosen = torch.cat(
        [sampler.make_batches(given, rank, len(train), torch.device("cpu"))(0) for rank in range(comm.size)]
    )
    squares = []
    for part in range(parts):
        mine = chosen[part * samples : (part + 1) * samples]
        total = 0.0
        for number in mine.tolist():
            outputs = replica.model(train.inputs[number : number + 1].double())
            loss = torch.nn.functional.cross_entropy(outputs, train.targets[number : number + 1])
            found = torch.autograd.grad(loss, list(replica.model.parameters()))
            total = total + torch.cat([one.reshape(-1) for one in found])
        squares.append(float((total / len(mine)).square().sum()))
    return squares


def test_who_was_interrupted_has_sampled_what_he_would_have(comm, folder):
    whole, _, _ = run(comm, **EVERY)
    result, _, _ = in_parts(comm, folder, (10,), **EVERY)
    assert result.resumes == 1
    assert result.gradient_norms == whole.gradient_norms
    assert len(whole.gradient_norms) == 13


class Other:
    """Another tracer, of step 6."""

    first = 6

    def trace(self, components, take_step):
        self.traced = True
        return 0.5


def test_steps_are_sampled_and_traced_each_in_its_turn(comm, monkeypatch):
    given, result, other = spec.load(BASE | {"world_size": comm.size} | EVERY), TrainResult(), Other()
    both = NoiseSampler(given, comm, result, other)
    monkeypatch.setattr(both, "_sample", lambda components, step: (2.0, 1.0))
    seen = []
    for _ in range(4):
        seen.append(both.first)
        result.traced_s = both.trace(None, None)
    assert seen == [4, 6, 8, 12]
    assert result.gradient_norms == [(4, 2.0, 1.0), (8, 2.0, 1.0), (12, 2.0, 1.0)]
    assert other.traced
    assert 0.5 < result.traced_s < 10
