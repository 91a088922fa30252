"""Times at a parameter server and the gain of accuracy, against records and sums made by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import draw, words
from factory import Result, made_up

from ddp_hpc.analysis.figures._marks import OVERSUBSCRIBED
from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables import server_times, time_to_metric
from ddp_hpc.analysis.tables._winner_selection import as_metric
from ddp_hpc.runs import records

STEPS = 60
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "batch_size": 64, "threads_per_rank": 1}
GRID = [
    {"exchange": "none", "world_size": 1},
    {"exchange": "parameter_server", "world_size": [2, 4, 16]},
    {"exchange": "ring", "world_size": 2},
]


def of_rank(spec):
    """In ms: rank 0 gathers 3 a rank, waits 2 of it, in steps 1, 4, 7, ... 9 more; averages 1 a rank, distributes 5."""

    def times(step, rank):
        if rank > 0:  # what the others do is not the server's
            return {"step_s": 0.1, "wait_s": 0.05, "gather_s": 0.07, "average_s": 0.0, "distribute_s": 0.02}
        slow = 0.009 if step % 3 == 1 else 0.0
        n = spec.world_size * (1 + spec.seed)
        return {
            "step_s": 0.1,
            "wait_s": 0.002 + slow,
            "gather_s": 0.003 * n + slow,
            "average_s": 0.001 * n,
            "distribute_s": 0.005,
        }

    return times


def train(spec):
    t_s = tuple(0.1 * np.arange(1, STEPS + 1))
    if spec.exchange.name != "parameter_server":
        return Result(t_s=t_s, loss=(0.1,) * STEPS)
    columns = {"gather_s": 0.003 * spec.world_size}
    return Result(t_s=t_s, loss=(0.1,) * STEPS, columns=columns, of_rank=of_rank(spec))


def made(folder, train=train, **keys):
    return made_up(folder, train, **({"base": BASE, "grid": GRID, "budget": {"steps": STEPS}} | keys))


def test_the_times_are_those_of_rank_0_waiting_apart_from_moving(tmp_path):
    table = server_times.build(made(tmp_path)).set_index("world_size")

    assert list(table.index) == [2, 4, 16]  # a ring and one rank alone have no server
    for ranks, row in table.iterrows():
        assert row["gather_s"] == pytest.approx(0.003 * ranks + 0.003)  # the mean of 9, 0 and 0 is 3
        assert row["gather_low_s"] < row["gather_s"] < row["gather_high_s"]
        assert row["gather_wait_s"] == pytest.approx(0.002 + 0.003)
        assert row["gather_move_s"] == pytest.approx(0.003 * ranks - 0.002)
        assert row["average_s"] == row["average_low_s"] == row["average_high_s"] == pytest.approx(0.001 * ranks)
        assert row["distribute_s"] == pytest.approx(0.005)
        assert row["median_gather_s"] == pytest.approx(0.003 * ranks)
        assert row["server_share"] == pytest.approx((0.004 * ranks + 0.003 + 0.005) / 0.1)
    assert table["oversubscribed"].tolist() == [False, False, True]
    assert set(table["interval_from"]) == {"1 run: within it only"}
    assert table["reason"].isna().all()


def test_repeats_are_combined_and_the_interval_is_over_them(tmp_path):
    """Seeds 0, 1, 2: averaging takes 2, 4 and 6 ms on two ranks; the interval is that of the logarithms."""
    row = server_times.build(made(tmp_path, repeats=3)).set_index("world_size").loc[2]

    assert (row["runs"], row["average_s"], row["interval_from"]) == (3, pytest.approx(0.004), "3 runs")
    logs = np.log([0.002, 0.004, 0.006])
    half = 4.302653 * logs.std(ddof=1) / np.sqrt(3)  # Student's t, 2 degrees of freedom, 97.5 %
    assert row["average_low_s"] == pytest.approx(np.exp(logs.mean() - half))
    assert row["average_high_s"] == pytest.approx(np.exp(logs.mean() + half))


def test_without_a_common_clock_waiting_is_null_and_the_reason_is_given(tmp_path):
    def without(spec):
        def times(step, rank):
            return {**of_rank(spec)(step, rank), "wait_s": None}

        why = {"null_columns": {"wait_s": "the ranks' hosts have no common clock"}}
        return replace(train(spec), of_rank=times, provenance=why)

    study_runs = made(tmp_path, without, grid={"exchange": "parameter_server", "world_size": [2, 4]})
    table = server_times.build(study_runs)

    assert table[["gather_wait_s", "gather_move_s"]].isna().all(axis=None)
    assert table["gather_s"].tolist() == pytest.approx([0.009, 0.015])
    assert set(table["reason"]) == {"waiting: the ranks' hosts have no common clock"}
    figure = draw((study_runs, {"server_times": table}), "server_times", "")
    assert words(figure).replace("\n", " ").count("waiting: the ranks' hosts have no common clock") == 2


def test_what_has_not_run_is_a_row_that_says_so(tmp_path):
    table = server_times.build(made(tmp_path, lambda spec: Result("missing")))

    assert set(table["reason"]) == {"not complete: not yet run"}
    assert table["gather_s"].isna().all()


def test_the_figure_shows_the_table_in_milliseconds_and_marks_what_means_nothing(tmp_path):
    study_runs = made(tmp_path)
    table = server_times.build(study_runs)
    figure = draw((study_runs, {"server_times": table}), "server_times", "")

    for axes, column in zip(figure.axes, ("gather_wait", "gather_move", "average", "distribute"), strict=True):
        line = axes.lines[0]
        np.testing.assert_allclose(line.get_xdata(), table["world_size"].astype(float))
        np.testing.assert_allclose(line.get_ydata(), 1e3 * table[f"{column}_s"])
        hollow = {float(one.get_xdata()[0]) for one in axes.lines if one.get_markerfacecolor() == "#ffffff"}
        assert set(map(round, hollow)) == {16}
    assert f"Hollow: {OVERSUBSCRIBED}." in words(figure)


ACCURACY = {1: [0.5, 0.7, 0.9, 0.8], 2: [0.4, 0.6, 0.8, 0.75], 4: [0.3, 0.5, 0.6, 0.7], 8: []}
END_S = {1: 40.0, 2: 20.0, 4: 8.0, 8: 4.0}


def evaluated(folder, metric_name="accuracy", accuracy=ACCURACY):
    def train(spec):
        t_s = tuple(np.linspace(0, END_S[spec.world_size], STEPS + 1)[1:])
        last = accuracy[spec.world_size]
        if not last:
            return Result("diverged", "loss is nan at step 1 (rank 0)", t_s[:1], (float("nan"),))
        columns = {"test_metric": last[-1], "test_metric_name": metric_name}
        return Result(t_s=t_s, loss=(0.1,) * STEPS, columns=columns)

    base = BASE | {"exchange": "parameter_server"}
    study_runs = made_up(
        folder, train, base=base, grid={"world_size": [1, 2, 4, 8]}, budget={"steps": STEPS}, search=[]
    )
    for planned in study_runs.planned:
        metric = accuracy[planned.spec.world_size]
        t_s = END_S[planned.spec.world_size] * np.arange(1, len(metric) + 1) / 4
        columns = {"step": [15, 30, 45, 60][: len(metric)], "t_s": t_s, "metric": metric}
        if metric:
            records.write("evaluations", columns, study_runs.store.file(planned.run, "evaluations"))
    return time_to_metric.build(study_runs).set_index("world_size")


def test_accuracy_per_second_rewards_short_runs_and_the_time_to_one_accuracy_does_not(tmp_path):
    table = evaluated(tmp_path)

    assert table["metric_per_s"].dropna().to_dict() == pytest.approx({1: 0.8 / 40, 2: 0.75 / 20, 4: 0.7 / 8})
    assert table["best_metric"].dropna().to_dict() == {1: 0.9, 2: 0.8, 4: 0.7}
    assert table["best_t_s"].dropna().to_dict() == {1: 30.0, 2: 15.0, 4: 8.0}
    assert table["common_metric"].dropna().to_dict() == {1: 0.7, 2: 0.7, 4: 0.7}
    assert table["common_t_s"].dropna().to_dict() == {1: 20.0, 2: 15.0, 4: 8.0}
    assert table["reason"][8] == "not complete: diverged"


def test_of_an_error_the_lowest_is_the_best_and_a_rate_means_nothing(tmp_path):
    table = evaluated(
        tmp_path, "error", {1: [0.5, 0.2, 0.1, 0.3], 2: [0.4, 0.3, 0.2, 0.25], 4: [0.4, 0.5, 0.3, 0.35], 8: []}
    )

    assert table["metric_per_s"].isna().all()
    assert table["best_metric"].dropna().to_dict() == {1: 0.1, 2: 0.2, 4: 0.3}
    assert table["best_t_s"].dropna().to_dict() == {1: 30.0, 2: 15.0, 4: 6.0}
    assert table["common_metric"].dropna().to_dict() == {1: 0.3, 2: 0.3, 4: 0.3}
    assert table["common_t_s"].dropna().to_dict() == {1: 20.0, 2: 10.0, 4: 6.0}


def test_evaluations_that_are_no_numbers_are_left_out_and_told(tmp_path):
    nan = float("nan")
    table = evaluated(tmp_path, accuracy={1: [0.5, nan, 0.9, 0.8], 2: [nan] * 4, 4: [0.3, 0.5, 0.6, 0.7], 8: []})

    assert table["best_metric"].dropna().to_dict() == {1: 0.9, 4: 0.7}
    assert table["common_t_s"].dropna().to_dict() == {1: 30.0, 4: 8.0}
    assert table["reason"][2] == "no evaluation gave a number"


def test_no_accuracy_is_above_1_at_the_end_of_its_interval():
    wide = over_runs([0.9, 0.99])

    assert wide.high > 1
    accuracy, own = (pd.DataFrame({"test_metric_name": [name]}) for name in ("accuracy", "perplexity"))
    assert as_metric(wide, accuracy).high == 1
    assert as_metric(wide, own) == wide
