"""What `compare` promises, on result sets whose truth is known: few false alarms, and repeats that suffice."""

import numpy as np
import pytest
from synthetic import runs

from ddp_hpc.analysis.compare.significance import ALIKE, BETTER, WORSE, judge

POINTS, NOISE = 6, 0.012  # at the middle point, runs scatter by 1.2 %
MOST_FALSE = 0.07  # of result sets


@pytest.mark.parametrize("repeats", [2, 4])
def test_in_hundreds_of_pairs_of_equal_sets_few_raise_any_alarm(repeats):
    rng = np.random.default_rng(repeats)
    pairs = 500 if repeats == 4 else 200
    alarms = [
        any(finding.verdict != ALIKE for finding in judge(a, b, tolerance=0.0).findings)
        for a, b in (
            (runs(rng, POINTS, repeats, NOISE, {}), runs(rng, POINTS, repeats, NOISE, {})) for _ in range(pairs)
        )
    ]

    assert np.mean(alarms) <= MOST_FALSE


def test_single_comparisons_without_correction_would_raise_many():
    """What Holm's method is for: 12 comparisons at 5 % each, half of them of the same runs."""
    rng = np.random.default_rng(5)
    alarms = []
    for _ in range(100):
        found = judge(runs(rng, POINTS, 4, NOISE, {}), runs(rng, POINTS, 4, NOISE, {}), tolerance=0.0).findings
        alarms.append(any(finding.low_percent > 0 or finding.high_percent < 0 for finding in found))

    assert np.mean(alarms) > 2 * MOST_FALSE


def test_with_the_repeats_it_asks_for_a_slowdown_of_5_percent_is_found_in_nine_of_ten_pairs():
    """A pilot of 4 repeats says how many; then one point of as many new ones is slower by 5 %."""
    rng = np.random.default_rng(6)
    found, asked = [], []
    for number in range(150):
        slow = number % POINTS
        pilot = judge(runs(rng, POINTS, 4, NOISE, {}), runs(rng, POINTS, 4, NOISE, {}))
        needed = one(pilot, slow, "step_s").repeats_needed
        after = judge(runs(rng, POINTS, needed, NOISE, {}), runs(rng, POINTS, needed, NOISE, {slow: 1.05}))
        found.append(one(after, slow, "step_s").verdict == WORSE)
        asked.append(needed)

    assert np.mean(found) >= 0.9
    assert np.median(asked) <= 12  # and it does not ask for many more than it takes


def test_fewer_repeats_than_it_asks_for_would_not_do():
    rng = np.random.default_rng(7)
    noisy = 0.03
    pilots = [judge(runs(rng, POINTS, 4, noisy, {}), runs(rng, POINTS, 4, noisy, {})) for _ in range(20)]
    needed = [one(pilot, 3, "step_s").repeats_needed for pilot in pilots]
    few = [judge(runs(rng, POINTS, 4, noisy, {}), runs(rng, POINTS, 4, noisy, {3: 1.05})) for _ in range(100)]

    assert min(needed) > 4
    assert np.mean([one(after, 3, "step_s").verdict == WORSE for after in few]) < 0.5


def test_what_is_faster_is_better_and_what_others_do_is_not_changed_by_it():
    rng = np.random.default_rng(8)
    found = judge(runs(rng, POINTS, 8, 0.005, {}), runs(rng, POINTS, 8, 0.005, {2: 0.8, 4: 1.25}))

    assert one(found, 2, "step_s").verdict == one(found, 2, "samples_per_s").verdict == BETTER
    assert one(found, 4, "step_s").verdict == one(found, 4, "samples_per_s").verdict == WORSE
    assert {finding.verdict for point in (0, 1, 3, 5) for finding in of(found, point)} == {ALIKE}
    assert one(found, 4, "step_s").change_percent == pytest.approx(25, abs=2)
    assert one(found, 2, "samples_per_s").change_percent == pytest.approx(25, abs=3)


def test_a_change_below_the_tolerance_is_no_regression_however_sure():
    rng = np.random.default_rng(9)
    a, b = runs(rng, POINTS, 8, 0.0005, {}), runs(rng, POINTS, 8, 0.0005, {0: 1.02})

    assert one(judge(a, b, tolerance=0.01), 0, "step_s").verdict == WORSE
    assert one(judge(a, b, tolerance=0.05), 0, "step_s").verdict == "differs, but little"


def of(found, point):
    return [finding for finding in found.findings if finding.point == f"world_size {1 + point}"]


def one(found, point, metric):
    (finding,) = [finding for finding in of(found, point) if finding.metric == metric]
    return finding
