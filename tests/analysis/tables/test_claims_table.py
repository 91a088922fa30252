"""Verdicts on claims: reproduced only where number and interval agree; nothing that is missing is a number."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factory import Result, constant, made_up, planned, realistic

from ddp_hpc.analysis.tables import claims
from ddp_hpc.config.study import Study

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


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Return the row of one claim about a study; the runs of a study are made once."""
    studies = {}

    def row(ours, expect, train=steady, repeats=3, grid=GRID, **keys):
        key = (train, repeats, json.dumps(grid))
        if key not in studies:
            studies[key] = made_up(tmp_path_factory.mktemp("study"), train, grid=grid, repeats=repeats)
        claim = {"id": "a", "statement": "it scales", "source": "X (2017)", "ours": ours, **keys}
        claim |= {"expect": expect} if expect else {}
        study = Study.model_validate(studies[key].study.model_dump() | {"claims": [claim]})
        return claims.build(replace(studies[key], study=study)).iloc[0]

    return row


def test_repeats_are_paired_by_their_seed(judged):
    """Each seed has a time of its own, the ratio of two runs of one seed is exactly 2."""
    row = judged(ratio(2, 4), {"within": 0.01}, published=2.0)

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
def test_the_verdict_is_what_the_study_says(judged, expect, contradicted, verdict):
    more = {"contradicted": contradicted} if contradicted else {}

    assert judged(ratio(2, 4), expect, **more)["verdict"] == verdict


def test_an_interval_that_holds_both_is_undecided(judged):
    row = judged({"value": at(2)}, {"at_least": 4.0})

    assert row["ours_low"] < 4.0 < row["ours"]
    assert (row["verdict"], row["reason"]) == ("undecided", "the interval holds what is expected, and more")


def test_one_run_without_an_interval_says_so(judged):
    row = judged({"value": at(2)}, {"at_least": 4.0}, repeats=1)

    assert pd.isna(row["ours_low"])
    assert row["verdict"] == "undecided"
    assert row["reason"] == (
        "no interval (1 run), so it is not known how sure the number is; by itself the number is as expected"
    )


@pytest.mark.parametrize(("kind", "number"), [("exponent", -1.0), ("decreasing", 0.5), ("increasing", -0.5)])
def test_a_trend_is_fitted_for_each_seed(judged, kind, number):
    row = judged({"trend": CELLS | {"over": "world_size", "as": kind}}, {"between": [-2, 2]})

    assert (row["ours"], row["ours_low"], row["ours_high"]) == pytest.approx((number,) * 3)


def test_a_direction_alone_is_an_expectation(judged):
    trend = CELLS | {"over": "world_size"}

    assert judged({"trend": trend | {"as": "decreasing"}}, None)["verdict"] == "reproduced"
    assert judged({"trend": trend | {"as": "increasing"}}, None)["verdict"] == "contradicted"


def test_several_rows_where_one_is_needed_are_no_number(judged):
    row = judged({"value": CELLS}, {"at_least": 0})

    assert (row["verdict"], row["ours"]) == ("not testable here", pytest.approx(float("nan"), nan_ok=True))
    assert row["reason"].endswith("they differ in world_size: 1, 2, 4")


def test_runs_that_did_not_end_well_are_no_numbers(judged):
    def train(spec):
        if spec.world_size == 4:
            return Result("crashed", "no memory")
        return Result("missing") if (spec.world_size, spec.seed) == (2, 1) else steady(spec)

    none, some = (
        judged(ratio(2, 4), {"at_least": 0}, train),
        judged(ratio(1, 2), {"within": 0.01}, train, published=2),
    )
    whole = judged(ratio(1, 2), {"within": 0.01}, train, published=2, applies_when=["complete"])

    assert (none["verdict"], none["reason"]) == ("not testable here", "no run has a result: 3 crashed")
    assert (some["verdict"], some["interval_from"]) == ("reproduced", "2 runs, 1 degree of freedom")
    assert some["reason"].startswith("1 of 3 runs have no result: 1 not yet run")
    assert (whole["verdict"], whole["reason"]) == ("not testable here", "not complete: of 6 runs 1 not yet run")
    assert whole["ours"] == pytest.approx(2.0)


