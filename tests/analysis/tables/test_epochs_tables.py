"""Synchronisation per step and per epoch, what an exchange costs at one rank, and the time of an epoch, by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up

from ddp_hpc.analysis.tables import epoch_time, phases, synchronisation

STEPS, SAMPLES = 60, 19_200
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "threads_per_rank": 1}
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": [64, 512]},
    {"exchange": ["ring", "hogwild"], "world_size": [1, 2, 4], "batch_size": 64},
]
STEP_S = {("none", 1, 64): 0.010, ("none", 1, 512): 0.020, ("ring", 1, 64): 0.012, ("ring", 2, 64): 0.015}
STEP_S |= {("ring", 4, 64): 0.018, ("hogwild", 1, 64): 0.01, ("hogwild", 2, 64): 0.01, ("hogwild", 4, 64): 0.01}
SYNC_S = {1: 0.001, 2: 0.004, 4: 0.006}  # of a step of seed 0
PHASES = {
    "data_s": 0.0005,
    "h2d_s": 0.0001,
    "forward_s": 0.003,
    "backward_s": 0.005,
    "update_s": 0.001,
    "rest_s": 0.0004,
}


def train(spec):
    """The second repeat takes 1.5 times as long, in all that it does."""
    name, n = spec.exchange.name, spec.world_size
    slower = 1 + 0.5 * spec.seed
    t_s = tuple(slower * STEP_S[name, n, spec.batch_size] * np.arange(1, STEPS + 1))
    sync_s = slower * SYNC_S[n] if name != "none" else 0.0
    columns = PHASES | {"exchange_exposed_s": sync_s, "wait_s": sync_s / 4, "move_s": sync_s * 3 / 4}

    def of_rank(step, rank):  # the ranks differ, and every third step is slow: the median of the means is sync_s
        own = sync_s * (1 + (0.5 if rank % 2 else -0.5) * (n > 1)) * (3 if step % 3 == 0 else 1)
        return {"step_s": t_s[0], "exchange_exposed_s": own}

    return Result(t_s=t_s, loss=(0.1,) * STEPS, columns=columns, provenance={"train_samples": SAMPLES}, of_rank=of_rank)


def made(folder, train=train, **keys):
    return made_up(folder, train, **({"base": BASE, "grid": GRID, "budget": {"steps": STEPS}} | keys))


def row(table, exchange="ring", world_size=2, batch_size=64):
    chosen = (table["exchange"] == exchange) & (table["world_size"] == world_size) & (table["batch_size"] == batch_size)
    (found,) = table[chosen].to_dict("records")
    return found


def test_an_epoch_synchronises_once_per_global_batch(tmp_path):
    """19,200 samples are 300 batches of 64, 150 of two ranks, 75 of four."""
    table = synchronisation.build(made(tmp_path))

    for ranks, steps in ((1, 300), (2, 150), (4, 75)):
        found = row(table, world_size=ranks)
        assert found["sync_s"] == pytest.approx(SYNC_S[ranks])
        assert found["steps_per_epoch"] == steps
        assert found["sync_per_epoch_s"] == pytest.approx(SYNC_S[ranks] * steps)
    assert list(table[table["exchange"] == "ring"]["sync_per_epoch_s"]) == pytest.approx([0.3, 0.6, 0.45])
    assert set(table["exchange"]) == {"ring", "hogwild"}, "without an exchange nothing is synchronised"


def test_shares_are_of_the_sum_of_the_phases(tmp_path):
    found = row(synchronisation.build(made(tmp_path)), world_size=4)
    assert found["sync_share"] == pytest.approx(0.006 / (0.006 + sum(PHASES.values())))
    assert found["data_share"] == pytest.approx(0.0006 / (0.006 + sum(PHASES.values())))
    assert (found["wait_s"], found["move_s"]) == pytest.approx((0.0015, 0.0045))


def test_at_one_rank_a_wrapper_costs_what_the_mean_step_is_longer_than_without(tmp_path):
    table = synchronisation.build(made(tmp_path))
    assert row(table, world_size=1)["over_none"] == pytest.approx(1.2)
    assert row(table, world_size=2)["over_none"] == pytest.approx(1.5)


def test_repeats_pair_by_seed_and_give_the_interval(tmp_path):
    """All steps are 1.5 times as long in the second repeat: the ratio stays, the times spread."""
    found = row(synchronisation.build(made(tmp_path, repeats=2)))
    assert found["over_none"] == pytest.approx(1.5)
    assert (found["over_none_low"], found["over_none_high"]) == pytest.approx((1.5, 1.5))
    assert found["sync_s"] == pytest.approx(0.005)  # median of 4 and 6 ms
    assert found["sync_low_s"] < 0.004 < 0.006 < found["sync_high_s"]
    assert found["sync_per_epoch_low_s"] == pytest.approx(150 * found["sync_low_s"])
    assert found["interval_from"] == "2 runs, 1 degree of freedom"


def test_one_run_has_the_interval_within_it(tmp_path):
    found = row(synchronisation.build(made(tmp_path)))
    assert found["sync_low_s"] <= 0.004 <= found["sync_high_s"] <= 3 * 0.004
    assert found["interval_from"] == "1 run: within it only"


def test_what_cannot_be_told_is_null_with_its_reason(tmp_path):
    table = synchronisation.build(made(tmp_path))
    assert row(table, exchange="hogwild")["reason"] == "each rank takes its steps by itself"
    assert pd.isna(row(table, exchange="hogwild")["sync_s"])

    def without(spec):
        return Result("crashed", "boom") if spec.world_size == 4 else replace(train(spec), provenance={})

    study_runs = made(tmp_path / "b", without)
    lacking = row(synchronisation.build(study_runs))
    assert lacking["sync_s"] == pytest.approx(0.004)
    assert pd.isna(lacking["sync_per_epoch_s"])
    assert lacking["reason"] == "the records do not say how many samples an epoch has"
    assert row(synchronisation.build(study_runs), world_size=4)["reason"] == "not complete: crashed"
    assert row(epoch_time.build(study_runs))["reason"] == "the records do not say how many samples an epoch has"
    assert row(epoch_time.build(study_runs), world_size=4)["reason"] == "not complete: crashed"


def test_an_epoch_takes_its_steps(tmp_path):
    table = epoch_time.build(made(tmp_path))
    small, large = (row(table, "none", 1, batch) for batch in (64, 512))
    assert small["epoch_s"] == pytest.approx(300 * 0.010)
    assert large["epoch_s"] == pytest.approx(37.5 * 0.020)
    assert (small["gain"], large["gain"]) == pytest.approx((1, 4))
    assert row(table)["epoch_s"] == pytest.approx(150 * 0.015)
    assert row(table)["gain"] == 1, "it is compared with the smallest batch of its own kind only"


def test_rates_make_no_row_of_their_own_and_an_axis_of_the_study_does(tmp_path):
    grid = [GRID[0] | {"learning_rate": [0.1, 0.2], "evaluate_every_steps": [None, 10]}]
    scaled = {"learning_rate_scaling": "sqrt", "base_batch_size": 64}
    table = epoch_time.build(made(tmp_path, grid=[*grid, GRID[0] | scaled]))
    found = zip(table["batch_size"], table["evaluate_every_steps"].fillna(0), table["runs"], strict=True)
    assert sorted(found) == [(64, 0, 3), (64, 10, 2), (512, 0, 3), (512, 10, 2)]


def test_how_often_it_is_evaluated_keeps_no_batch_from_its_reference(tmp_path):
    """After each epoch: 300 steps of 64 samples, 37 of 512; that is off the clock, and tells no steps apart."""
    each_epoch = {"zip": {"batch_size": [64, 512], "evaluate_every_steps": [300, 37]}}
    alone = {"exchange": "none", "world_size": 1} | each_epoch
    others = [alone | {"exchange": "ring", "zip": {"batch_size": [64], "evaluate_every_steps": [150]}, "world_size": 2}]
    others += [{"exchange": "hogwild", "world_size": 2, "batch_size": 64}]
    study_runs = made(tmp_path, grid=[alone, *others])
    table = epoch_time.build(study_runs)

    assert row(table, "none", 1, 512)["gain"] == pytest.approx(4)
    for module in (epoch_time, synchronisation, phases):
        assert "evaluate_every_steps" not in module.build(study_runs), "no panel of its own for ring and hogwild"


def test_where_only_some_differ_in_how_often_they_are_evaluated_the_reference_is_found_all_the_same(tmp_path):
    """At 64 samples it is an axis of its own, at 512 it is not."""
    grid = [GRID[0] | {"batch_size": 64, "evaluate_every_steps": [None, 300]}]
    grid += [GRID[0] | {"batch_size": 512, "evaluate_every_steps": 37}]

    assert row(epoch_time.build(made(tmp_path, grid=grid)), "none", 1, 512)["gain"] == pytest.approx(4)


def test_without_the_smallest_batch_there_is_no_gain_and_no_other_takes_its_place(tmp_path):
    def without(spec):
        return Result("crashed", "boom") if (spec.exchange.name, spec.batch_size) == ("none", 64) else train(spec)

    grid = [GRID[0] | {"batch_size": [64, 512, 128]}]
    steps = STEP_S | {("none", 1, 128): 0.012}
    study_runs = made(tmp_path, lambda spec: without(spec) if spec.batch_size != 128 else _took(spec, steps), grid=grid)
    large = row(epoch_time.build(study_runs), "none", 1, 512)

    assert pd.isna(large["gain"])
    assert large["reason"] == "no gain: batch_size 64: not complete: crashed"


def _took(spec, steps):
    t_s = tuple(steps[spec.exchange.name, spec.world_size, spec.batch_size] * np.arange(1, STEPS + 1))
    return Result(t_s=t_s, loss=(0.1,) * STEPS, columns=PHASES, provenance={"train_samples": SAMPLES})
