"""Exposed exchange in three ways, their disagreement, and the reasons where one is missing."""

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up

from ddp_hpc.analysis.tables import exposed
from ddp_hpc.runs import records

STEPS = 20
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "batch_size": 64, "threads_per_rank": 1}
GRID = [{"exchange": "none", "world_size": 1}, {"exchange": "ring", "world_size": [1, 2]}]
STEP_S = {("none", 1): 0.010, ("ring", 1): 0.011, ("ring", 2): 0.015}
MARKS_S = {("none", 1): 0.0, ("ring", 1): 0.0008, ("ring", 2): 0.004}


def train(spec):
    point = (spec.exchange.name, spec.world_size)
    t_s = tuple(STEP_S[point] * (1 + spec.seed) * np.arange(1, STEPS + 1))
    return Result(t_s=t_s, loss=(0.1,) * STEPS, columns={"exchange_exposed_s": MARKS_S[point] * (1 + spec.seed)})


def made(folder, train=train, **keys):
    return made_up(folder, train, **({"base": BASE, "grid": GRID, "budget": {"steps": STEPS}} | keys))


def trace(study_runs, exposed_s):
    """Write what the traces of the runs on two ranks say, by step and rank."""
    for planned in study_runs.planned:
        if planned.spec.world_size == 2:
            rows = [(step, rank, value) for step, ranks in enumerate(exposed_s, 5) for rank, value in enumerate(ranks)]
            columns = {"step": [row[0] for row in rows], "rank": [row[1] for row in rows]}
            columns["exposed_s"] = [row[2] for row in rows]
            records.write("trace", columns, study_runs.store.file(planned.run, "trace"))


def row(study_runs, world_size=2):
    (found,) = [one for one in exposed.build(study_runs).to_dict("records") if one["world_size"] == world_size]
    return found


def test_the_three_ways_stand_side_by_side_with_their_disagreement(tmp_path):
    study_runs = made(tmp_path)
    trace(study_runs, [(0.002, 0.004), (0.0032, 0.0036), (0.005, 0.009)])  # means 3, 3.4 and 7 ms

    found = row(study_runs)

    assert found["by_difference_s"] == pytest.approx(0.005)
    assert found["by_marks_s"] == pytest.approx(0.004)
    assert found["by_trace_s"] == pytest.approx(0.0034)
    assert found["disagreement_s"] == pytest.approx(0.005 - 0.0034)
    assert found["disagreement_share"] == pytest.approx(0.0016 / 0.015)
    assert found["traced_steps"] == 3
    assert pd.isna(found["reason"])


def test_evaluations_between_steps_make_no_other_baseline(tmp_path):
    grid = [GRID[0], {"exchange": "ring", "world_size": 2, "evaluate_every_steps": 5}]
    assert row(made(tmp_path, grid=grid))["by_difference_s"] == pytest.approx(0.005)


def test_the_baseline_of_one_rank_is_that_of_any_placement(tmp_path):
    grid = [GRID[0], {"exchange": "ring", "world_size": 2, "placement": "spread", "ranks_per_node": 2}]
    assert row(made(tmp_path, grid=grid))["by_difference_s"] == pytest.approx(0.005)


def test_pairs_are_of_one_seed(tmp_path):
    """The second repeat is twice as slow: the difference is the median of 5 and 10 ms, not that of all steps."""
    assert row(made(tmp_path, repeats=2))["by_difference_s"] == pytest.approx(0.0075)


def test_what_is_missing_is_null_and_the_reason_is_given(tmp_path):
    found = row(made(tmp_path / "a", grid=[{"exchange": "ring", "world_size": 2}]))

    assert found["by_marks_s"] == pytest.approx(0.004)
    assert pd.isna([found["by_difference_s"], found["by_trace_s"], found["disagreement_s"]]).all()
    assert found["reason"] == (
        "by difference: exchange none at world_size 1 with the same batch is not planned; by trace: no run was traced"
    )

    study_runs = made(tmp_path / "b")
    trace(study_runs, [(None, None)])
    assert row(study_runs)["reason"] == "by trace: no exchange was recognised in the traces"
    assert pd.isna(row(study_runs)["by_trace_s"])


def test_runs_that_have_not_ended_and_ranks_on_their_own_say_so(tmp_path):
    failed = made(tmp_path / "a", lambda spec: Result("crashed", "boom") if spec.world_size == 2 else train(spec))
    assert row(failed)["reason"] == "not complete: crashed"

    grid = [{"exchange": "hogwild", "world_size": 2}]
    alone = made(tmp_path / "b", lambda spec: Result(t_s=(1.0, 2.0), loss=(0.1, 0.1)), grid=grid)
    assert row(alone)["reason"] == "each rank takes its steps by itself"