def test_a_study_that_has_not_run_has_no_verdict(tmp_path):
    claim = {"id": "a", "statement": "s", "source": "x", "ours": ratio(1, 2), "expect": {"at_least": 0}}
    claim |= {"applies_when": ["within_cores", "quiet"]}
    row = claims.build(planned(tmp_path, grid=GRID, claims=[claim])).iloc[0]

    assert (row["verdict"], row["reason"]) == ("not testable here", "no run has a result: 1 not yet run")


def test_complete_are_the_runs_of_the_rows_that_are_read(judged):
    """A run that diverged is missing where it is read; in a search it has lost, and is not."""

    def train(spec):
        if spec.learning_rate == 0.5:
            return Result("diverged", "loss is nan", (0.1,), (float("nan"),))
        return constant(1.0, samples_seen=25600)

    def verdict(table, **where):
        ours = {"value": {"table": table, "column": "learning_rate", "where": where}}
        return judged(ours, {"at_most": 0.2}, train, grid=grid, applies_when=["complete"])["verdict"]

    grid = [{"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": [0.1, 0.5]}]

    assert verdict("runs", learning_rate=0.1) == "reproduced"
    assert verdict("runs", learning_rate=0.5) == "not testable here"
    assert verdict("winners", world_size=2) == "reproduced"


def test_what_the_claim_needs_is_said(judged):
    needs = ["within_cores", "gpu", {"nodes": 2}, {"ranks": 64}]
    grid = [GRID[0] | {"world_size": [1, 16]}]
    row = judged({"value": at(16)}, {"at_least": 0}, realistic, 1, grid, applies_when=needs)

    assert row["verdict"] == "not testable here"
    assert row["reason"] == (
        "oversubscribed: more threads than cores (16 ranks, 8 cores); no GPU: the runs used the CPU; "
        "needs 2 nodes, the largest complete run that it reads has 1; "
        "needs 64 ranks, the largest complete run that it reads has 16"
    )


def test_a_null_is_no_number_and_its_reason_is_given(judged):
    def train(spec):
        why = {"null_columns": {"energy_j": "no GPU is used"}}
        return replace(steady(spec), provenance=why)

    row = judged({"value": at(2, column="energy_j")}, {"at_least": 0}, train)

    assert (row["verdict"], row["reason"]) == ("not testable here", "energy_j is null: no GPU is used")


def test_the_source_s_example_of_300_million_parameters_takes_400_ms(judged):
    """1.2 GB around 40 ranks at 6 GB/s: 2 x 39/40 x 1.2 / 6 s."""
    link = {"exchange": "ring", "bytes": 1.2e9, "world_size": 40, "bandwidth_gb_per_s": 6}
    row = judged({"predicted": link}, {"within": 0.05}, published=0.4)

    assert (row["ours"], row["verdict"]) == (pytest.approx(0.39), "confirmed")


def test_a_trend_may_go_along_axes_that_go_together(judged):
    """With a fixed global batch, the batch per rank falls as the ranks rise; two batches at one place are no trend."""
    together = {"world_size": [1, 2, 4], "batch_size": [64, 32, 16]}
    trend = {"trend": CELLS | {"over": "world_size", "as": "exponent"}}
    zipped = [{"exchange": "ring", "learning_rate": 0.1, "zip": together}]
    row = judged(trend, {"at_most": 0}, grid=zipped)
    product = [{"exchange": "ring", "learning_rate": 0.1, "world_size": [1, 2], "batch_size": [64, 32]}]
    mixed = judged(trend, {"at_most": 0}, grid=product)

    assert (row["ours"], row["verdict"]) == (pytest.approx(-1.0), "reproduced")
    assert mixed["reason"].startswith("6 rows of the table runs fit at world_size 1, where one is needed")
    assert mixed["reason"].endswith("they differ in batch_size: 64, 32")


