"""How sure a loss area is."""

import numpy as np
import pytest
from scipy.signal import lfilter

from ddp_hpc.analysis.intervals import curve_error
from ddp_hpc.analysis.tables._winner_selection import Area, compare, least_mean


def curve(rng, steps, correlation):
    """A loss that falls to 0.3, with noise that forgets by `correlation` a step, and steps of uneven length."""
    noise = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], rng.normal(size=steps + 200))[200:]
    loss = 0.3 + 2.0 * np.exp(-np.arange(steps) / (steps / 20)) + 0.08 * noise
    return np.cumsum(0.01 * (1 + 0.1 * rng.normal(size=steps))), loss


@pytest.mark.parametrize(("steps", "correlation"), [(100, 0.0), (400, 0.0), (400, 0.5), (2000, 0.6)])
def test_the_error_of_a_curve_is_the_scatter_of_areas_of_many_such_curves(steps, correlation):
    rng = np.random.default_rng(0)
    curves = [curve(rng, steps, correlation) for _ in range(300)]
    areas = np.array([np.trapezoid(loss, t_s) for t_s, loss in curves])
    errors = np.array([curve_error(t_s, loss) for t_s, loss in curves])

    covered = np.mean(np.abs(areas - areas.mean()) < 1.96 * errors)

    assert np.mean(errors) == pytest.approx(areas.std(), rel=0.2)
    assert 0.88 <= covered <= 0.99  # 0.95 for infinitely long curves


def test_an_error_blind_to_correlation_would_be_too_small():
    """What the blocks are for: with each step on its own, the error is half of the truth at a correlation of 0.6."""
    rng = np.random.default_rng(1)
    curves = [curve(rng, 2000, 0.6) for _ in range(50)]
    independent = [np.std(np.diff(np.diff(t_s) * loss[1:])) / np.sqrt(2) * np.sqrt(len(loss)) for t_s, loss in curves]

    assert np.mean([curve_error(*one) for one in curves]) > 1.5 * np.mean(independent)


def test_a_smooth_curve_has_little_error_and_a_short_or_broken_one_none_that_is_known():
    t_s = np.linspace(0, 1, 400)
    assert curve_error(t_s, np.exp(-3 * t_s)) < 0.01 * np.trapezoid(np.exp(-3 * t_s), t_s)
    assert curve_error(t_s[:49], t_s[:49]) is None
    assert curve_error(t_s, np.where(t_s > 0.9, np.nan, t_s)) is None


@pytest.mark.parametrize(
    ("least", "other", "larger", "method"),
    [
        (Area((273.081,)), Area((273.083,)), False, "assumed 1 % noise"),
        (Area((100.0,)), Area((101.0,)), False, "assumed 1 % noise"),  # inclusive
        (Area((100.0,)), Area((101.01,)), True, "assumed 1 % noise"),
        (Area((100.0,), 2.0), Area((105.0,), 2.0), False, "block bootstrap of one curve, at least 1 %"),
        (Area((100.0,), 2.0), Area((106.0,), 2.0), True, "block bootstrap of one curve, at least 1 %"),
        (Area((100.0,), 0.01), Area((100.5,), 0.01), False, "block bootstrap of one curve, at least 1 %"),
        (Area((100.0,), 0.01), Area((105.0,)), True, "assumed 1 % noise"),  # one of them has no curve
        (
            Area((99.0, 101.0), None),
            Area((100.0,), 1.0),
            False,
            "block bootstrap of one curve against repeats, at least 1 %",
        ),
        (Area((5.0, 5.0)), Area((5.0, 5.0)), False, "2 repeats"),
        (Area((5.0, 5.0)), Area((5.001, 5.001)), True, "2 repeats"),  # nothing scatters: any difference is one
    ],
)
def test_areas_are_told_apart_by_what_is_known_of_them(least, other, larger, method):

    assert compare(least, other, 0.01) == (larger, method)


def test_repeats_are_told_apart_as_welch_does():
    """Student's sleep data, group 2 against group 1: Welch's interval is (-3.37, 0.21), so not at 95 %."""
    one = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    two = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    shifted = tuple(value + 0.21 for value in two)

    assert not compare(Area(one), Area(two), 0.01)[0]
    assert compare(Area(one), Area(shifted), 0.01)[0]


def test_repeats_with_equal_truth_are_rarely_told_apart():
    rng = np.random.default_rng(2)
    wrong = [compare(Area(tuple(rng.normal(9, 1, 4))), Area(tuple(rng.normal(9, 1, 4))), 0)[0] for _ in range(1000)]

    assert np.mean(wrong) == pytest.approx(0.025, abs=0.015)  # one side of 95 %


def test_the_least_loss_over_a_window_is_the_least_mean_of_neighbours():
    loss = np.array([4.0, 1.0, 5.0, 2.0, 3.0])

    assert least_mean(loss, 1) == 1.0
    assert least_mean(loss, 2) == 2.5
    assert least_mean(loss, 5) == 3.0
    assert np.isnan(least_mean(loss, 6))
