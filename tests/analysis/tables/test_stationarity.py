"""How steady a run was, and how sure what the tables say is."""

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up
from scipy.signal import lfilter

from ddp_hpc.analysis.report import warnings
from ddp_hpc.analysis.tables import exchanges, phases, runs, scaling
from ddp_hpc.analysis.tables._steps import drift, slow_ranks
from ddp_hpc.runs import records


def noise(rng, steps, correlation):
    shocks = rng.normal(size=steps + 200) * np.sqrt(1 - correlation**2)
    return lfilter([1], [1, -correlation], shocks)[200:]


def with_slow_steps(rng, x):
    return x * (1 + 9 * (rng.random(len(x)) < 0.02))


@pytest.mark.parametrize(("steps", "correlation"), [(100, 0.0), (300, 0.8), (2000, 0.8)])
def test_steady_runs_are_not_called_drifting_however_their_steps_correlate(steps, correlation):
    rng = np.random.default_rng(0)
    found = [drift(with_slow_steps(rng, np.exp(0.1 * noise(rng, steps, correlation)))) for _ in range(200)]

    assert sum(one[1] for one in found if one) <= 2
    assert sum(one is None for one in found) <= 20


@pytest.mark.parametrize("ends_at", [1.2, 0.8])
def test_a_drift_is_found_and_measured(ends_at):
    rng = np.random.default_rng(1)
    trend = np.linspace(1, ends_at, 1000)
    found = [drift(with_slow_steps(rng, trend * np.exp(0.1 * noise(rng, 1000, 0.5)))) for _ in range(50)]

    assert np.mean([certain for _, certain in found]) > 0.9
    assert np.median([percent for percent, _ in found]) == pytest.approx(100 * (ends_at - 1), abs=3)


def test_a_drift_of_no_matter_is_none_and_few_steps_cannot_tell():
    assert drift(np.linspace(1, 1.03, 1000))[1] is False
    assert drift(np.linspace(1, 2, 99)) is None
    assert drift(np.full(200, np.nan)) is None
    assert drift(np.full(200, 0.1)) == (0, False)
    assert drift(np.geomspace(20, 0.2, 1000))[0] == pytest.approx(-99, abs=0.5)


def test_a_slow_rank_is_named_though_all_ranks_slow_down_together():
    rng = np.random.default_rng(2)
    shared = np.exp(0.5 * noise(rng, 300, 0.9))[:, None]
    work = shared * np.array([1.0, 1.0, 1.25, 1.0]) * np.exp(0.05 * rng.normal(size=(300, 4)))
    ((rank, more),) = slow_ranks(work)

    assert (rank, more) == (2, pytest.approx(0.25, abs=0.03))
    assert slow_ranks(np.delete(work, 2, axis=1)) == []
    assert slow_ranks(work[:, :1]) == []


def test_a_rank_of_two_that_is_slow_now_and_then_is_not_a_slow_rank():
    work = np.ones((300, 2))
    work[::10, 1] = 50.0

    assert slow_ranks(work) == []