def test_the_interval_of_a_table_is_the_interval_of_the_claim(judged):
    """The table of scaling has combined the repeats itself; so has that of phases, whose column ends in its unit."""
    grid = [GRID[0], GRID[0] | {"exchange": "none", "world_size": 1}]
    kind = {"world_size": 4, "exchange": "ring", "kind": "fixed samples"}
    cells = {"table": "scaling", "column": "speedup", "where": kind}
    row = judged({"value": cells}, {"at_least": 1}, realistic, grid=grid)
    step = {"table": "phases", "column": "step_s", "where": {"world_size": 4}}
    of_step = judged({"value": step}, {"at_least": 0}, realistic, grid=grid)

    for found in (row, of_step):
        assert found["ours_low"] < found["ours"] < found["ours_high"]
        assert found["verdict"] == "reproduced"
        assert found["interval_from"].startswith("3 runs, ")
        assert found["interval_from"].endswith(" degrees of freedom from what does equal work")


def test_options_are_compared_as_a_grid_spells_them(judged):
    """The default of an option is a value like any other."""
    averaged = [{"name": "weight_average", "period": 10}, {"name": "weight_average", "period": 1}]
    grid = [GRID[0] | {"world_size": 2, "exchange": averaged}]
    for where in ({"exchange": {"name": "weight_average", "period": 1}}, {"exchange.period": 1}):
        row = judged({"value": CELLS | {"where": where}}, {"at_least": 0}, grid=grid)
        assert row["verdict"] == "reproduced", row["reason"]
    both = judged({"value": CELLS | {"where": {"exchange": "weight_average"}}}, {"at_least": 0}, grid=grid)

    assert "they differ in exchange_options: " in both["reason"]


@pytest.mark.parametrize(
    ("slow", "waited", "verdict"),
    [(0.2, 0.03, "reproduced"), (0.5, None, "not testable here"), (0.2, 0.1, "not testable here")],
)
def test_a_disturbed_run_tells_nothing_where_quiet_is_asked_for(judged, slow, waited, verdict):
    def train(spec):
        own = dict(steady(spec).columns) | {"core_wait_share": waited, "others_core_share": 0.1}
        return replace(steady(spec), columns=own | {"step_s": (1 - slow) * own["train_s"] / 100})

    quiet, any_ = (judged({"value": at(2)}, {"at_least": 0}, train, applies_when=needs) for needs in (["quiet"], []))

    assert (quiet["verdict"], any_["verdict"]) == (verdict, "reproduced")
    assert pd.isna(any_["reason"]) if slow < 0.3 else "3 of 3 rows were disturbed" in any_["reason"]


def test_a_run_that_sat_elsewhere_is_no_number(judged):
    def train(spec):
        result = steady(spec)
        return replace(result, columns=dict(result.columns) | {"placement_verified": spec.seed > 0})

    row = judged({"value": at(2)}, {"at_least": 0}, train)
    assert row["interval_from"] == "2 runs, 1 degree of freedom"
    assert "1 of 3 runs have no result: 1 placed otherwise than asked" in row["reason"]


def test_a_run_that_sat_elsewhere_is_no_number_even_where_its_status_is_asked_for(judged):
    def train(spec):
        result = steady(spec)
        return replace(result, columns=dict(result.columns) | {"placement_verified": False})

    row = judged({"value": CELLS | {"where": {"world_size": 2, "status": "ok"}}}, {"at_least": 0}, train)

    assert row["reason"] == "no run has a result: 3 placed otherwise than asked"


def test_a_run_that_crashed_is_no_run_on_a_cpu(judged):
    def train(spec):
        columns = dict(steady(spec).columns) | {"device_used": "cuda"}
        return Result("crashed", "x") if spec.seed == 1 else replace(steady(spec), columns=columns)

    row = judged({"value": at(2)}, {"at_least": 0}, train, applies_when=["gpu"])

    assert (row["verdict"], row["reason"]) == ("reproduced", "1 of 3 runs have no result: 1 crashed")


