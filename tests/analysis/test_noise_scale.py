"""The gradient noise scale of drawn gradients whose true one is known, and steps that follow from it."""

import numpy as np
import pytest

from ddp_hpc.analysis.prediction.noise_scale import Norms, StepsModel, StepsThere

DIMENSIONS = 64


def drawn(rng, noise_scales, samples, parts):
    """Return norms of gradients of a true one of length 1 that single samples are off by noise of this variance."""
    true = np.zeros(DIMENSIONS)
    true[0] = 1.0
    part, whole = [], []
    for noise_scale in noise_scales:
        spread = np.sqrt(noise_scale / DIMENSIONS / samples)
        gradients = true + spread * rng.normal(size=(parts, DIMENSIONS))
        part.append((gradients**2).sum(axis=1).mean())
        whole.append((gradients.mean(axis=0) ** 2).sum())
    return Norms(np.arange(len(part)), np.array(part), np.array(whole), parts, samples)


@pytest.mark.parametrize(("samples", "parts"), [(8, 2), (4, 4), (64, 2)])
def test_the_interval_holds_the_true_noise_scale_as_often_as_it_says(samples, parts):
    rng, truth = np.random.default_rng(samples), 40.0
    found = [drawn(rng, [truth] * 60, samples, parts).noise_scale() for _ in range(200)]
    known = [one for one in found if one.known]
    assert len(known) > 190
    assert np.median([one.middle for one in known]) == pytest.approx(truth, rel=0.1)
    assert 0.9 <= np.mean([one.low <= truth <= one.high for one in known]) <= 0.99


def test_a_gradient_that_is_lost_in_its_noise_has_no_noise_scale():
    found = drawn(np.random.default_rng(0), [1e6] * 20, 1, 2).noise_scale()
    assert not found.known
    assert "cannot be told from its noise" in found.basis
    assert drawn(np.random.default_rng(0), [1.0] * 3, 1, 2).noise_scale().basis == "fewer than 10 samples"


def test_steps_count_by_how_far_they_come():
    """Half of the steps have hardly any noise, in the others 30 times the batch: 1 and 1/31 of a full step."""
    batch, rng = 32, np.random.default_rng(1)
    norms = drawn(rng, [0.01] * 400 + [30 * batch] * 400, batch // 2, 2)
    share = (1 + 1 / 31) / 2
    assert norms.along_the_way(batch) == pytest.approx(batch * (1 / share - 1), rel=0.1)
    assert norms.until(399).along_the_way(batch) == pytest.approx(0.01, rel=0.5)
    assert np.isnan(norms.until(3).along_the_way(batch))


def test_steps_at_other_batches_follow_and_are_checked_where_they_were_measured():
    law, rng = lambda batch: 100 * (1 + 80 / batch), np.random.default_rng(2)
    off = lambda spread: np.exp(spread * rng.normal(size=3))
    ways = [StepsThere(batch, tuple(law(batch) * off(0.02)), tuple(80 * off(0.1))) for batch in (16, 64, 256)]
    model = StepsModel(tuple(ways))
    for batch in (8, 512, 2048):
        steps = model.interval(batch)
        assert steps.low <= law(batch) <= steps.high
        assert steps.middle == pytest.approx(law(batch), rel=0.1)
    critical = model.critical_batch()
    assert critical.low <= 80 <= critical.high
    assert model.held_out[0] == 256
    assert abs(model.held_out[1]) < 10
    assert model.noise_scale_of_steps == pytest.approx(80, rel=0.2)
    assert StepsModel(tuple(ways[:1])).held_out is None


def test_a_model_that_does_not_hold_says_so_by_its_error():
    """Twice the batch never helps here, whatever the gradients say."""
    ways = tuple(StepsThere(batch, (300.0, 310.0), (80.0, 90.0)) for batch in (16, 64, 256))
    assert StepsModel(ways).held_out[1] < -40
    assert np.isnan(StepsModel(ways).noise_scale_of_steps)
