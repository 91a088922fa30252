"""How sure a median or a mean is."""

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from ddp_hpc.analysis.intervals import Interval, block_length, mean_error, of_mean, of_median, of_ratio, over_runs


def autoregression(rng, steps, correlation):
    shocks = rng.normal(size=steps + 200) * np.sqrt(1 - correlation**2)
    return lfilter([1], [1, -correlation], shocks)[200:]


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_blocks_are_as_long_as_theory_has_it_for_an_autoregression(correlation):
    """For one of first order the best length is (3/2)^(1/3) (2 rho / (1 - rho^2))^(2/3) n^(1/3)."""
    rng, n = np.random.default_rng(0), 20_000
    lengths = [block_length(autoregression(rng, n, correlation)) for _ in range(20)]

    best = 1.5 ** (1 / 3) * (2 * correlation / (1 - correlation**2)) ** (2 / 3) * n ** (1 / 3)
    assert np.median(lengths) == pytest.approx(best, rel=0.15)


def test_steps_that_are_independent_or_all_equal_need_no_blocks():
    rng = np.random.default_rng(1)

    assert np.median([block_length(rng.normal(size=2000)) for _ in range(50)]) <= 3
    assert block_length(np.full(1000, 0.1)) == 1


def resampled(rng, x, block, draws=2000):
    """Return so many moving-block resamples of `x`, drawn."""
    starts = rng.integers(0, len(x) - block + 1, size=(draws, -(-len(x) // block)))
    return x[(starts[..., None] + np.arange(block)).reshape(draws, -1)[:, : len(x)]]


def test_the_closed_form_is_the_bootstrap_that_would_be_drawn():
    rng = np.random.default_rng(2)
    x = 0.01 * np.exp(0.2 * autoregression(rng, 2000, 0.7))
    block = block_length(x)
    drawn = resampled(rng, x, block)

    assert mean_error(x)[0] == pytest.approx(drawn.mean(axis=1).std(), rel=0.1)
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    found = of_median(x)
    assert found.high - found.low == pytest.approx(high - low, rel=0.2)
    assert found.low < np.median(x) < found.high


@pytest.mark.parametrize(("steps", "correlation"), [(200, 0.0), (200, 0.5), (1000, 0.5), (1000, 0.8), (4000, 0.9)])
def test_intervals_hold_the_truth_as_often_as_they_say(steps, correlation):
    rng = np.random.default_rng(3)
    medians, means = [], []
    for _ in range(400):
        x = np.exp(0.3 * autoregression(rng, steps, correlation))
        median, mean = of_median(x), of_mean(x)
        medians.append(median.low <= 1 <= median.high)
        means.append(mean.low <= np.exp(0.045) <= mean.high)

    assert 0.89 <= np.mean(medians) <= 0.99
    assert 0.88 <= np.mean(means) <= 0.99


def test_intervals_blind_to_correlation_would_be_far_too_narrow():
    rng = np.random.default_rng(4)
    x = [autoregression(rng, 2000, 0.9) for _ in range(100)]

    blind = np.mean([abs(one.mean()) < 1.96 * one.std() / np.sqrt(len(one)) for one in x])

    assert blind < 0.6


def test_single_slow_steps_do_not_move_the_interval_of_a_median():
    rng = np.random.default_rng(5)
    x = 1 + 0.01 * rng.normal(size=1000)
    quiet, disturbed = of_median(x), of_median(np.where(np.arange(1000) % 100 == 0, 50.0, x))

    assert disturbed.high - disturbed.low < 1.2 * (quiet.high - quiet.low)


def test_few_steps_have_no_interval_and_say_so():
    few = of_median(np.ones(49))
    assert (few.middle, few.known, few.basis) == (1.0, False, "fewer than 50 steps")
    assert of_median(np.full(100, np.nan)).basis == "fewer than 50 steps"


def test_several_runs_have_students_interval_of_their_logarithms():
    values = [1.0, 1.1, 1.25, 0.9]
    expected = np.exp(stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95))
    found = over_runs(values)

    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert (found.middle, found.basis) == (np.median(values), "4 runs")


def test_runs_differ_by_more_than_their_steps_so_a_single_run_says_what_it_does_not_know():
    within = Interval(2.0, 1.9, 2.2, "1 run: within it only")

    assert over_runs([4.0], within) == Interval(4.0, 3.8, 4.4, "1 run: within it only")
    alone = over_runs([4.0])
    assert (alone.middle, alone.known, alone.basis) == (4.0, False, "1 run")
    assert over_runs([]).basis == "no run"


def test_the_interval_of_skewed_runs_holds_their_median():
    found = over_runs([1.0] * 8 + [1e-6] * 7)

    assert found.low <= found.middle <= found.high


def test_the_interval_of_a_ratio_is_that_of_many_ratios():
    rng = np.random.default_rng(6)
    above, below = 3 + 0.06 * rng.normal(size=20_000), 2 + 0.05 * rng.normal(size=20_000)
    low, high = np.quantile(above / below, [0.025, 0.975])
    intervals = [Interval(middle, middle - 1.96 * sd, middle + 1.96 * sd, "") for middle, sd in ((3, 0.06), (2, 0.05))]
    found = of_ratio(*intervals)

    assert found.middle == 1.5
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)