def test_nobody_knows_whether_runs_without_steps_were_quiet(judged):
    def train(spec):  # as asynchronous ones, whose ranks have no step in common
        return replace(steady(spec), columns=dict(steady(spec).columns) | {"step_s": None})

    row = judged({"value": at(2)}, {"at_least": 0}, train, applies_when=["quiet"])

    assert "not known whether the machine was quiet" in row["reason"]


def test_a_disturbed_reference_makes_no_exchange_faster(judged):
    def train(spec):
        result = steady(spec)
        calm, total = spec.exchange.name == "ring", result.columns["train_s"]
        return replace(result, columns=dict(result.columns) | {"step_s": (1 if calm else 0.4) * total / 100})

    grid = [{"exchange": ["torch_ddp", "ring"], "world_size": 2, "batch_size": 16, "learning_rate": 0.1}]
    cells = {"table": "exchanges", "column": "times_as_fast", "where": {"exchange": "ring"}}
    row = judged({"value": cells}, {"at_least": 1}, train, grid=grid, applies_when=["quiet"])

    assert row["verdict"] == "not testable here"
    assert row["reason"].startswith("disturbed")


def test_a_complete_claim_has_no_null_cells(judged):
    def train(spec):
        result = steady(spec)
        return replace(result, columns=dict(result.columns) | ({"energy_j": 5.0} if spec.seed == 0 else {}))

    ours = {"value": at(2, column="energy_j")}
    whole, any_ = (judged(ours, {"at_least": 0}, train, applies_when=needs) for needs in (["complete"], []))

    assert whole["reason"] == "not complete: energy_j is null in 2 of 3 rows"
    assert any_["verdict"] == "undecided"
    assert "energy_j is null in 2 of 3 rows" in any_["reason"]


def test_a_crowded_reference_makes_no_exchange_faster(judged):
    def train(spec):
        share = 0.5 if spec.exchange.name == "torch_ddp" else 0.0
        own = {"core_wait_share": share, "others_core_share": share, "step_s": steady(spec).columns["train_s"] / 100}
        return replace(steady(spec), columns=dict(steady(spec).columns) | own)

    grid = [{"exchange": ["torch_ddp", "ring"], "world_size": 2, "batch_size": 16, "learning_rate": 0.1}]
    cells = {"table": "exchanges", "column": "times_as_fast", "where": {"exchange": "ring"}}
    row = judged({"value": cells}, {"at_least": 0}, train, grid=grid, applies_when=["quiet"])

    assert row["verdict"] == "not testable here"
    assert row["reason"].startswith("disturbed: threads waited")


@pytest.mark.parametrize(("table", "column"), [("winners", "excluded_points"), ("phases", "runs")])
def test_numbers_without_any_run_reproduce_nothing(judged, table, column):
    cells = {"table": table, "column": column, "where": {"world_size": 2}}
    row = judged({"value": cells}, {"at_least": 0}, lambda spec: Result("crashed", "x"))

    assert (row["verdict"], row["reason"].split(":")[0]) == ("not testable here", "no run has a result")


def test_a_side_of_a_ratio_without_any_run_reproduces_nothing(judged):
    def train(spec):
        return Result("crashed", "x") if spec.world_size == 4 else steady(spec)

    sides = {of: {"table": "phases", "column": "runs", "where": {"world_size": of}} for of in (2, 4)}
    row = judged({"ratio": {"of": sides[4], "to": sides[2]}}, {"at_least": 0}, train)

    assert row["verdict"] == "not testable here"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"throttled_by_quota_share": 0.2}, "disturbed: a quota of CPU time was used up"),
        ({"other_trainings": 1}, "disturbed: other trainings ran on a node of a run"),
        ({}, "disturbed: the steps of 3 runs became slower or faster all the time"),
    ],
)
def test_a_quiet_claim_is_not_of_runs_that_a_quota_or_a_drift_slowed(judged, columns, words):
    def train(spec):
        step_s = 0.01 * (1 if columns else np.linspace(1, 2, 1000)) * (1 + 1e-3 * np.sin(np.arange(1000.0)))
        t_s = tuple(np.cumsum(step_s))
        return Result(t_s=t_s, loss=(0.1,) * 1000, columns=columns | {"samples_seen": 25600})

    row = judged({"value": at(2)}, {"at_least": 0}, train, applies_when=["quiet"])

    assert row["verdict"] == "not testable here"
    assert row["reason"].startswith(words)


