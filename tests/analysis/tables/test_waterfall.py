"""The efficiency waterfall: exact bars from made-up steps, that add up to the loss, and what each says."""

import numpy as np
import pandas as pd
import pytest
from drawn import draw, words
from factory import Result, made_up

from ddp_hpc.analysis.tables import scaling, waterfall
from ddp_hpc.analysis.tables.waterfall import MEANINGS, Split, bars_of
from ddp_hpc.profiling.phase_names import PHASES

STEPS = 20
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "batch_size": 64, "threads_per_rank": 1}
GRID = [{"exchange": "none", "world_size": 1}, {"exchange": "ring", "world_size": [1, 2, 4]}]
# milliseconds of a step by exchange and ranks: data, forward, backward, exchange without waiting, update, rest
MS = {
    ("none", 1): (1.0, 2.0, 4.0, 0.0, 1.0, 0.5),
    ("ring", 1): (1.0, 2.0, 4.0, 0.25, 1.0, 0.75),
    ("ring", 2): (1.25, 2.0, 5.0, 1.5, 1.25, 0.75),
    ("ring", 4): (1.5, 2.5, 5.0, 2.5, 1.25, 1.0),
}
LATE_MS = {1: 0.0, 2: 3.0, 4: 6.0}  # so much longer is the forward pass of the last rank


def steps_of(data, forward, backward, moving, update, rest, ranks, late, waits=True):
    """Return columns by step and rank; all in ms, the last rank is late."""

    def of_rank(step, rank):
        wait = late if rank < ranks - 1 else 0.0
        parts = {
            "data_s": data,
            "forward_s": forward + late - wait,
            "backward_s": backward,
            "exchange_exposed_s": moving + wait,
            "update_s": update,
            "rest_s": rest,
        }
        row = {name: value / 1e3 for name, value in (dict.fromkeys(PHASES, 0.0) | parts).items()}
        known = {"wait_s": wait / 1e3, "move_s": moving / 1e3} if waits else {}
        return row | known | {"step_s": sum(row[name] for name in PHASES)}

    return of_rank


def train(spec, waits=True, **columns):
    ranks = spec.world_size
    times, late = MS[spec.exchange.name, ranks], LATE_MS[ranks]
    t_s = (sum(times) + late) / 1e3 * np.arange(1, STEPS + 1)
    return Result(
        t_s=tuple(t_s),
        loss=(0.1,) * STEPS,
        columns=columns,
        provenance={"null_columns": {"wait_s": "the ranks' hosts have no common clock"}},
        of_rank=steps_of(*times, ranks, late, waits),
    )


def made(folder, train=train, **keys):
    return made_up(folder, train, **({"base": BASE, "grid": GRID, "budget": {"steps": STEPS}} | keys))


def bars(frame, from_exchange, from_ranks, ranks, kind="weak"):
    """Return the bars of one comparison in milliseconds, by name."""
    rows = frame[
        (frame["kind"] == kind)
        & (frame["from_exchange"] == from_exchange)
        & (frame["from_world_size"] == from_ranks)
        & (frame["world_size"] == ranks)
    ]
    assert rows["bar"].tolist() == list(MEANINGS)
    return dict(zip(rows["bar"], 1e3 * rows["lost_s"], strict=True)), rows


def test_every_bar_is_what_was_put_in_and_all_add_up_to_the_loss(tmp_path):
    study_runs = made(tmp_path)
    frame = waterfall.build(study_runs)

    ms, rows = bars(frame, "none", 1, 4)
    expected = {
        "wrapper": 9.0 - 8.5,
        "data": 0.5,
        "computation": 0.5 + 1.0,
        "moving": 2.5 - 0.25,
        "waiting": 6.0,
        "update": 0.25,
        "rest": 0.25,
    }
    assert {name: ms[name] for name in expected} == pytest.approx(expected)
    assert np.isnan(ms["clock drop"])
    assert rows["lost_efficiency"].sum() == pytest.approx(1 - rows["efficiency"].iloc[0], abs=1e-12)
    assert rows["efficiency"].iloc[0] == pytest.approx(8.5 / 19.75)
    scaled = scaling.build(study_runs)
    (weak,) = scaled[(scaled["world_size"] == 4) & (scaled["kind"] == "weak")]["efficiency"]
    assert rows["efficiency"].iloc[0] == pytest.approx(weak)


