"""A run whose ranks did not sit as asked is flagged, and kept out of every comparison."""

from dataclasses import replace

import pandas as pd
import pytest
from factory import constant, made_up

from ddp_hpc.analysis.report.provenance import of_runs
from ddp_hpc.analysis.report.warnings import flags
from ddp_hpc.analysis.tables import exchanges, phases, runs, scaling, winners

GRID = [
    {"exchange": "none", "world_size": 1, "learning_rate": 0.1},
    {
        "exchange": ["ring", "mpi_allreduce"],
        "world_size": 2,
        "learning_rate": [0.1, 0.2],
        "placement": ["packed", "spread"],
    },
]
WHY = "placed otherwise than asked"


@pytest.fixture
def study_runs(tmp_path):
    """The spread rings did not sit as asked, and would win by far."""

    def train(spec):
        lost = spec.placement == "spread" and spec.exchange.name == "ring"
        verified = None if spec.placement is None else not lost
        result = constant(0.01 if lost else 5.0 / spec.world_size, steps=spec.steps_asked)
        return replace(result, columns=dict(result.columns) | {"placement_verified": verified})

    base = {"dataset": "digits", "model": "mlp", "batch_size": 16}
    rules = {"loss_threshold": 0.5, "reference_exchange": "ring"}
    return made_up(tmp_path, train, grid=GRID, base=base, rules=rules, budget={"samples_seen": 3200})


def of(frame: pd.DataFrame, exchange: str, placement: str) -> pd.DataFrame:
    return frame[(frame["exchange"] == exchange) & (frame["placement"] == placement)]


def test_the_table_of_runs_says_why_it_may_not_win(study_runs):
    frame = runs.build(study_runs)
    assert list(of(frame, "ring", "spread")["excluded"]) == [WHY] * 2
    assert set(of(frame, "ring", "spread")["status"]) == {"ok"}, "its losses are as good as any"
    assert of(frame, "ring", "packed")["excluded"].isna().all()


def test_it_never_wins(study_runs):
    frame = winners.build(study_runs)
    assert list(of(frame, "ring", "spread")["winner"]) == ["no winner"]
    assert list(of(frame, "ring", "spread")["excluded_because"]) == [f"2 {WHY}"]
    assert "no winner" not in set(of(frame, "mpi_allreduce", "spread")["winner"])


def test_it_has_no_speedup_and_the_others_have_one_against_the_rank_that_is_placed_nowhere(study_runs):
    frame = scaling.build(study_runs)
    frame = frame[frame["kind"] == "fixed samples"]
    lost = of(frame, "ring", "spread")
    assert lost["speedup"].isna().all()
    assert list(lost["reason"]) == [f"not complete: {WHY}"] * 2
    for exchange, placement in (("ring", "packed"), ("mpi_allreduce", "packed"), ("mpi_allreduce", "spread")):
        found = of(frame, exchange, placement)
        assert list(found["speedup"].notna()) == [True, False], "of the rate that the baseline has"


def test_nothing_is_compared_with_it(study_runs):
    frame = exchanges.build(study_runs)
    assert of(frame, "ring", "spread")["step_us"].isna().all()
    assert set(of(frame, "mpi_allreduce", "spread")["reason"]) == {f"nothing to compare with: ring is {WHY}"}
    assert of(frame, "mpi_allreduce", "packed")["times_as_fast"].notna().all()
    assert of(phases.build(study_runs), "ring", "spread")["step_s"].isna().all()


def test_the_page_tells_of_it(study_runs):
    (said,) = [text for text in flags(study_runs, {}, of_runs(study_runs)) if "did not sit as the study asks" in text]
    assert said.startswith("The ranks of 2 of 9 runs")