@pytest.mark.parametrize(
    ("disturbed", "columns", "verdict"),
    [
        (0.9, {"status": "diverged"}, "reproduced"),  # out, however long it took
        (0.5, {"slow": 0.5}, "reproduced"),  # four times the area: twice it without what slowed it
        (0.5, {"slow": 0.8}, "not testable here"),  # without that it might have won
        (0.5, {"other_trainings": 1}, "not testable here"),  # nobody knows what they have cost
        (0.1, {"slow": 0.5}, "not testable here"),  # the winner itself
    ],
)
def test_what_disturbs_a_run_that_could_not_have_won_disturbs_no_claim_on_winners(
    tmp_path, disturbed, columns, verdict
):
    """Losses of the winner are read; the machine was disturbed while a run of one point trained."""
    more = dict(columns)
    slow, status = more.pop("slow", 0.0), more.pop("status", "ok")

    def train(spec):
        area = {0.1: 10.0, 0.5: 40.0, 0.9: 80.0}[spec.learning_rate] * (1 + 1e-4 * spec.seed)
        own = {"samples_seen": 25600, "test_metric": 0.8 + 1e-3 * spec.seed, "test_metric_name": "accuracy"}
        if spec.learning_rate != disturbed:
            return constant(area, **own)
        if status == "diverged":
            return Result("diverged", "loss is nan", (0.1,), (float("nan"),), columns={"other_trainings": 1})
        whole = constant(area, **own)
        steady_s = float(np.median(np.diff(whole.t_s))) * len(whole.t_s)
        return replace(whole, columns=dict(whole.columns) | more | {"train_s": steady_s / (1 - slow)})

    grid = [{"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": [0.1, 0.5, 0.9]}]
    ours = {"value": {"table": "runs", "column": "test_metric", "winner": True}}
    claim = {"id": "a", "statement": "s", "source": "x", "ours": ours, "expect": {"at_least": 0.5}}
    claim |= {"applies_when": ["complete", "within_cores", "quiet"]}
    row = claims.build(made_up(tmp_path, train, grid=grid, repeats=3, claims=[claim])).iloc[0]

    assert row["verdict"] == verdict, row["reason"]


def test_a_claim_on_losses_is_judged_on_a_busy_machine(judged):
    def train(spec):
        return constant(1.0, samples_seen=25600, other_trainings=3, final_loss=0.1 + 1e-3 * spec.seed)

    row = judged({"value": CELLS | {"column": "final_loss", "where": {"world_size": 2}}}, {"at_most": 0.2}, train)

    assert row["verdict"] == "reproduced"


def test_nobody_wins_against_points_that_have_not_run(judged):
    def train(spec):
        return Result("missing") if spec.batch_size == 32 else constant(1.0 + spec.batch_size, samples_seen=25600)

    grid = [{"exchange": "ring", "world_size": 2, "batch_size": [16, 32, 64], "learning_rate": 0.1}]
    cells = {"table": "winners", "column": "batch_size", "where": {"world_size": 2}}
    row = judged({"value": cells}, {"between": [16, 17]}, train, grid=grid)

    assert row["ours"] == 16
    assert (row["verdict"], row["reason"]) == ("not testable here", "not complete: of 9 runs 3 not yet run")


