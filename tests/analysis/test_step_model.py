"""Predictions judged on drawn studies whose steps are known, and on series that others have published."""

import csv
from pathlib import Path

import numpy as np
import pytest
from drawn_studies import KINDS, TIMES, drawn, few, judged
from scipy import stats

from ddp_hpc import perfmodel
from ddp_hpc.analysis.prediction.measured import Place, Run, skewness_of
from ddp_hpc.analysis.prediction.step_model import (
    BETWEEN,
    ExchangeModel,
    Model,
    expected_latest,
    overlap_of,
    positive_fit,
)
from ddp_hpc.analysis.prediction.trust import doubt, held_out

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
STUDIES = 100


@pytest.fixture(scope="module")
def predictions():
    """Those of 100 studies of each kind that tell."""
    return {kind: judged(STUDIES, 0, kind) for kind in KINDS}


@pytest.mark.parametrize("times", TIMES)
def test_nine_in_ten_intervals_hold_the_truth(predictions, times):
    """Of all kinds together; one kind by itself may have a few fewer (docs/prediction.md)."""
    found = [one for every, _ in predictions.values() for one in every if one.times == times]

    assert len(found) == STUDIES * len(KINDS)
    assert sum(one.held for one in found) >= 0.9 * len(found)
    assert np.median([abs(one.step_s / one.true_s - 1) for one in found]) < 0.04
    assert np.median([one.high_s / one.low_s for one in found]) < 1.3  # what holds everything says nothing


def test_most_designs_tell(predictions):
    assert all(refused < STUDIES / 2 for _, refused in predictions.values())


def test_where_the_design_cannot_tell_nothing_is_said():
    """An exchange that was hidden whole wherever it was measured, and outgrows the work beside it later."""
    rng = np.random.default_rng(11)
    hidden = (one for one in iter(lambda: drawn(rng), None) if one.hidden)
    truth = next(one for one in hidden if not exposed(one, one.counts[-1]) and exposed(one, 8 * one.counts[-1]))
    model = Model(truth.runs(rng), truth.exchange, truth.one_node)

    why = doubt(model, truth.place(8 * truth.counts[-1]))
    assert why
    assert why.reason.startswith("the exchange was hidden whole at all measured world sizes")


def exposed(truth, n):
    """Whether more of an exchange is exposed than its last part, which always is."""
    whole, left = truth.exchange_s(n)
    return left > truth.hidden[1] * whole


@pytest.mark.parametrize(("counts", "told"), [((1, 2), False), ((2,), False), ((2, 3), True), ((1, 2, 4), True)])
def test_a_ring_of_one_count_does_not_tell_latency_from_bandwidth(counts, told):
    rng = np.random.default_rng(3)
    truth = next(one for one in iter(lambda: drawn(rng), None) if one.formula == "ring" and not one.one_node)
    truth = few(truth, *counts)
    model = Model(truth.runs(rng), truth.exchange, shares_memory=False)

    why = doubt(model, truth.place(2 * counts[-1]))
    assert (why is None or truth.kind == "strong") is told
    assert why is None or "too few world sizes" in why.reason or truth.kind == "strong"


def test_the_largest_count_left_out_is_predicted_from_the_others():
    rng = np.random.default_rng(5)
    truth = next(one for one in iter(lambda: drawn(rng), None) if one.formula == "ring" and one.hidden is None)
    runs = few(truth, 1, 2, 4, 8).runs(rng)

    found = held_out(lambda some: Model(some, truth.exchange, truth.one_node), runs)
    assert found.world_size == 8
    assert abs(found.error_percent) < 15
    assert held_out(lambda some: Model(some, truth.exchange, truth.one_node), runs[:1]).error_percent is None


@pytest.mark.parametrize(("skewness", "one"), [(0.0, stats.norm()), (1.0, stats.gamma(4)), (2.0, stats.expon())])
def test_the_latest_of_n_ranks_is_as_in_many_draws(skewness, one):
    draws = (one.rvs(size=(100_000, 16), random_state=1) - one.mean()) / one.std()

    assert expected_latest(16, np.array([skewness]))[0] == pytest.approx(draws.max(axis=1).mean(), rel=0.01)


def test_the_skewness_of_ranks_is_told_though_their_steps_share_much():
    rng = np.random.default_rng(7)
    work = 1 + 0.05 * rng.gamma(1.0, size=(20_000, 4)) + rng.normal(size=(20_000, 1))

    skewness, error = skewness_of(work)
    assert skewness == pytest.approx(2.0, abs=3 * error)
    assert error < 0.1
    assert np.isnan(skewness_of(work[:, :2])[0])


def test_what_of_an_exchange_is_hidden_is_found_from_where_it_is_not():
    work, exchange = np.array([10.0, 10.0, 10.0]), np.array([2.0, 6.0, 12.0])
    exposed = np.array([perfmodel.exposed_time(one, 0.4 * 10, 0.25 * one) for one in exchange])

    assert overlap_of(work, exchange, exposed) == pytest.approx((0.4, 0.25))


@pytest.mark.parametrize(("went", "counts"), [("allreduce", (2, 3)), ("ring", (2, 3)), ("ring", (4, 6))])
def test_how_an_allreduce_goes_is_told_by_counts_that_are_no_powers_of_two(went, counts):
    link, exchange = perfmodel.Link(latency=1e-4, bandwidth=1e9), ExchangeModel(formula="allreduce", size=1e7)
    seconds = {n: perfmodel.cost(went, 1e7, n).time(link) for n in (*counts, 12)}
    places = {n: Place(world_size=n, batch_size=1, nodes=n) for n in seconds}
    runs = [
        Run(place=places[n], work_s=0.01, exchange_s=value, exposed_s=value)
        for n in counts
        for value in (0.999 * seconds[n], 1.001 * seconds[n])
    ]

    model = Model(runs, exchange, shares_memory=False)
    assert model.exchange.formula == went
    assert model.predict(places[12]).middle.exchange_s == pytest.approx(seconds[12], rel=0.02)
    assert Model(runs[:2], exchange, shares_memory=False).exchange.formula == "allreduce"  # 2 or 4 alone do not tell


def test_the_servers_averaging_follows_from_two_and_four_workers():
    """SHM-Learn-Dist, figure 6.4: so many buffers more are added up on the server, after what one costs."""
    with (PUBLISHED / "shm_learn_dist" / "server.csv").open() as file:
        times = {int(row["workers"]): float(row["average_ms"]) for row in csv.DictReader(file) if row["average_ms"]}

    rows = np.array([[1.0, perfmodel.cost("parameter_server", 1.0, n).added_bytes] for n in (2, 4)])
    values = np.array([times[2], times[4]])
    predicted = positive_fit(rows, values[None], values)[0] @ [
        1.0,
        perfmodel.cost("parameter_server", 1.0, 8).added_bytes,
    ]
    assert predicted == pytest.approx(13.57, abs=0.01)
    assert predicted / times[8] - 1 == pytest.approx(0.011, abs=0.001)  # published: 13.422 ms


def test_baidus_exchange_on_forty_gpus_follows_from_its_link():
    """What the post gives: 1.2 GB of gradients, InfiniBand at 6 GB/s, 0.4 s for an exchange."""
    link = perfmodel.Link(bandwidth=6e9)
    exchange = ExchangeModel(formula="ring", size=1.2e9).given(BETWEEN, link)

    place = Place(world_size=40, batch_size=32, nodes=5)
    seconds = exchange.factors(place)[1:] @ np.nan_to_num(exchange.links)
    assert seconds == pytest.approx(0.39)
    assert seconds / 0.4 - 1 == pytest.approx(-0.025)
