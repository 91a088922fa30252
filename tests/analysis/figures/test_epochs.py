"""Accuracy, synchronisation and epochs as drawn: what is a line, what its points are, what the reader is told."""

import importlib

import numpy as np
import pytest
from drawn import words
from factory import CORES, Result, made_up

from ddp_hpc.analysis.figures._marks import OVERSUBSCRIBED
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.runs import records

STEPS = 40
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "threads_per_rank": 1}


def train(spec):
    step_s = 0.01 * (1 + spec.seed) * spec.batch_size / 64
    t_s = tuple(step_s * np.arange(1, (spec.steps_asked or STEPS) + 1))
    return Result(t_s=t_s, loss=(0.1,) * len(t_s), provenance={"train_samples": 1280})


def every_ten(spec):
    return range(10, spec.steps_asked + 1, 10)


def drawn(folder, name, metric=lambda spec, step: step / 100 + spec.seed / 10, steps_of=every_ten, **keys):
    """Draw a figure of a study whose runs were evaluated every ten steps, or after those of `steps_of`."""
    keys = {"train": train} | keys
    study_runs = made_up(folder, keys.pop("train"), **({"base": BASE, "budget": {"steps": STEPS}} | keys))
    for run in study_runs.planned:
        steps = steps_of(run.spec)
        columns = {
            "step": steps,
            "t_s": [step * 0.01 * (1 + run.spec.seed) for step in steps],
            "samples_seen": [step * run.spec.global_batch_size for step in steps],
            "metric": [metric(run.spec, step) for step in steps],
            "loss": [1 / step for step in steps],
        }
        records.write("evaluations", columns, study_runs.store.file(run.run, "evaluations"))
    module = importlib.import_module(f"ddp_hpc.analysis.figures.{name}")
    tables = {
        table: importlib.import_module(f"ddp_hpc.analysis.tables.{table}").build(study_runs) for table in module.INPUTS
    }
    with style():
        figure = module.draw(tables, study_runs.study, study_runs.coverage())
        figure.draw_without_rendering()
    return figure


def test_accuracy_is_drawn_over_epochs_and_over_time_as_medians_of_the_repeats(tmp_path):
    """Of 1,280 samples, ten steps of 64 are half an epoch; the seeds add 0, 0.1 and 0.2 to the metric."""
    grid = [{"exchange": "none", "world_size": 1, "batch_size": 64}]
    figure = drawn(tmp_path, "accuracy", grid=grid, repeats=3)
    (over_epochs, over_time), (loss, _) = np.array(figure.axes).reshape(2, 2)
    (line,), (timed,) = over_epochs.lines, over_time.lines
    assert list(line.get_xdata()) == [0.5, 1.0, 1.5, 2.0]
    assert list(line.get_ydata()) == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert list(timed.get_xdata()) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert list(loss.lines[0].get_ydata()) == pytest.approx([1 / 10, 1 / 20, 1 / 30, 1 / 40])
    (band,) = [part.get_paths()[0].vertices for part in over_epochs.collections]
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.1, 0.6))
    assert "medians over up to 3 runs" in words(figure)


def test_lines_say_only_what_tells_them_apart(tmp_path):
    """All batches differ in how often they are evaluated; at 128 only the scaling tells two lines apart."""
    grid = [
        {"exchange": "none", "world_size": 1, "zip": {"batch_size": [32, 64], "evaluate_every_steps": [20, 10]}},
        {"exchange": "none", "world_size": 1, "batch_size": 128},
        {
            "exchange": "none",
            "world_size": 1,
            "batch_size": 128,
            "learning_rate_scaling": "sqrt",
            "base_batch_size": 64,
        },
    ]
    labels = [text.get_text() for text in drawn(tmp_path, "accuracy", grid=grid).legends[0].get_texts()]
    assert sorted(labels) == [
        "1 rank, batch size 128, learning rate scaling none",
        "1 rank, batch size 128, learning rate scaling sqrt",
        "1 rank, batch size 32",
        "1 rank, batch size 64",
    ]


