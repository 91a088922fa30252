"""Who keeps the others waiting: named, with what it costs, and nobody blamed for noise."""

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up
from faulty import FAULTY, plan_one, record, train
from sandbox import Sandbox

from ddp_hpc.analysis.tables import make, stragglers
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import records

STEPS = 40
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "batch_size": 75, "threads_per_rank": 1}
PLACES = [
    {"rank": 0, "host": "a", "core_set": [0, 1, 2], "gpu": None},
    {"rank": 1, "host": "a", "core_set": [3, 5, 6], "gpu": {"uuid": "GPU-1"}},
    {"rank": 2, "host": "b", "core_set": [7], "gpu": {"uuid": "GPU-2"}},
]


def made(folder, arrivals, provenance=None, world_size=3, **columns):
    """One run in which the ranks of step k arrive after `arrivals[k - 1]` seconds, by rank, and then move for 1 ms."""
    arrivals = np.array(arrivals)

    def of_rank(step, rank):
        own, last = arrivals[step - 1, rank], arrivals[step - 1].max()
        phases = dict.fromkeys(PHASES, 0.0) | {"forward_s": own, "exchange_exposed_s": last - own + 1e-3}
        return phases | {"step_s": last + 1e-3, "wait_s": last - own, "move_s": 1e-3}

    t_s = np.cumsum(arrivals.max(axis=1) + 1e-3)
    result = Result(
        t_s=tuple(t_s),
        loss=(0.1,) * len(t_s),
        provenance=provenance or {"ranks": PLACES},
        columns=columns,
        of_rank=of_rank,
    )
    grid = [{"exchange": "ring", "world_size": world_size}]
    return made_up(folder, lambda spec: result, base=BASE, grid=grid, budget={"steps": STEPS})


def only(frame):
    (row,) = frame.to_dict("records")
    return row


def test_the_rank_that_is_late_is_named_with_its_place_and_its_price(tmp_path):
    arrivals = [[0.010, 0.030, 0.015]] * 30 + [[0.010, 0.008, 0.015]] * 10  # rank 1 is last by 15 ms, then rank 2 by 5

    row = only(stragglers.build(made(tmp_path, arrivals)))

    assert (row["straggler"], row["rank"], row["host"], row["gpu"]) == (True, 1, "a", "GPU-1")
    assert row["core_set"] == "3,5-6"
    assert row["last_share"] == 0.75
    assert row["late_s"] == pytest.approx(0.015)  # after rank 2, not after the first
    assert row["costs_s"] == pytest.approx(30 * 0.015)
    assert row["costs_share"] == pytest.approx(30 * 0.015 / (30 * 0.031 + 10 * 0.016))
    assert row["next_costs_s"] == pytest.approx(10 * 0.005)
    assert row["slow_phase"] == "forward"
    assert row["slower_s"] == pytest.approx((30 * 0.030 + 10 * 0.008) / 40 - (0.010 + 0.015) / 2)
    assert row["waited_s"] == pytest.approx(30 * (0.020 + 0.015) / 3 + 10 * (0.005 + 0.007) / 3)


def test_ranks_that_take_turns_are_no_stragglers(tmp_path):
    rng = np.random.default_rng(0)

    row = only(stragglers.build(made(tmp_path, 0.01 + 0.01 * rng.random((STEPS, 3)))))

    assert row["costs_share"] > stragglers.COSTS  # it costs a lot, but the others cost as much
    assert not row["straggler"]


def test_a_rank_that_is_seldom_late_but_then_by_much_stands_out(tmp_path):
    arrivals = np.full((STEPS, 3), 0.010)
    arrivals[::10, 2] = 0.2

    row = only(stragglers.build(made(tmp_path, arrivals)))

    assert (row["straggler"], row["rank"], row["last_share"]) == (True, 2, 0.1)
    assert row["late_s"] == pytest.approx(0.19)


def test_where_waiting_is_not_known_nobody_is_blamed_and_the_reason_is_given(tmp_path):
    steps = {"t_s": tuple(np.arange(1, 5) / 100), "loss": (0.1,) * 4}
    why = {"null_columns": {"wait_s": "the ranks' hosts have no common clock"}}
    unknown = Result(**steps, provenance=why, of_rank=lambda step, rank: {"step_s": 0.01, "wait_s": None})
    grid = [{"exchange": "ring", "world_size": 2}]
    study_runs = made_up(tmp_path, lambda spec: unknown, base=BASE, grid=grid, budget={"steps": 4})

    row = only(stragglers.build(study_runs))

    assert row["reason"] == "waiting is not known: the ranks' hosts have no common clock"
    assert all(pd.isna(row[name]) for name in ("straggler", "rank", "costs_s", "waited_s"))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    sandbox = Sandbox.make(tmp_path_factory.mktemp("stragglers") / "project")
    (sandbox.package / "models" / "faulty.py").write_text(FAULTY)
    yield sandbox
    sandbox.end_all()


def test_a_rank_slowed_by_a_fifth_of_a_second_is_named_for_real(project):
    run = plan_one(project, "late", "late", 2, steps=8)  # on rank 1
    done, _ = train(project, run, 2)
    assert done.returncode == 0, done.stderr

    steps = records.read("steps", project.root / "results" / "runs" / run / "steps.parquet").to_pandas()
    counted = steps[~steps["warm_up"]]
    by_step = counted.groupby("step")
    assert (by_step["step_s"].max() >= 0.2).all()  # a step is as long as the slowest rank's
    assert (by_step["t_s"].first() >= 0.2 * by_step["step"].first()).all()
    assert counted[counted["rank"] == 0]["wait_s"].median() > 0.9 * 0.2
    made = project.call("ddp-hpc", "table", "late", "stragglers")
    assert made.returncode == 0, made.stderr
    row = only(pd.read_parquet(made.stdout.strip()))
    assert (row["straggler"], row["rank"], row["slow_phase"]) == (True, 1, "forward")
    assert row["last_share"] == 1
    assert row["costs_s"] > 0.9 * 8 * 0.2
    assert row["host"]
    assert row["core_set"]


def test_a_clock_set_back_does_no_harm(project):
    run = plan_one(project, "set_back", "clock set back", 2)
    done, took_s = train(project, run, 2)
    assert done.returncode == 0, done.stderr

    row = record(project, run)
    assert row["steps"] == 40
    assert 0 < row["startup_s"] < row["wall_s"] < took_s
    assert 0 < row["train_s"] < row["wall_s"]
    steps = records.read("steps", project.root / "results" / "runs" / run / "steps.parquet").to_pandas()
    counted = steps[~steps["warm_up"]]
    assert (counted[["step_s", "wait_s", "move_s", *PHASES]] >= 0).all(axis=None)
    assert (np.diff(counted[counted["rank"] == 0]["t_s"]) > 0).all()


@pytest.mark.filterwarnings("error")
def test_a_run_whose_series_are_empty_is_a_row_of_every_table(tmp_path):
    study_runs = made(tmp_path, [[0.010, 0.030, 0.015]] * STEPS)
    (planned,) = study_runs.planned
    for kind in ("steps", "evaluations", "gpu"):
        records.write(kind, {}, study_runs.store.file(planned.run, kind), {"run": planned.run})
    for name in ("runs", "winners", "areas", "scaling", "phases", "curves", "stragglers", "waterfall", "noise"):
        make(name, study_runs, tmp_path / "tables")
    assert only(stragglers.build(study_runs))["reason"].startswith("waiting is not known")
