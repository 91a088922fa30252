"""What figures show of disturbed times, slow losers and points that may not win: marks, scales, legends."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import draw, grid, situations, tables_of, words
from factory import made_up, realistic

from ddp_hpc.figures._style import RING, SLOW
from ddp_hpc.figures.heat_map import PALE, WHITE


@pytest.fixture(scope="module")
def situation(tmp_path_factory):
    return situations(lambda name: tmp_path_factory.mktemp("study"))


def disturbed(spec):
    """Two ranks lose two thirds of their time in slow steps."""
    result = realistic(spec)
    shares = {2: {"train_s": 3 * result.t_s[-1]}}
    return replace(result, columns=shares.get(spec.world_size, {}))


@pytest.fixture(scope="module")
def disturbance(tmp_path_factory):
    budget = {"samples_seen": 6400}
    grids = [grid(1, "none"), grid([2, 4])]
    ledger = made_up(tmp_path_factory.mktemp("disturbed"), disturbed, grid=grids, budget=budget, rules={})
    return ledger, tables_of(ledger)


def ringed(figure):
    rings = [line for axes in figure.axes for line in axes.lines if line.get_markersize() == RING["markersize"]]
    return [float(x) for line in rings for x in line.get_xdata()]


def test_disturbed_points_are_ringed_and_told(disturbance):
    speedup, areas = draw(disturbance, "speedup", ""), draw(disturbance, "loss_areas", "")

    assert set(ringed(speedup)) == {2.0}
    table = disturbance[1]["areas"]
    assert len(ringed(areas)) == (table["excluded"].isna() & (table["slow_steps_share"] > 0.5)).sum() == 3
    for figure in (speedup, areas, draw(disturbance, "heat_map", "")):
        assert SLOW in words(figure).replace("\n", " ")


def test_the_mean_step_is_a_line_or_a_number_where_it_differs(disturbance, situation):
    """Three times the median is beyond the axis, which the medians set."""
    _, frames = disturbance
    means = frames["phases"].query("world_size == 2")["mean_step_s"]

    text = words(draw(disturbance, "phases", ""))
    assert all(f"\u2191{1e3 * mean:.3g}" in text for mean in means)
    assert "what the speedup counts" in text
    assert "what the speedup counts" not in words(draw(situation("one run"), "phases", ""))


def test_bands_do_not_set_the_axes(situation):
    ledger, frames = situation("repeats")
    wild = frames["scaling"].assign(speedup_largest=73.0)
    upper, *_ = draw((ledger, frames | {"scaling": wild}), "speedup", "").axes

    assert upper.get_ylim()[1] < 5


def test_only_points_that_may_win_have_a_colour(situation):
    _, frames = situation("mixed")
    figure = draw(situation("mixed"), "heat_map", "mixed")
    faces = [patch.get_facecolor() for axes in figure.axes for patch in axes.patches if patch.get_fill()]
    areas = frames["areas"]

    assert sum(face not in (WHITE, PALE) for face in faces) == areas["excluded"].isna().sum() == 1
    assert sum(face == PALE for face in faces) == (areas["excluded"].notna() & areas["loss_area_loss_s"].notna()).sum()


def test_every_shade_of_a_bar_is_explained_and_what_has_no_bar_is_counted(situation):
    text = words(draw(situation("mixed"), "loss_areas", "mixed"))

    assert "1 of 4 points; left out: 2 above threshold, 1 diverged" in text
    shades = {tuple(patch.get_facecolor()) for patch in draw(situation("usual"), "loss_areas", "usual").axes[1].patches}
    legends = draw(situation("usual"), "loss_areas", "usual").legends
    assert shades <= {tuple(handle.get_facecolor()) for legend in legends for handle in legend.legend_handles}


def test_a_slow_loser_does_not_stretch_the_time_axis(tmp_path):
    def train(spec):
        result = realistic(spec)
        factor = 50 if spec.learning_rate == 0.1 else 1
        return replace(result, t_s=tuple(factor * np.array(result.t_s)))

    grids = [grid(4, "ring", [32], [0.1, 0.5])]
    ledger = made_up(tmp_path, train, grid=grids, budget={"samples_seen": 6400}, rules={})
    frames = tables_of(ledger)
    figure = draw((ledger, frames), "loss_curves", "")
    winner = frames["curves"].query("learning_rate == 0.5")["t_s"].max()

    assert figure.axes[0].get_xlim()[1] < 2.1 * winner
    assert "1 curves go on beyond" in words(figure)


def test_winners_of_many_groups_are_drawn_together_too(situation):
    figure = draw(situation("many axes"), "loss_curves", "many axes")
    _, frames = situation("many axes")
    won = int(frames["winners"]["loss_area_loss_s"].notna().sum())

    assert figure.axes[0].get_title() == "winners"
    assert sum(len(legend.get_texts()) for legend in figure.legends) == won > 0