def test_of_many_searched_settings_the_winners_are_drawn(tmp_path):
    grid = [{"exchange": "ring", "world_size": [1, 2], "learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]}]
    figure = drawn(tmp_path, "accuracy", grid=grid, base=BASE | {"batch_size": 64})
    assert len(figure.axes[0].lines) == 2
    assert "the winner only" in words(figure)


def test_what_is_drawn_for_lack_of_a_winner_is_named_and_not_called_one(tmp_path):
    """Two ranks do not come down to the threshold; the test loss is 1 / step, the same of all their rates."""

    def train(spec):
        t_s = tuple(0.01 * np.arange(1, spec.steps_asked + 1))
        return Result(t_s=t_s, loss=(0.1 * spec.world_size,) * len(t_s), provenance={"train_samples": 1280})

    grid = [{"exchange": "ring", "world_size": [1, 2], "learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]}]
    rules = {"loss_threshold": 0.15}
    figure = drawn(tmp_path, "accuracy", grid=grid, base=BASE | {"batch_size": 64}, rules=rules, train=train)
    told = words(figure)

    assert len(figure.axes[0].lines) == 2
    assert "Of each group that has one the winner only." in told
    assert "the least test loss at its end: 2 ranks." in told


def test_of_many_settings_none_of_which_may_win_the_one_of_the_least_test_loss_is_drawn(tmp_path):
    """Their losses do not come down to the threshold; the test loss is 1 / step, least of the smallest batch."""
    grid = [{"exchange": "ring", "world_size": 2, "batch_size": [16, 32, 64], "learning_rate": [0.1, 0.2, 0.3]}]
    budget = {"samples_seen": 64 * 2 * STEPS}
    figure = drawn(tmp_path, "accuracy", grid=grid, budget=budget, rules={"loss_threshold": 0.01})

    assert [list(axes.lines[0].get_ydata())[-1] for axes in figure.axes[2:]] == [1 / (4 * STEPS)] * 2
    assert [len(axes.lines) for axes in figure.axes] == [1] * 4
    told = words(figure)
    assert "but the setting of the least test loss at its end: " in told
    assert "the winner only" not in told


def test_a_winner_that_was_evaluated_at_its_end_alone_is_a_point_and_not_replaced_by_another(tmp_path):
    """Of two ranks the larger batch wins, by its times; it takes fewer steps, so that it was evaluated once."""
    grid = [{"exchange": "ring", "world_size": [1, 2], "batch_size": [32, 64], "learning_rate": [0.1, 0.2, 0.3]}]

    def train(spec):
        t_s = tuple((0.01 / spec.global_batch_size) * np.arange(1, spec.steps_asked + 1))
        return Result(t_s=t_s, loss=(0.1,) * len(t_s), provenance={"train_samples": 1280})

    def steps_of(spec):
        return [spec.steps_asked] if (spec.world_size, spec.batch_size) == (2, 64) else every_ten(spec)

    budget = {"samples_seen": 64 * 2 * STEPS}
    figure = drawn(tmp_path, "accuracy", grid=grid, budget=budget, steps_of=steps_of, repeats=3, train=train)

    for axes in figure.axes:
        (point,) = [line for line in axes.lines if len(line.get_xdata()) == 1]
        assert point.get_marker() not in ("", "None")
        assert axes.get_xlim()[0] <= point.get_xdata()[0] <= axes.get_xlim()[1]
    told = words(figure)
    assert "Points: evaluated at the end alone" in told
    assert "the winner only" in told
    assert "least test loss" not in told


def test_more_settings_than_a_panel_has_room_for_have_more_panels(tmp_path):
    """Nothing is searched, so that each of the twelve is a group of its own."""
    grid = [{"exchange": "ring", "world_size": [1, 2], "batch_size": [16, 32, 64], "momentum": [0.0, 0.9]}]
    figure = drawn(tmp_path, "accuracy", grid=grid, search=[])

    assert [len(axes.lines) for axes in figure.axes] == [8] * 4 + [4] * 4


def test_runs_that_were_evaluated_at_the_end_only_say_how_to_change_that(tmp_path):
    grid = [{"exchange": "none", "world_size": 1, "batch_size": 64}]
    assert "`evaluate_every_steps`" in words(drawn(tmp_path, "accuracy", grid=grid, budget={"steps": 10}))


def test_more_ranks_than_cores_are_hollow_where_time_is_shown(tmp_path):
    grid = [{"exchange": "ring", "world_size": [2, 2 * CORES], "batch_size": 64}]
    figure = drawn(tmp_path, "accuracy", grid=grid)
    assert f"Hollow: {OVERSUBSCRIBED}." in words(figure)
    marks = [[line.get_marker() for line in axes.lines].count("o") for axes in figure.axes]
    assert marks == [0, 1, 0, 1]


def test_synchronisation_is_drawn_per_step_and_per_epoch(tmp_path):
    """The exchange takes 0.1 + 0.08 n of a made-up step of 10 ms; 1,280 samples are 20 / n batches of 64."""
    grid = [{"exchange": "ring", "world_size": [1, 2, 4], "batch_size": 64}]
    per_step, per_epoch = drawn(tmp_path, "synchronisation", grid=grid).axes
    expected = {ranks: (0.1 + 0.08 * ranks) * 10 for ranks in (2, 4)}  # one rank has nobody to wait for
    assert list(per_step.lines[0].get_ydata()) == pytest.approx(list(expected.values()))
    assert list(per_epoch.lines[0].get_ydata()) == pytest.approx(
        [milliseconds * 20 / ranks for ranks, milliseconds in expected.items()]  # all are below a second
    )


def test_other_gpus_have_panels_of_their_own(tmp_path):
    grid = [
        {"exchange": "none", "world_size": 1, "batch_size": 64, "partition": ["a", "b"]},
        {"exchange": "ring", "world_size": [2, 4], "batch_size": 64, "partition": ["a", "b"]},
    ]
    budget = {"samples_seen": 64 * 4 * STEPS}
    figure = drawn(tmp_path, "speedup", grid=grid, budget=budget)
    assert len(figure.axes) == 4
    assert [axes.get_title().split("\n")[-1] for axes in figure.axes[:2]] == ["a", "b"]
    assert "partition" not in words(figure)