def test_a_late_rank_is_waiting_and_nothing_else(tmp_path):
    """A rank slowed by a fifth of a second: half of two ranks wait, but all of the loss is waiting."""

    def late(spec):
        ranks, delay_ms = spec.world_size, 200.0 if spec.world_size > 1 else 0.0
        same = (1.0, 2.0, 4.0, 0.0, 1.0, 0.5)
        t_s = (sum(same) + delay_ms) / 1e3 * np.arange(1, STEPS + 1)
        return Result(t_s=tuple(t_s), loss=(0.1,) * STEPS, of_rank=steps_of(*same, ranks, delay_ms))

    for ranks in (2, 4):
        ms, _ = bars(waterfall.build(made(tmp_path / str(ranks), late)), "none", 1, ranks)
        assert ms.pop("waiting") == pytest.approx(200)
        assert all(np.isnan(other) or abs(other) < 1e-9 for other in ms.values())


def test_from_one_world_size_to_the_next_the_exchange_is_in_both(tmp_path):
    ms, rows = bars(waterfall.build(made(tmp_path)), "ring", 2, 4)

    expected = {
        "data": 0.25,
        "computation": 0.5,
        "moving": 1.0,
        "waiting": 3.0,
        "update": 0.0,
        "rest": 0.25,
    }
    assert {name: ms[name] for name in expected} == pytest.approx(expected)
    assert np.isnan(ms["wrapper"])
    assert rows.set_index("bar").loc["wrapper", "reason"] == "both world sizes have it"
    assert rows["efficiency"].iloc[0] == pytest.approx(14.75 / 19.75)


def test_where_the_global_batch_is_fixed_a_rank_should_need_its_share_of_the_time(tmp_path):
    grid = [
        {"exchange": "none", "world_size": 1, "batch_size": 64},
        {"exchange": "ring", "world_size": 1, "batch_size": 64},
        {"exchange": "ring", "world_size": 4, "batch_size": 16},
    ]
    base = {name: value for name, value in BASE.items() if name != "batch_size"}
    frame = waterfall.build(made(tmp_path, base=base, grid=grid))

    ms, rows = bars(frame, "none", 1, 4, "strong")
    assert ms["wrapper"] == pytest.approx(0.5 / 4)
    assert ms["update"] == pytest.approx(1.25 - 1.0 / 4)  # it does not shrink with the batch
    assert ms["computation"] == pytest.approx(7.5 - 6.0 / 4)
    assert rows["efficiency"].iloc[0] == pytest.approx(8.5 / 4 / 19.75)
    assert rows["lost_efficiency"].sum() == pytest.approx(1 - rows["efficiency"].iloc[0], abs=1e-12)
    assert "weak" not in set(frame["kind"])


def test_what_is_not_known_is_null_with_its_reason_and_lies_in_its_neighbour(tmp_path):
    grid = [{"exchange": "none", "world_size": 1}, {"exchange": "ring", "world_size": 4}]
    ms, rows = bars(waterfall.build(made(tmp_path, lambda spec: train(spec, waits=False), grid=grid)), "none", 1, 4)
    reasons = dict(zip(rows["bar"], rows["reason"], strict=True))

    assert ms["moving"] == pytest.approx(2.5 + 6.0 * 3 / 4)  # the mean over the ranks: three of four wait
    assert reasons["wrapper"] == "ring on one rank has not run with the same batch"
    assert reasons["waiting"] == "the ranks' hosts have no common clock; it is part of moving"
    assert reasons["clock drop"] == "no GPU clocks were recorded"
    assert rows["sentence"].iloc[0] == f"wrapper: not known: {reasons['wrapper']}."
    assert rows["lost_efficiency"].sum() == pytest.approx(1 - rows["efficiency"].iloc[0], abs=1e-12)


