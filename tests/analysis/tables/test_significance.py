"""How sure a winner is: from the variance between runs, never from the scatter along a curve."""

import numpy as np
import pytest
from factory import constant, made_up
from scipy import stats

from ddp_hpc.analysis.intervals import Arm, least_apart, over_runs
from ddp_hpc.analysis.tables import areas, winners
from ddp_hpc.analysis.tables._winner_selection import Score, told_apart
from ddp_hpc.analysis.variance_model import prior
from ddp_hpc.runs.eligibility import least_mean

NO_NOISE = Arm(np.nan, 0, np.nan, 0)
NO_REPEATS = prior([])
SEARCH = [{"exchange": "ring", "world_size": 2, "batch_size": [16, 32, 64], "learning_rate": [0.1, 0.5]}]


@pytest.mark.parametrize(
    ("values", "alike"),
    [
        ([100, 100.001, 200], 2),  # however far: one run each, and nothing does the same work
        ([100], 0),
    ],
)
def test_single_runs_without_any_noise_known_are_not_told_apart(values, alike):
    ranked = [Score((float(value),)) for value in values]

    assert told_apart(ranked, NO_REPEATS, NO_NOISE, 0.01)[0] == alike


def test_single_runs_are_told_apart_by_the_noise_of_time_and_the_answer_says_what_it_does_not_hold():
    of_time = Arm(np.nan, 0, 0.1**2, 20)
    limit = np.exp(stats.t.ppf(0.95, 20) * np.sqrt(2) * 0.1)  # two points: Student's, on one side
    told = [told_apart([Score((1.0,)), Score((x * limit,))], NO_REPEATS, of_time, 0.01)[0] for x in (0.99, 1.01)]

    assert told == [1, 0]
    assert told_apart([Score((1.0,)), Score((1.005,))], NO_REPEATS, Arm(np.nan, 0, 1e-9, 20), 0.01) == (
        1,
        "one run each: the noise of time only, 20 degrees of freedom, at least 1 %",
    )


@pytest.mark.parametrize(("others", "freedom"), [(1, 10), (2, 3), (5, 20), (9, 60)])
def test_the_limit_is_dunnetts_on_one_side(others, freedom):
    """Differences from one mean have Student's distribution in as many dimensions, correlated by a half."""
    limit = least_apart(others, freedom)
    correlated = np.full((others, others), 0.5) + 0.5 * np.eye(others)
    together = stats.multivariate_t(shape=correlated, df=freedom, seed=0)

    assert together.cdf(np.full(others, limit), maxpts=200_000) == pytest.approx(0.95, abs=2e-3)


@pytest.mark.parametrize(
    ("scatter", "repeats"),
    [
        ([0.3] * 6, 3),
        ([0.3, 0.03, 0.03, 0.03, 0.03, 0.03], 3),  # the best one scatters ten times as much as the others
        ([0.3, 0.3, 0.01, 0.01, 0.01, 0.01], 3),
        ([0.3, 0.03, 0.03], 5),
        ([0.3, 0.03], 3),
        ([0.3] + [0.03] * 11, 10),
    ],
)
def test_the_true_best_is_told_apart_from_the_winner_in_no_more_than_5_percent_of_cases(scatter, repeats):
    """All points are equally good, so that the first is as good a best as any."""
    rng, lost, cases = np.random.default_rng(2), 0, 500
    for _ in range(cases):
        values = np.exp([spread * rng.normal(size=repeats) for spread in scatter])
        order = np.argsort(np.log(values).mean(axis=1))
        ranked = [Score(tuple(values[i])) for i in order]
        alike, _ = told_apart(ranked, prior([Arm.of(score.costs) for score in ranked]), NO_NOISE, 0.0)
        lost += 0 not in order[: alike + 1]
    assert lost / cases <= 0.075


