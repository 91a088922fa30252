"""Speedup against one rank without exchange, and where the time of a step goes."""

import numpy as np
import pytest
from factory import Result, made_up

from ddp_hpc.analysis.tables import phases, scaling
from ddp_hpc.analysis.tables.scaling import karp_flatt

SAMPLES = 6400
BASELINE = {"exchange": "none", "world_size": 1, "batch_size": [16, 32], "learning_rate": 0.1}
RING = {"exchange": "ring", "world_size": [1, 2, 4], "batch_size": [16, 32], "learning_rate": 0.1}


def ended(spec, train_s, **columns):
    """A run of a tenth of a loss that took so long."""
    steps = spec.steps_asked or 10
    return Result(t_s=tuple(np.linspace(train_s / steps, train_s, steps)), loss=(0.1,) * steps, columns=columns)


def timed(seconds):
    """Return a trainer by exchange, ranks and batch size; what is not listed has not run."""

    def train(spec):
        key = (spec.exchange.name, spec.world_size, spec.batch_size)
        return ended(spec, seconds[key]) if key in seconds else Result("missing")

    return train


def table(folder, train, **keys):
    study = {"grid": [BASELINE, RING], "budget": {"samples_seen": SAMPLES}} | keys
    return scaling.build(made_up(folder, train, **study))


def one(frame, kind, world_size, batch_size, exchange="ring"):
    found = frame[
        (frame["kind"] == kind)
        & (frame["world_size"] == world_size)
        & (frame["batch_size"] == batch_size)
        & (frame["exchange"] == exchange)
    ]
    (row,) = found.to_dict("records")
    return row


SECONDS = {
    ("none", 1, 16): 12.0,
    ("none", 1, 32): 10.0,
    ("ring", 1, 16): 15.0,
    ("ring", 1, 32): 12.5,
    ("ring", 2, 16): 8.0,
    ("ring", 2, 32): 6.0,
    ("ring", 4, 16): 5.0,
    ("ring", 4, 32): 4.0,
}


def test_fixed_samples_keeps_the_batch_per_rank(tmp_path):
    row = one(table(tmp_path, timed(SECONDS)), "fixed samples", 4, 16)

    assert (row["baseline_train_s"], row["train_s"]) == (12.0, 5.0)
    assert row["speedup"] == pytest.approx(2.4)
    assert row["efficiency"] == pytest.approx(0.6)
    assert row["karp_flatt"] == pytest.approx((1 / 2.4 - 1 / 4) / (1 - 1 / 4))


def test_strong_scaling_keeps_the_global_batch(tmp_path):
    """2 ranks with 16 each against one rank with 32."""
    frame = table(tmp_path, timed(SECONDS))

    assert one(frame, "strong", 2, 16)["speedup"] == pytest.approx(10.0 / 8.0)
    too_large = one(frame, "strong", 4, 32)
    assert np.isnan(too_large["speedup"])
    assert too_large["reason"] == "no baseline: exchange none at world_size 1 with batch_size 128 is not planned"


def test_weak_scaling_is_a_ratio_of_rates(tmp_path):
    """By steps, 4 ranks see 4 times the samples: at equal time that is a speedup of 4."""
    seconds = dict.fromkeys(SECONDS, 5.0)
    frame = table(tmp_path, timed(seconds), budget={"steps": 100})

    assert one(frame, "weak", 4, 16)["speedup"] == pytest.approx(4)
    assert np.isnan(one(frame, "weak", 4, 16)["karp_flatt"])  # it is of the same work
    assert "fixed samples" not in set(frame["kind"])  # no run of one rank sees as many


def test_weak_equals_fixed_samples_where_all_see_the_same(tmp_path):
    frame = table(tmp_path, timed(SECONDS))
    weak, fixed = (frame[frame["kind"] == kind]["speedup"].to_numpy() for kind in ("weak", "fixed samples"))

    np.testing.assert_allclose(weak, fixed)


def test_by_the_clock_there_are_only_rates(tmp_path):
    frame = table(tmp_path, timed(SECONDS), budget={"seconds": 5.0})

    assert set(frame["kind"]) == {"weak"}


def test_one_rank_with_exchange_shows_what_the_exchange_costs(tmp_path):
    frame = table(tmp_path, timed(SECONDS))
    ring, alone = one(frame, "fixed samples", 1, 16), one(frame, "fixed samples", 1, 16, "none")

    assert ring["speedup"] == pytest.approx(0.8)
    assert alone["speedup"] == 1
    assert np.isnan(ring["karp_flatt"])