def test_a_size_is_of_the_runs_that_a_claim_reads_not_of_the_largest_of_the_study(judged):
    """Two ranks sit on one node, four on four: a claim on two of them is not one on two nodes."""

    def train(spec):
        return replace(
            steady(spec), columns=dict(steady(spec).columns) | {"hosts": {1: 1, 2: 1, 4: 4}[spec.world_size]}
        )

    def why(of, **needs):
        row = judged({"value": at(of)}, {"at_least": 0}, train, applies_when=[needs])
        return row["reason"] if row["verdict"] == "not testable here" else None

    assert why(2, nodes=2) == "needs 2 nodes, the largest complete run that it reads has 1"
    assert why(4, nodes={"at_most": 1}) == "needs at most 1 nodes, a run that it reads has 4"
    assert why(2, ranks_per_node={"at_most": 1}) == "needs at most 1 ranks per node, a run that it reads has 2"
    assert [why(4, nodes=4), why(2, nodes={"at_most": 1}), why(4, ranks_per_node={"at_most": 1})] == [None] * 3
    assert why(4, nodes={"at_least": 2, "at_most": 4}) is None


def test_a_claim_on_winners_is_no_surer_than_who_wins(tmp_path):
    """The point of least area has the better metric on two ranks; where another may win, so may the other metric."""

    def judged_by(noise):
        def train(spec):
            area = {0.1: 10.0, 0.5: 10.2}[spec.learning_rate] * (1 + noise * (spec.seed - 1) * (1 - spec.learning_rate))
            metric = {(1, 0.1): 0.8, (1, 0.5): 0.5, (2, 0.1): 0.9, (2, 0.5): 0.6}[spec.world_size, spec.learning_rate]
            own = {"test_metric": metric + 1e-3 * spec.seed, "test_metric_name": "accuracy", "samples_seen": 25600}
            return constant(area, **own)

        grid = [{"exchange": "ring", "world_size": [1, 2], "batch_size": 16, "learning_rate": [0.1, 0.5]}]
        side = {"table": "runs", "column": "test_metric", "winner": True}
        ours = {"ratio": {"of": side | {"where": {"world_size": 2}}, "to": side | {"where": {"world_size": 1}}}}
        claim = {"id": "a", "statement": "s", "source": "x", "ours": ours, "expect": {"at_least": 1.05}}
        claim |= {"applies_when": ["within_cores", "quiet"]}
        return claims.build(made_up(tmp_path / str(noise), train, grid=grid, repeats=3, claims=[claim])).iloc[0]

    sure, open_ = judged_by(1e-6), judged_by(0.1)

    assert (sure["verdict"], sure["ours"]) == ("reproduced", pytest.approx(0.9 / 0.8, rel=1e-2))
    assert open_["verdict"] == "undecided"
    assert open_["ours_low"] == pytest.approx(0.6 / 0.8, rel=0.05)
    assert "the winner cannot be told from 2 of its rivals" in open_["reason"] or "from 1" in open_["reason"]


def test_a_claim_at_a_point_of_a_search_says_which(judged):
    grid = [GRID[0] | {"world_size": 2, "batch_size": [16, 32]}]
    one = judged({"value": CELLS | {"where": {"world_size": 2, "batch_size": 32}}}, {"at_least": 0}, grid=grid)
    all_ = judged(ratio(1, 2), {"at_least": 0})

    assert one["reason"] == "of the search it is read at batch_size 32 alone, whoever wins"
    assert pd.isna(all_["reason"])


@pytest.mark.parametrize(("expected", "verdict"), [(2, "reproduced"), (3, "contradicted")])
def test_runs_that_end_in_a_way_are_counted(judged, expected, verdict):
    def train(spec):
        if spec.learning_rate > 0.3:
            return Result("diverged", "loss is nan", (0.1,), (float("nan"),))
        return constant(1.0, samples_seen=25600)

    grid = [{"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": [0.1, 0.5, 0.9]}]
    ours = {"count": {"where": {"world_size": 2}, "having": {"status": "diverged"}}}
    row = judged(ours, {"within": 0.01}, train, grid=grid, published=expected, applies_when=["complete"])

    assert (row["verdict"], row["ours"]) == (verdict, 2)
    assert row["reason"] == "6 of 9 runs"
    assert row["runs"] == 9, "runs that diverged are counted, too"
    assert pd.isna(row["ours_low"]), "three repeats alike do not tell how others would differ"
    assert pd.isna(row["ours_high"])
    assert row["interval_from"] == "counted in 3 repeats"


