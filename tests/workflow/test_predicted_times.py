"""What a plan says of runs at world sizes that nothing like them has been measured at."""

import json

import numpy as np
import pytest
from factory import Result, planned, write

from ddp_hpc.cli import listing
from ddp_hpc.workflow import plan
from ddp_hpc.workflow.predicted_times import with_predictions

STEPS, START_S = 50, 3.0
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 32, "learning_rate": 0.1},
    {"exchange": "ring", "world_size": [2, 3, 4, 8], "batch_size": 32, "learning_rate": 0.1},
]


def step_s(n):
    return 2e-3 + (2 * (n - 1) * 1e-3 if n > 1 else 0.0)


def trained(spec):
    rng, n = np.random.default_rng(spec.seed + 10 * spec.world_size), spec.world_size
    own = 2e-3 * (1 + 0.01 * rng.normal(size=(STEPS, n)))
    late, moving = own.max(axis=1, keepdims=True) - own, step_s(n) - 2e-3

    def of_rank(step, rank):
        waiting = late[step - 1, rank]
        parts = {"exchange_exposed_s": waiting + moving, "wait_s": waiting, "move_s": moving}
        return {"step_s": own[step - 1, rank] + waiting + moving} | parts

    t_s = np.cumsum(own.max(axis=1) + moving)
    return Result(t_s=tuple(t_s), loss=(0.1,) * STEPS, of_rank=of_rank, columns={"wall_s": t_s[-1] + START_S})


def measured(folder, *world_sizes):
    """A study of which the runs on so many ranks have ended, with their plans and journals."""
    study_runs = planned(folder, grid=GRID, budget={"steps": STEPS}, repeats=3)
    plan.prepare(study_runs)
    for run in study_runs.planned:
        if run.spec.world_size in world_sizes:
            result = trained(run.spec)
            write(study_runs, run, result)
            attempt = study_runs.store.run(run.run).new_attempt()
            numbers = {"wall_s": result.t_s[-1] + START_S, "train_s": float(result.t_s[-1]), "steps": STEPS}
            attempt.ended = {"status": "ok", **numbers}
    return study_runs


def test_what_was_never_measured_is_predicted_with_its_range_and_from_what(tmp_path):
    study_runs = measured(tmp_path, 1, 2, 3, 4)
    guessed = plan.plan(study_runs)
    items = with_predictions(study_runs, guessed)
    (told, *_) = [item for item in items if item.will_run]
    (guess, *_) = [item for item in guessed if item.will_run]

    truth = START_S + STEPS * step_s(8)
    assert told.planned.spec.world_size == 8
    assert told.estimate.middle_s == pytest.approx(truth, rel=0.01)
    assert told.estimate.low_s < told.estimate.middle_s < told.estimate.high_s
    assert guess.estimate.middle_s < told.estimate.middle_s  # it took the nearest run for it
    assert told.estimate.predicted.startswith("predicted from 12 runs, 4 ranks from the others ")
    values = listing.plan_values(study_runs, items, {})["runs"][-1]
    assert values["estimate_from"] == told.estimate.predicted
    assert json.dumps(values)
    assert f"  3 runs {told.estimate.predicted}" in listing.plan_lines(study_runs, items, False)


def test_where_nothing_can_be_predicted_the_nearest_run_stands_in(tmp_path):
    study_runs = measured(tmp_path, 1, 2)  # one world size does not tell latency from bandwidth
    items = with_predictions(study_runs, plan.plan(study_runs))

    waiting = [item for item in items if item.will_run]
    assert {item.estimate.predicted for item in waiting} == {None}
    assert listing.plan_values(study_runs, items, {})["runs"][-1]["estimate_from"].endswith("like it, scaled by steps")


def test_a_study_without_results_is_planned_as_quickly_as_ever(tmp_path, monkeypatch):
    """Its records are not even looked at, so nothing that reads them is imported."""
    study_runs = measured(tmp_path)
    items = plan.plan(study_runs)
    monkeypatch.setattr(type(study_runs), "runs", property(lambda self: pytest.fail("read")))

    assert with_predictions(study_runs, items) == items