def test_points_that_scatter_alike_share_their_variance():
    """Of 6 points with 3 repeats each: more degrees of freedom than the 2 of each by itself."""
    scores = [Score(tuple(np.exp(mean + 0.1 * np.array([-1, 0, 1])))) for mean in (0, 1, 2, 3, 4, 5)]
    known = prior([Arm.of(score.costs) for score in scores])

    assert told_apart(scores, known, NO_NOISE, 0.0) == (0, "3 repeats, 4.16 degrees of freedom")


def test_repeats_that_do_not_differ_tell_nothing_of_the_next_one():
    """E.g. accuracies on a small test set, which are equal by chance."""
    scores = [Score((value,) * 3, higher_is_better=True) for value in (0.9, 0.8)]
    known = prior([Arm.of(score.costs) for score in scores])

    assert told_apart(scores, known, NO_NOISE, 0.0) == (
        1,
        "3 repeats that do not differ: not known how they scatter",
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_cannot_be_told_apart_is_the_beginning_of_the_ranking(tmp_path, seed):
    """One point that scatters little is told from the winner only if all behind it are."""
    rng = np.random.default_rng(seed)
    values = {(b, r): np.exp(rng.normal(size=3) * rng.choice([0.01, 0.2])) for b in (16, 32, 64) for r in (0.1, 0.5)}

    def train(spec):
        return constant(float(values[spec.batch_size, spec.learning_rate][spec.seed]), spec.steps_asked)

    study_runs = made_up(tmp_path, train, grid=SEARCH, repeats=3)
    (row,) = winners.build(study_runs).to_dict("records")
    ranking = list(areas.build(study_runs).sort_values("loss_area_loss_s")["point"])

    alike = row["cannot_be_told_from"].split("; ") if row["cannot_be_told_from"] else []
    assert [row["winner"], *alike] == ranking[: len(alike) + 1]
    assert row["judged_by"].startswith("3 repeats, ")


@pytest.mark.parametrize("noise", [0.002, 0.3])
def test_a_noisy_machine_finds_no_winner_where_a_quiet_one_does(tmp_path, noise):
    """One run each; the rates of a batch do the same work, so their times tell how noisy the clock is."""
    rng = np.random.default_rng(3)

    def train(spec):
        true = {16: 5.0, 32: 4.0, 64: 4.4}[spec.batch_size] * (1 + (spec.learning_rate - 0.1) / 10)
        factor = np.exp(noise * rng.normal())
        return constant(true * factor, spec.steps_asked, train_s=10 * factor)

    study_runs = made_up(tmp_path, train, grid=SEARCH)
    (row,) = winners.build(study_runs).to_dict("records")

    assert row["judged_by"] == "one run each: the noise of time only, 3 degrees of freedom, at least 1 %"
    assert (row["cannot_be_told_from_count"] == 5) == (noise == 0.3)
    assert (row["cannot_be_told_from_count"] == 0) == (noise == 0.002)


def test_two_repeats_share_what_does_equal_work_and_say_the_degrees_of_freedom():
    alone, shared = over_runs([1.0, 2.9]), over_runs([1.0, 2.9], noise=Arm(np.nan, 0, 0.2, 8))

    assert alone.basis == "2 runs, 1 degree of freedom"
    assert alone.high / alone.low > 1e5
    assert shared.basis == "2 runs, 8 degrees of freedom from what does equal work"
    own = np.var(np.log([1.0, 2.9]), ddof=1)  # the larger variance
    assert np.log(shared.high / shared.low) == pytest.approx(2 * stats.t.ppf(0.975, 8) * np.sqrt(own / 2))


def test_the_least_loss_over_a_window_is_the_least_mean_of_neighbours():
    loss = np.array([4.0, 1.0, 5.0, 2.0, 3.0])

    assert least_mean(loss, 1) == 1.0
    assert least_mean(loss, 2) == 2.5
    assert least_mean(loss, 5) == 3.0
    assert np.isnan(least_mean(loss, 6))