def test_counts_that_differ_between_repeats_have_an_interval(judged):
    def train(spec):
        diverged = Result("diverged", "loss is nan", (0.1,), (float("nan"),))
        return diverged if spec.seed < spec.world_size else steady(spec)

    row = judged({"count": {"having": {"status": "diverged"}}}, {"at_least": 1}, train)

    assert (row["ours"], row["runs"], row["interval_from"]) == (2, 9, "3 runs")  # 3, 2 and 1 of three world sizes
    assert row["ours_low"] < 1 < 3 < row["ours_high"]


def test_runs_are_counted_only_if_all_have_ended(judged):
    def train(spec):
        return Result("missing") if spec.world_size == 4 else steady(spec)

    row = judged({"count": {"having": {"status": "ok"}}}, {"at_least": 0}, train, 1)

    assert (row["verdict"], row["reason"]) == (
        "not testable here",
        "not complete: 1 of 3 runs have not ended: 1 not yet run",
    )


def test_a_trend_may_be_over_a_baseline_of_another_kind(judged):
    """Each number is divided by that of its own seed, so what a seed does to all times is gone."""
    base = {"table": "runs", "column": "train_s", "where": {"world_size": 1, "learning_rate": 0.1}}
    trend = CELLS | {"over": "world_size", "as": "slope", "where": {"world_size": [2, 4]}, "to": base}
    row = judged({"trend": trend}, {"within": 0.01}, published=(2 / 8 - 4 / 8) / 2)

    assert (row["verdict"], row["ours_low"], row["ours_high"]) == ("reproduced", *[pytest.approx(-0.125)] * 2)


def test_a_table_that_combines_repeats_without_an_interval_decides_nothing(judged):
    """Its counts and settings are what they are."""
    where = {"world_size": 2}
    bare = judged({"value": {"table": "winners", "column": "min_loss", "where": where}}, {"at_most": 1})
    count = judged({"value": {"table": "winners", "column": "eligible_points", "where": where}}, {"at_least": 1})

    assert bare["verdict"] == "undecided"
    assert bare["reason"].startswith("no interval (its table has none)")
    assert (count["verdict"], count["ours"]) == ("reproduced", 1)
    assert pd.isna(count["ours_low"]), "an interval without width is none"


def test_a_ratio_of_counts_has_no_interval_and_is_judged_by_itself(judged):
    """Of 2 ranks one point of two reaches the threshold, of 1 rank both: a half."""

    def train(spec):
        result = steady(spec)
        bad = spec.world_size == 2 and spec.learning_rate > 0.3
        return replace(result, columns=result.columns | {"min_loss": 0.9}) if bad else result

    grid = [GRID[0] | {"world_size": [1, 2], "learning_rate": [0.1, 0.5]}]
    of, to = ({"table": "winners", "column": "eligible_points", "where": {"world_size": n}} for n in (2, 1))
    row = judged({"ratio": {"of": of, "to": to}}, {"at_most": 0.9}, train, grid=grid)

    assert (row["verdict"], row["ours"], row["runs"]) == ("reproduced", 0.5, 12)
    assert pd.isna(row["ours_low"])
    assert pd.isna(row["ours_high"])


def test_who_is_judged_on_one_run_says_so(judged):
    step = {"table": "phases", "column": "step_s", "where": {"world_size": 4}}
    row = judged({"value": step}, {"at_least": 0}, realistic, 1)

    assert (row["verdict"], row["runs"]) == ("reproduced", 1)
    assert row["reason"].startswith("judged on 1 run")
