"""How runs scatter, what that makes of differences, and how many repeats it takes."""

import numpy as np
import pytest
from scipy import stats

from ddp_hpc.analysis.intervals import Arm, contrast
from ddp_hpc.analysis.variance_model import Prior, holm, prior, repeats_needed


def test_without_a_prior_it_is_welchs_test():
    """Student's sleep data, group 1 against group 2."""
    one = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    two = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    found, expected = contrast([Arm.of(one), Arm.of(two)]), stats.ttest_ind(two, one, equal_var=False)

    assert found.p == pytest.approx(expected.pvalue)
    assert found.half_width == pytest.approx(expected.confidence_interval(0.95).high - found.difference)


def test_holm_is_the_textbook_example():
    """Wright, Biometrics 48 (1992), as R's p.adjust gives it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@pytest.mark.parametrize("scatter", [0.0, 1e-6, 0.001, 0.005, 0.01, 0.03, 0.1])
def test_repeats_needed_are_the_fewest_that_do_as_students_distribution_has_it(scatter):
    """With variances as good as known: the normal distribution's rule of (z + z)^2 2 sigma^2 / difference^2."""
    known = Prior(scatter**2, 1e6, 1e6, 1000)
    arms = [Arm(0.0, 4, scatter**2, 1e6)] * 2
    needed = repeats_needed(arms, [known, known], 0.05, 12)
    rule = (stats.norm.ppf(1 - 0.05 / 24) + stats.norm.ppf(0.9)) ** 2 * 2 * scatter**2 / 0.05**2

    assert needed == pytest.approx(max(2, rule), abs=1.01)


def test_more_scatter_never_needs_fewer_repeats():
    scatters = np.geomspace(1e-4, 0.1, 60)
    none = Prior(float("nan"), 0.0, 12.0, 0)
    needed = [repeats_needed([Arm(0.0, 4, s**2, 3.0)] * 2, [none, none], 0.05, 18) or 1001 for s in scatters]

    assert needed == sorted(needed)
    assert needed[0] < 5
    assert needed[-1] > 100


def test_points_that_scatter_alike_are_worth_more_than_those_that_do_not():
    rng = np.random.default_rng(0)
    alike = [Arm.of(rng.normal(size=4)) for _ in range(40)]
    unlike = [Arm.of(scale * rng.normal(size=4)) for scale in np.exp(2 * rng.normal(size=40))]

    assert prior(alike).freedom > 3 * prior(unlike).freedom
    assert prior(alike).variance == pytest.approx(1, rel=0.3)
    assert prior(alike[:1]).freedom == 0