def test_a_missing_or_broken_baseline_makes_a_null_with_its_reason(tmp_path):
    seconds = {key: value for key, value in SECONDS.items() if key != ("none", 1, 16)}
    missing = one(table(tmp_path / "a", timed(seconds)), "fixed samples", 2, 16)
    not_planned = one(table(tmp_path / "b", timed(SECONDS), grid=[RING]), "fixed samples", 2, 16)

    assert np.isnan(missing["speedup"])
    assert missing["reason"] == "no baseline: not yet run"
    assert np.isnan(not_planned["speedup"])
    assert not_planned["reason"] == "no baseline: exchange none at world_size 1 with batch_size 16 is not planned"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Result("diverged", "loss is nan", (1.0,), (np.nan,)), "not complete: diverged"),
        (Result("crashed", "boom"), "not complete: crashed"),
        (Result(t_s=(1.0, 2.0), loss=(0.1, 0.1)), "not complete: ok"),  # cut short
    ],
)
def test_only_complete_runs_have_a_speedup(tmp_path, result, reason):
    train = timed(SECONDS)
    row = one(table(tmp_path, lambda spec: result if spec.world_size == 4 else train(spec)), "fixed samples", 4, 16)

    assert np.isnan(row["speedup"])
    assert row["reason"] == reason


def test_runs_pair_by_seed_and_the_median_pair_counts(tmp_path):
    base = {0: 10.0, 1: 20.0, 2: 40.0}
    ring = {0: 5.0, 1: 5.0, 2: 40.0}  # pairs: 2, 4, 1; the ratio of the medians would be 4

    def train(spec):
        return ended(spec, (base if spec.exchange.name == "none" else ring)[spec.seed])

    row = one(table(tmp_path, train, repeats=3), "fixed samples", 2, 16)

    assert (row["pairs"], row["speedup"], row["speedup_least"], row["speedup_largest"]) == (3, 2, 1, 4)


def test_a_repeat_without_its_pair_does_not_count(tmp_path):
    def train(spec):
        return Result("missing") if spec.seed == 1 and spec.exchange.name == "none" else ended(spec, 10.0 + spec.seed)

    row = one(table(tmp_path, train, repeats=3), "fixed samples", 2, 16)

    assert (row["pairs"], row["reason"]) == (2, "only 2 of 3 repeats")


def test_oversubscribed_times_are_marked_on_either_side_of_the_ratio(tmp_path):
    def train(spec):
        return ended(spec, 5.0, oversubscribed=spec.exchange.name == "none" and spec.batch_size == 16)

    frame = table(tmp_path, train)

    assert one(frame, "fixed samples", 2, 16)["oversubscribed"]
    assert not one(frame, "fixed samples", 2, 32)["oversubscribed"]


def test_an_axis_that_changes_no_step_keeps_its_rows_and_finds_the_baseline_along_it(tmp_path):
    def train(spec):
        rest_s = 1.0 if spec.evaluate_every_steps else 0.0  # to see whose baseline it is
        return ended(spec, SECONDS[spec.exchange.name, spec.world_size, spec.batch_size] + rest_s)

    grid = [part | {"evaluate_every_steps": [None, 20]} for part in (BASELINE, RING)]
    frame = table(tmp_path, train, grid=grid)
    rows = frame[(frame["kind"] == "fixed samples") & (frame["world_size"] == 4) & (frame["batch_size"] == 16)]

    found = zip(rows["evaluate_every_steps"].fillna(0), rows["baseline_train_s"], strict=True)
    assert sorted(found) == [(0, 12.0), (20, 13.0)]


@pytest.mark.parametrize("broken", [None, 20])
def test_a_baseline_that_ended_well_counts_where_another_one_failed(tmp_path, broken):
    def train(spec):
        if spec.exchange.name == "none" and spec.evaluate_every_steps == broken:
            return Result("crashed", "boom")
        return ended(spec, SECONDS[spec.exchange.name, spec.world_size, spec.batch_size])

    grid = [part | {"evaluate_every_steps": [None, 20]} for part in (BASELINE, RING)]
    frame = table(tmp_path, train, grid=grid)

    assert frame[(frame["kind"] == "fixed samples") & (frame["exchange"] == "ring")]["speedup"].notna().all()


