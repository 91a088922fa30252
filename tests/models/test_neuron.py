"""The single neuron of SHM-Learn-Dist: the same numbers as a plain loop, its noise, and when it settles."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn import draw, words
from factory import Result, made_up
from neuron_loop import partitioned, train

from ddp_hpc.analysis.tables import noise, noise_curves
from ddp_hpc.config.grid import expand

SEEDS, STEPS, POINTS, RANKS = 40, 4000, 400, (2, 4, 8, 16)


def test_trainings_are_those_of_a_plain_loop(on_ranks):
    on_ranks(2, "neuron.py", timeout_s=120)


@cache
def standard_deviations(published):
    """Return mean and standard deviation of the steady loss by ranks and seed; points and weights differ by seed."""
    draw = np.random.default_rng(0)
    points, start = draw.random((SEEDS, POINTS)), draw.random((SEEDS, 1))
    found = {}
    for ranks in RANKS:
        order = partitioned(SEEDS, POINTS, STEPS, ranks)
        losses = train(points, np.repeat(start, ranks, axis=1), order, published=published).mean(axis=2)
        steady = losses[:, STEPS // 2 :]
        found[ranks] = steady.mean(axis=1), steady.std(axis=1)
    return found


@pytest.mark.parametrize(
    ("published", "mean", "deviations"),
    [(True, 0.156, (0.101, 0.072, 0.052, 0.039)), (False, 0.375, (0.237, 0.169, 0.122, 0.092))],
)
def test_the_plain_loop_has_the_noise_of_the_published_script(published, mean, deviations):
    """The script itself, run again with 5 seeds: 2, 4, 8, 16 workers. A seed shows the noise of a worker's 400/N
    points, so that of 16 to 14 %: three standard errors of 5 seeds."""
    found = standard_deviations(published)
    assert [means.mean() for means, _ in found.values()] == pytest.approx([mean] * 4, rel=0.03)
    for (ranks, (_, ours)), script in zip(found.items(), deviations, strict=True):
        error = 1 / np.sqrt(2 * (POINTS / ranks - 1) * 5)
        assert ours.mean() == pytest.approx(script, rel=3 * error)


def test_the_noise_is_that_of_means_of_points_drawn_without_replacement():
    """Cochran, Sampling Techniques, 1977: variance (P - N) / (P - 1) / N; so a little less than 1/N."""
    rms = {ranks: np.sqrt(np.mean(deviations**2)) for ranks, (_, deviations) in standard_deviations(True).items()}
    for ranks in RANKS:
        expected = np.sqrt((POINTS - ranks) / (POINTS - 2) * 2 / ranks)
        assert rms[ranks] / rms[2] == pytest.approx(expected, rel=0.07)


def settling(spec):
    """A loss that comes down from 1 to a half, with noise that the ranks average out."""
    draw, steps = np.random.default_rng(spec.seed), 1000
    fall = 0.5 + 0.5 * np.exp(-np.arange(steps) / 40)
    loss = fall + 0.2 / np.sqrt(spec.world_size) * draw.choice([-1, 1], steps)
    if spec.exchange.name == "weight_average":
        loss = loss + np.where(np.arange(steps) == 3, 0.25, 0) + np.where(np.arange(steps) == 700, 0.125, 0)
    return Result(t_s=tuple(np.arange(1.0, steps + 1)), loss=tuple(loss))


GRID = [{"exchange": ["ring", "weight_average"], "world_size": [2, 8], "batch_size": 1, "learning_rate": 0.5}]
KEYS = {"grid": GRID, "budget": {"steps": 1000}, "rules": {"reference_exchange": "ring"}, "repeats": 2}


def test_noise_and_the_step_of_settling_are_those_of_a_brute_force(tmp_path):
    study_runs = made_up(tmp_path, settling, **KEYS)

    for run, (_, row) in zip(study_runs.planned, noise.build(study_runs).iterrows(), strict=True):
        loss = list(settling(run.spec).loss)
        rest = loss[500:]
        mean = sum(rest) / 500
        deviation = (sum((x - mean) ** 2 for x in rest) / 499) ** 0.5
        means = {k: sum(loss[k - 20 : k]) / 20 for k in range(20, 1001)}
        assert (row["loss_mean"], row["loss_sd"]) == pytest.approx((mean, deviation))
        assert (row["loss_least"], row["loss_largest"]) == (min(rest), max(rest))
        assert row["settle_step"] == next(k for k in means if abs(means[k] - mean) <= 0.1 * deviation)
        assert row["settle_5_percent_step"] == next(k for k in means if abs(means[k] - mean) <= 0.05 * mean)
        assert 20 < row["settle_step"] < 500


def test_a_run_is_compared_with_the_reference_of_its_own_seed_and_ranks(tmp_path):
    table = noise.build(made_up(tmp_path, settling, **KEYS))

    others = table[table["exchange"] == "weight_average"]
    assert len(others) == 4
    assert others["difference"].tolist() == pytest.approx([0.25] * 4)
    assert others["difference_steady"].tolist() == pytest.approx([0.125] * 4)
    assert table[table["exchange"] == "ring"]["difference"].isna().all()
    assert table["reason"].isna().all()


def test_what_has_no_steady_state_has_a_reason_and_no_number(tmp_path):
    special = {
        (2, 0): Result("crashed", "rank 1: ValueError: boom"),
        (8, 0): Result(t_s=(1.0,) * 99, loss=(0.5,) * 99),
    }
    study_runs = made_up(tmp_path, lambda spec: special.get((spec.world_size, spec.seed), settling(spec)), **KEYS)

    table = noise.build(study_runs).set_index(["exchange", "world_size", "seed"])

    assert table["reason"].dropna().to_dict() == {
        (exchange, ranks, 0): reason
        for exchange in ("ring", "weight_average")
        for ranks, reason in ((2, "not complete: crashed"), (8, "99 steps: fewer than 100 show no steady state"))
    }
    numbers = ["loss_mean", "loss_sd", "settle_step", "difference"]
    assert table.loc[table["reason"].notna(), numbers].isna().all(axis=None)


def test_pieces_of_curves_hold_all_steps_of_a_run(tmp_path):
    study_runs = made_up(tmp_path, settling, **KEYS)
    table = noise_curves.build(study_runs)

    for run in study_runs.planned:
        loss, pieces = pd.Series(settling(run.spec).loss), table[table["run"] == run.run]
        assert pieces["step"].tolist() == list(range(4, 1001, 4))
        assert pieces["loss_least"].tolist() == loss.groupby(loss.index // 4).min().tolist()
        assert pieces["loss_largest"].tolist() == loss.groupby(loss.index // 4).max().tolist()
        mean = loss.rolling(20).mean()[pieces["step"].to_numpy(int) - 1]
        np.testing.assert_allclose(pieces["loss_mean"], mean, rtol=1e-9)
        if run.spec.exchange.name == "weight_average":
            difference = pieces.set_index("step")["difference"]
            assert difference[difference > 1e-9].to_dict() == pytest.approx({4: 0.25, 704: 0.125})


PERIODS = [{"name": "weight_average", "period": period} for period in (1, 10)]


def test_figures_show_what_the_tables_hold_and_name_every_period(tmp_path):
    grid = [{"exchange": ["ring", *PERIODS], "world_size": [2, 8], "batch_size": 1, "learning_rate": 0.5}]
    study_runs = made_up(tmp_path, settling, **KEYS | {"grid": grid})
    tables = {"noise": noise.build(study_runs), "noise_curves": noise_curves.build(study_runs)}

    over_ranks, over_steps = (draw((study_runs, tables), name, name) for name in ("noise", "noise_curves"))

    for figure in (over_ranks, over_steps):
        assert {"weight_average (period 1)", "weight_average (period 10)"} < {*words(figure).split("\n")}
    ring = tables["noise"][tables["noise"]["exchange"] == "ring"].groupby("world_size")["loss_sd"].median()
    lines = [(line.get_xdata(), line.get_ydata()) for line in over_ranks.axes[0].lines]
    assert any(list(y) == pytest.approx(ring.tolist()) for _, y in lines)
    root = [(x, y) for x, y in lines if x[0] < 2 and x[-1] > 8]  # from end to end of the axis
    assert [y[0] / y[-1] for _, y in root] == pytest.approx([(x[-1] / x[0]) ** 0.5 for x, _ in root])
    assert len(root) == 1
    upper, lower = over_steps.axes[0], over_steps.axes[2]  # of 2 ranks
    assert upper.lines[0].get_ydata()[-1] == pytest.approx(np.mean(settling(study_runs.planned[0].spec).loss[-20:]))
    assert [max(line.get_ydata()) for line in lower.lines] == pytest.approx([0.25, 0.25])


def test_the_study_has_the_published_settings_and_more_seeds_of_what_is_settled():
    study = expand(Path(__file__).parents[2] / "config" / "studies" / "neuron.yaml")
    source = [spec for spec in study.specs if spec.model.options.get("loss") == "published"]
    whole, settled = ([spec for spec in source if spec.budget.steps == steps] for steps in (10_000, 2000))

    assert len(whole) + len(settled) == len(source)
    assert {spec.world_size for spec in whole} == {spec.world_size for spec in settled} == {2, 4, 8, 16}
    assert {spec.seed for spec in whole} == set(range(3))
    assert {(spec.exchange.name, spec.seed) for spec in settled} == {("mpi_allreduce", seed) for seed in range(21)}
    assert {(spec.learning_rate, spec.batch_size, spec.sampling) for spec in source} == {(0.5, 1, "partitioned")}


def test_a_fifth_of_the_steps_tells_the_noise_as_well():
    """What one seed differs from the next by is the points it has: more steps see the same ones again."""
    draw = np.random.default_rng(0)
    points, start = draw.random((4, 400)), np.repeat(draw.random((4, 1)), 16, axis=1)
    loss = train(points, start, partitioned(4, 400, 10_000, 16), published=True).mean(axis=2)

    whole, settled = (loss[:, steps // 2 : steps].std(axis=1) for steps in (10_000, 2000))
    assert settled == pytest.approx(whole, rel=1e-3)
    assert whole.std() / whole.mean() > 0.02
