"""Verdicts on claims: reproduced only where number and interval agree; nothing that is missing is a number."""

from dataclasses import replace

import pandas as pd
import pytest
from factory import Result, constant, made_up, planned, realistic

from ddp_hpc.tables import claims

GRID = [{"exchange": "ring", "world_size": [1, 2, 4], "batch_size": 16, "learning_rate": 0.1}]
CELLS = {"table": "runs", "column": "train_s"}
TIMES = {1: 8.0, 2: 4.0, 4: 2.0}  # halves with twice the ranks


def steady(spec):
    """Seed and noise scale a run's time, alike for all world sizes."""
    factor = 1 + 0.01 * spec.seed
    return replace(constant(1.0), columns={"train_s": factor * TIMES[spec.world_size], "samples_seen": 25600})


def at(world_size, **more):
    return CELLS | {"where": {"world_size": world_size}} | more


def ratio(of, to):
    return {"ratio": {"of": at(of), "to": at(to)}}


def judged(folder, ours, expect, train=steady, repeats=3, grid=GRID, **keys):
    claim = {"id": "a", "statement": "it scales", "source": "X (2017)", "ours": ours, **keys}
    claim |= {"expect": expect} if expect else {}
    ledger = made_up(folder, train, grid=grid, repeats=repeats, claims=[claim])
    return claims.build(ledger).iloc[0]


def test_repeats_are_paired_by_their_seed(tmp_path):
    """Each seed has a time of its own, the ratio of two runs of one seed is exactly 2."""
    row = judged(tmp_path, ratio(2, 4), {"within": 0.01}, published=2.0)

    assert (row["ours"], row["ours_low"], row["ours_high"]) == pytest.approx((2.0, 2.0, 2.0))
    assert (row["verdict"], row["interval_from"]) == ("reproduced", "3 runs")


@pytest.mark.parametrize(
    ("expect", "contradicted", "verdict"),
    [
        ({"at_least": 1.9}, None, "reproduced"),
        ({"at_least": 2.1}, None, "contradicted"),
        ({"at_least": 2.1}, {"below": 1.5}, "undecided"),
        ({"between": [1.0, 1.9]}, {"above": 1.95}, "contradicted"),
    ],
)
def test_the_verdict_is_what_the_study_says(tmp_path, expect, contradicted, verdict):
    more = {"contradicted": contradicted} if contradicted else {}

    assert judged(tmp_path, ratio(2, 4), expect, **more)["verdict"] == verdict


def test_an_interval_that_holds_both_is_undecided(tmp_path):
    row = judged(tmp_path, {"value": at(2)}, {"at_least": 4.0})

    assert row["ours_low"] < 4.0 < row["ours"]
    assert (row["verdict"], row["reason"]) == ("undecided", "the interval holds what is expected, and more")


def test_one_run_without_an_interval_says_so(tmp_path):
    row = judged(tmp_path, {"value": at(2)}, {"at_least": 4.0}, repeats=1)

    assert pd.isna(row["ours_low"])
    assert (row["verdict"], row["reason"]) == ("reproduced", "no interval (1 run): our number alone decides")


@pytest.mark.parametrize(("kind", "number"), [("exponent", -1.0), ("decreasing", 0.5), ("increasing", -0.5)])
def test_a_trend_is_fitted_for_each_seed(tmp_path, kind, number):
    row = judged(tmp_path, {"trend": CELLS | {"over": "world_size", "as": kind}}, {"between": [-2, 2]})

    assert (row["ours"], row["ours_low"], row["ours_high"]) == pytest.approx((number,) * 3)


def test_a_direction_alone_is_an_expectation(tmp_path):
    trend = CELLS | {"over": "world_size"}

    assert judged(tmp_path / "a", {"trend": trend | {"as": "decreasing"}}, None)["verdict"] == "reproduced"
    assert judged(tmp_path / "b", {"trend": trend | {"as": "increasing"}}, None)["verdict"] == "contradicted"


def test_several_rows_where_one_is_needed_are_no_number(tmp_path):
    row = judged(tmp_path, {"value": CELLS}, {"at_least": 0})

    assert (row["verdict"], row["ours"]) == ("not testable here", pytest.approx(float("nan"), nan_ok=True))
    assert row["reason"].endswith("they differ in world_size: 1, 2, 4")


def test_runs_that_did_not_end_well_are_no_numbers(tmp_path):
    def train(spec):
        if spec.world_size == 4:
            return Result("crashed", "no memory")
        return Result("missing") if (spec.world_size, spec.seed) == (2, 1) else steady(spec)

    none, some = (
        judged(tmp_path / "a", ratio(2, 4), {"at_least": 0}, train),
        judged(tmp_path / "b", ratio(1, 2), {"within": 0.01}, train, published=2),
    )
    whole = judged(tmp_path / "c", ratio(1, 2), {"within": 0.01}, train, published=2, applies_when=["complete"])

    assert (none["verdict"], none["reason"]) == ("not testable here", "no run has a result: 3 crashed")
    assert (some["verdict"], some["interval_from"]) == ("reproduced", "2 runs")
    assert some["reason"].startswith("1 of 3 runs have no result: 1 not yet run")
    assert (whole["verdict"], whole["reason"]) == ("not testable here", "not complete: of 6 runs 1 not yet run")
    assert whole["ours"] == pytest.approx(2.0)


def test_a_study_that_has_not_run_has_no_verdict(tmp_path):
    claim = {"id": "a", "statement": "s", "source": "x", "ours": ratio(1, 2), "expect": {"at_least": 0}}
    row = claims.build(planned(tmp_path, grid=GRID, claims=[claim])).iloc[0]

    assert (row["verdict"], row["reason"]) == ("not testable here", "no run has a result: 1 not yet run")


def test_what_the_claim_needs_is_said(tmp_path):
    needs = ["within_cores", "gpu", {"nodes": 2}, {"ranks": 64}]
    grid = [GRID[0] | {"world_size": [1, 16]}]
    row = judged(tmp_path, {"value": at(16)}, {"at_least": 0}, realistic, 1, grid, applies_when=needs)

    assert row["verdict"] == "not testable here"
    assert row["reason"] == (
        "oversubscribed: more threads than cores (16 ranks, 8 cores); no GPU: the runs used the CPU; "
        "needs 2 nodes, the largest complete run has 1; needs 64 ranks, the largest complete run has 16"
    )


def test_a_null_is_no_number_and_its_reason_is_given(tmp_path):
    def train(spec):
        why = {"null_columns": {"energy_j": "no GPU is used"}}
        return replace(steady(spec), provenance=why)

    row = judged(tmp_path, {"value": at(2, column="energy_j")}, {"at_least": 0}, train)

    assert (row["verdict"], row["reason"]) == ("not testable here", "energy_j is null: no GPU is used")


def test_the_source_s_example_of_300_million_parameters_takes_400_ms(tmp_path):
    """1.2 GB around 40 ranks at 6 GB/s: 2 x 39/40 x 1.2 / 6 s."""
    link = {"exchange": "ring", "bytes": 1.2e9, "world_size": 40, "bandwidth_gb_per_s": 6}
    row = judged(tmp_path, {"predicted": link}, {"within": 0.05}, published=0.4)

    assert (row["ours"], row["verdict"]) == (pytest.approx(0.39), "reproduced")