def test_two_repeats_of_a_noisy_machine_share_the_noise_of_the_table(tmp_path):
    """Two ratios of one point leave one degree of freedom: by themselves an interval of orders of magnitude."""
    rng = np.random.default_rng(0)
    grid = [part | {"learning_rate": [0.1, 0.2, 0.3, 0.4]} for part in (BASELINE, RING)]

    def train(spec):
        key = (spec.exchange.name, spec.world_size, spec.batch_size)
        return ended(spec, SECONDS[key] * np.exp(0.15 * rng.normal()))

    frame = table(tmp_path, train, grid=grid, repeats=2)
    row = frame[(frame["kind"] == "fixed samples") & (frame["world_size"] == 4)].iloc[0]

    assert row["interval_from"] == "2 runs, 14 degrees of freedom from what does equal work"
    assert row["speedup"] / 3 < row["speedup_low"] < 2.4 < row["speedup_high"] < 3 * row["speedup"]


def test_a_nullable_axis_drops_no_pair(tmp_path):
    grid = [part | {"threads_per_rank": [None, 2]} for part in (BASELINE, RING)]
    frame = table(tmp_path, timed(SECONDS), base={"dataset": "digits", "model": "mlp"}, grid=grid)
    fixed = frame[frame["kind"] == "fixed samples"]

    assert len(fixed) == 2 * 8
    assert fixed["speedup"].notna().all()


@pytest.mark.parametrize(
    ("speedup", "world_size", "serial"),
    [
        (259.964 / 138.439, 2, 0.065),  # SHM-Learn-Dist, figure 6.3: seconds on 1, 2, 4 and 8 workers
        (259.964 / 84.206, 4, 0.099),
        (259.964 / 92.484, 8, 0.264),
        (31.0, 40, 0.0074),  # Baidu, 2017
        (4.0, 4, 0.0),
    ],
)
def test_karp_flatt_of_the_published_speedups(speedup, world_size, serial):
    assert karp_flatt(speedup, world_size) == pytest.approx(serial, abs=5e-4)


def test_phases_are_medians_over_learning_rates_and_repeats(tmp_path):
    moved = {(0.1, 0): 1.0, (0.1, 1): 2.0, (0.5, 0): 3.0, (0.5, 1): 100.0}

    def train(spec):
        if spec.batch_size == 32:
            return Result("crashed", "boom")
        return ended(spec, 1.0, exchange_exposed_s=moved[spec.learning_rate, spec.seed], forward_s=None)

    grid = [RING | {"world_size": 2, "learning_rate": [0.1, 0.5]}]
    frame = phases.build(made_up(tmp_path, train, grid=grid, repeats=2, budget={"samples_seen": SAMPLES}))
    known, unknown = frame.to_dict("records")

    assert (known["batch_size"], known["runs"], known["exchange_exposed_s"]) == (16, 4, 2.5)
    assert np.isnan(known["forward_s"])  # not measured is not zero
    assert (unknown["runs"], np.isnan(unknown["exchange_exposed_s"])) == (0, True)


def test_the_time_lost_in_slow_steps_is_the_most_of_either_side_of_the_ratio(tmp_path):
    def train(spec):
        slow = {"none": 0.5, "ring": 0.2}[spec.exchange.name]
        return ended(spec, 10.0, step_s=(1 - slow) * 10.0 / spec.steps_asked)

    frame = table(tmp_path, train)

    assert one(frame, "fixed samples", 2, 16)["slow_steps_share"] == pytest.approx(0.5)
    no_baseline = one(frame, "strong", 4, 32)
    assert no_baseline["slow_steps_share"] == pytest.approx(0.2)


def test_epochs_that_are_rounded_to_steps_scale_by_the_time_of_a_sample(tmp_path):
    """One epoch of 1437 samples: 1408 in batches of 64, 1408 in 128, 1536 in 256; each sample takes 1 ms a rank."""

    found = table(
        tmp_path,
        lambda spec: ended(spec, spec.samples_asked / 1000 / spec.world_size),
        grid=[BASELINE | {"batch_size": 64}, RING | {"batch_size": 64, "world_size": [2, 4]}],
        budget={"epochs": 1},
    )
    fixed = found[(found["kind"] == "fixed samples") & (found["exchange"] == "ring")]
    assert list(fixed["speedup"]) == pytest.approx([2, 4])