def test_several_ranks_are_compared_with_those_that_are_placed_alike(tmp_path):
    """All steps of ranks that are spread take twice as long: neither kind of placement loses by that from 2 to 4."""

    def placed(spec):
        result = train(spec)
        factor = 2 if spec.placement == "spread" else 1
        return Result(t_s=tuple(factor * np.array(result.t_s)), loss=result.loss, of_rank=result.of_rank)

    grid = [GRID[0], {"exchange": "ring", "world_size": [2, 4], "placement": ["packed", "spread"]}]
    frame = waterfall.build(made(tmp_path, placed, grid=grid))

    rows = frame[(frame["from_world_size"] == 2) & (frame["kind"] == "weak")]
    steps_s = rows.groupby("placement")["from_step_s"].first()
    assert steps_s["spread"] == pytest.approx(2 * steps_s["packed"])
    assert set(frame[frame["from_world_size"] == 1]["placement"]) == {"packed", "spread"}


def test_the_bars_add_up_over_repeats_that_differ(tmp_path):
    def scattered(spec):
        factor = 1 + 0.3 * spec.seed
        result = train(spec)
        return Result(t_s=tuple(np.array(result.t_s) * factor), loss=result.loss, of_rank=result.of_rank)

    _, rows = bars(waterfall.build(made(tmp_path, scattered, repeats=3)), "none", 1, 4)

    assert rows["pairs"].unique().tolist() == [3]
    assert rows["lost_efficiency"].sum() == pytest.approx(1 - rows["efficiency"].iloc[0], abs=1e-12)


def test_a_gpu_at_lower_clocks_is_told_from_slower_computation():
    def at(mhz, compute_s):
        return Split(compute_s + 1, 0.0, compute_s, 0.5, 0.2, 0.5, mhz)

    found = bars_of(at(2000.0, 6.0), None, at(1500.0, 10.0), 1.0)

    assert found["clock drop"] == pytest.approx(10 - 7.5)  # at 2000 MHz the 10 s would have been 7.5 s
    assert found["computation"] == pytest.approx(7.5 - 6)


def test_every_bar_has_a_sentence_and_gains_are_called_gains(tmp_path):
    def faster(spec):
        return half(spec) if spec.world_size == 2 else train(spec)

    def half(spec):
        result = train(spec)
        of_rank = result.of_rank
        return Result(
            t_s=tuple(np.array(result.t_s) / 2),
            loss=result.loss,
            of_rank=lambda step, rank: {name: value / 2 for name, value in of_rank(step, rank).items()},
        )

    rows = bars(waterfall.build(made(tmp_path / "a")), "none", 1, 4)[1].set_index("bar")
    assert rows.loc["waiting", "sentence"] == "waiting: 30 % of a step (6 ms): until the slowest rank has arrived."
    rows = bars(waterfall.build(made(tmp_path / "b", faster)), "none", 1, 2)[1].set_index("bar")
    assert "less than at the smaller world size" in rows.loc["computation", "sentence"]
    assert rows["sentence"].str.startswith(tuple(f"{bar}: " for bar in MEANINGS)).all()


def test_ranks_that_take_their_steps_by_themselves_have_no_waterfall(tmp_path):
    grid = [{"exchange": "none", "world_size": 1}, {"exchange": "async_server", "world_size": 2}]

    def by_itself(spec):
        return Result(t_s=(0.1, 0.2), loss=(0.1, 0.1))

    (row,) = waterfall.build(made(tmp_path, by_itself, grid=grid)).to_dict("records")

    assert row["reason"] == "with async_server each rank takes its steps by itself: no step has phases"
    assert pd.isna(row["bar"])


def test_without_a_baseline_the_reason_is_given(tmp_path):
    grid = [{"exchange": "ring", "world_size": 2}]

    (row,) = waterfall.build(made(tmp_path, grid=grid)).to_dict("records")

    assert row["reason"] == "exchange none at world_size 1 with batch_size 64 is not planned"


def test_the_figure_ends_at_the_efficiency(tmp_path):
    study_runs = made(tmp_path)
    figure = draw((study_runs, {"waterfall": waterfall.build(study_runs)}), "waterfall", "waterfall")

    (axes,) = figure.axes
    widths = [patch.get_width() for patch in axes.patches]
    assert widths[0] == 100
    assert widths[-1] == pytest.approx(100 * 8.5 / 19.75)
    assert widths[0] + sum(widths[1:-1]) == pytest.approx(widths[-1])
    text = words(figure)
    assert "-30.4" in text  # waiting
    assert "?" in text