RANKS = [{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"}]
GRID = {"grid": [{"exchange": "ring", "world_size": 2, "batch_size": [16, 32], "learning_rate": 0.1}]}


def drifting(spec):
    rng = np.random.default_rng(spec.batch_size)
    step_s = 0.01 * np.exp(0.05 * rng.normal(size=400)) * np.linspace(1, 1.5 if spec.batch_size == 32 else 1, 400)
    return Result(t_s=tuple(np.cumsum(step_s)), loss=(0.5,) * 400, provenance={"ranks": RANKS})


def test_the_table_of_runs_keeps_drift_and_slow_ranks_visible(tmp_path):
    study_runs = made_up(tmp_path, drifting, **GRID)
    for planned in study_runs.planned:
        file = study_runs.store.file(planned.run, "steps")
        steps = records.read("steps", file).to_pandas()
        steps["step_s"], steps["exchange_exposed_s"] = 0.01, np.where(steps["rank"] == 1, 0.001, 0.004)
        columns = {name: steps[name].astype(object).where(steps[name].notna(), None).tolist() for name in steps}
        records.write("steps", columns, file, records.read_metadata(file))
    frame = runs.build(study_runs)

    assert frame["drifting"].tolist() == [False, True]
    assert frame["drift_percent"].iloc[1] == pytest.approx(50, abs=5)
    assert frame["slow_ranks"].tolist() == ["rank 1 on n2 (+50 %)"] * 2
    assert (frame["step_low_s"] < frame["step_s"]).all()
    assert (frame["step_high_s"] > frame["step_s"]).all()
    assert not {"drifting", "slow_ranks"} & set(runs.left_out(study_runs.study))


def test_a_run_that_did_not_end_well_is_not_called_steady(tmp_path):
    frame = runs.build(made_up(tmp_path, lambda spec: Result("crashed", "boom"), **GRID))

    assert frame[["step_low_s", "drifting", "slow_ranks"]].isna().all(axis=None)


def timed(spread):
    """A trainer whose step takes 10 ms without exchange and 8 ms with, times a factor of the seed."""

    def train(spec):
        rng = np.random.default_rng([spec.seed, spec.world_size])
        step_s = (0.01 if spec.exchange.name == "none" else 0.008) * np.exp(spread * rng.normal())
        return Result(t_s=tuple(np.cumsum(step_s * np.exp(0.1 * rng.normal(size=200)))), loss=(0.5,) * 200)

    return train


BOTH = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": 0.1},
    {"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": 0.1},
]


@pytest.mark.parametrize(("repeats", "basis"), [(1, "1 run: within it only"), (4, "4 runs")])
def test_intervals_are_over_runs_or_say_that_they_are_not(tmp_path, repeats, basis):
    study_runs = made_up(tmp_path, timed(0.03), grid=BOTH, repeats=repeats, budget={"steps": 200})
    of_phases, of_scaling = phases.build(study_runs), scaling.build(study_runs)
    of_exchanges = exchanges.build(made_up(tmp_path / "e", timed(0.03), grid=BOTH, repeats=repeats,
                                           budget={"steps": 200}, rules={"reference_exchange": "ring"}))  # fmt: skip
    speedup = of_scaling[(of_scaling["world_size"] == 2) & (of_scaling["kind"] == "weak")].iloc[0]

    said = {*of_phases["interval_from"], *of_exchanges["interval_from"], speedup["interval_from"]}
    assert {text.partition(",")[0] for text in said} == {basis}  # and of few runs, what they share
    assert speedup["speedup_low"] < speedup["speedup"] < speedup["speedup_high"]
    for frame, name, unit in ((of_phases, "step", "s"), (of_exchanges, "step", "us")):
        assert (frame[f"{name}_low_{unit}"] < frame[f"{name}_{unit}"]).all()
        assert (frame[f"{name}_high_{unit}"] > frame[f"{name}_{unit}"]).all()


def test_runs_that_differ_make_the_interval_wide_though_each_is_sure_of_itself(tmp_path):
    """One run's steps say 10 ms within 1 %; four runs, which differ by 10 %, say how little that is worth."""
    one, four = (
        phases.build(made_up(tmp_path / str(n), timed(0.1), grid=BOTH, repeats=n, budget={"steps": 200}))
        for n in (1, 4)
    )

    def width(frame: pd.DataFrame) -> float:
        return float(((frame["step_high_s"] - frame["step_low_s"]) / frame["step_s"]).min())

    assert width(one) < 0.05
    assert width(four) > 2 * width(one)


def test_the_page_warns_of_runs_that_drift_and_ranks_that_are_slow():
    frame = pd.DataFrame(
        {
            "drifting": pd.array([True, False, None], dtype="boolean"),
            "drift_percent": [-31.0, 90.0, None],
            "slow_ranks": pd.array([None, "rank 1 on n2 (+50 %)", None], dtype="string"),
        }
    )
    drifts, slow = warnings._unsteady(frame)

    assert "1 of 3 runs the steps drift, by up to 31 %" in drifts
    assert "1 of 3 runs some ranks work slower" in slow
    assert "rank 1 on n2 (+50 %)" in slow
    assert list(warnings._unsteady(frame.iloc[2:])) == []
