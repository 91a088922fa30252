"""What figures show of disturbed times, slow losers and points that may not win: marks, scales, legends."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import Tables, draw, grid, situations, words
from factory import Result, made_up, realistic
from matplotlib.collections import LineCollection

from ddp_hpc.analysis.figures._marks import RING, SLOW
from ddp_hpc.analysis.figures.heat_map import PALE, WHITE, _number
from ddp_hpc.analysis.tables import scaling


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
    study_runs = made_up(tmp_path_factory.mktemp("disturbed"), disturbed, grid=grids, budget=budget, rules={})
    return study_runs, Tables(study_runs)


def ringed(figure):
    rings = [line for axes in figure.axes for line in axes.lines if line.get_markersize() == RING["markersize"]]
    return [float(x) for line in rings for x in line.get_xdata()]


def test_disturbed_points_are_ringed_and_told(disturbance):
    speedup, areas = draw(disturbance, "speedup", ""), draw(disturbance, "loss_areas", "")

    assert set(map(round, ringed(speedup))) == {2}  # two curves side by side
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


def test_disturbed_steps_have_a_mark_and_quiet_ones_none(disturbance, situation):
    waterfall = disturbance[1]["waterfall"].query("world_size == 2 and from_world_size == 1")
    assert (waterfall["slow_steps_share"] > 0.5).all()
    only = {**disturbance[1], "waterfall": waterfall}
    for figure in (draw(disturbance, "phases", ""), draw((disturbance[0], only), "waterfall", "")):
        assert f"\u2021 {SLOW}" in words(figure).replace("\n", " ")
        assert any(text.get_text().endswith("\u2021") for axes in figure.axes for text in axes.texts)
    assert "\u2021" not in words(draw(situation("one run"), "phases", ""))


def test_bands_do_not_set_the_axes(situation):
    study_runs, frames = situation("repeats")
    wild = frames["scaling"].assign(speedup_largest=73.0)
    upper, *_ = draw((study_runs, frames | {"scaling": wild}), "speedup", "").axes

    assert upper.get_ylim()[1] < 5


def test_only_points_that_may_win_have_a_colour(situation):
    _, frames = situation("mixed")
    figure = draw(situation("mixed"), "heat_map", "mixed")
    faces = [tuple(face) for axes in figure.axes[:-1] for mesh in axes.collections for face in mesh.get_facecolors()]
    areas = frames["areas"]

    assert sum(face not in (WHITE, PALE) for face in faces) == areas["excluded"].isna().sum() == 1
    assert sum(face == PALE for face in faces) == (areas["excluded"].notna() & areas["loss_area_loss_s"].notna()).sum()


def test_every_shade_of_a_bar_is_explained_and_what_has_no_bar_is_counted(situation):
    text = words(draw(situation("mixed"), "loss_areas", "mixed")).replace("\n", " ")

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
    study_runs = made_up(tmp_path, train, grid=grids, budget={"samples_seen": 6400}, rules={})
    frames = Tables(study_runs)
    figure = draw((study_runs, frames), "loss_curves", "")
    winner = frames["curves"].query("learning_rate == 0.5")["t_s"].max()

    assert figure.axes[0].get_xlim()[1] < 2.1 * winner
    assert "1 curves go on beyond" in words(figure)


def test_winners_of_many_groups_are_drawn_together_too(situation):
    figure = draw(situation("many axes"), "loss_curves", "many axes")
    _, frames = situation("many axes")
    won = int(frames["winners"]["loss_area_loss_s"].notna().sum())

    assert figure.axes[0].get_title() == "winners"
    assert sum(len(legend.get_texts()) for legend in figure.legends) == won > 0


def uprights(axes):
    """The ends of the vertical lines of error bars."""
    segments = [part for one in axes.collections if isinstance(one, LineCollection) for part in one.get_segments()]
    return sorted((float(low), float(high)) for (x, low), (other, high) in segments if x == other and low != high)


def test_intervals_stand_on_bars_and_markers_where_the_tables_have_them(tmp_path):
    def train(spec):
        result = realistic(spec)
        factor = np.exp(0.2 * np.random.default_rng([spec.seed, spec.world_size]).normal())
        return replace(result, t_s=tuple(factor * np.array(result.t_s)))

    grids = [grid(1, "none", [16], [0.1]), grid([2, 4], "ring", [16], [0.1])]
    study_runs = made_up(tmp_path, train, grid=grids, budget={"samples_seen": 3200}, repeats=4)
    frames = Tables(study_runs)
    phases, speedup = (draw((study_runs, frames), name, "") for name in ("phases", "speedup"))

    steps = frames["phases"]
    top = phases.axes[0].get_ylim()[1]
    expected = [(1e3 * row["step_low_s"], min(top, 1e3 * row["step_high_s"])) for _, row in steps.iterrows()]
    assert uprights(phases.axes[0]) == [pytest.approx(pair) for pair in sorted(expected)]
    ratios = frames["scaling"][(frames["scaling"]["kind"] == "fixed samples") & (frames["scaling"]["world_size"] > 1)]
    expected = list(zip(ratios["speedup_low"], ratios["speedup_high"], strict=True))
    assert uprights(speedup.axes[0]) == [pytest.approx(pair) for pair in sorted(expected)]
    assert "4 runs" in words(phases)
    assert "4 runs" in words(speedup)
    assert words(phases).count("95 % interval") == 1


def test_a_bar_that_is_cut_has_no_interval(tmp_path):
    def train(spec):
        crowded = spec.world_size == 4
        factor = (30 if crowded else 1) * np.exp(0.2 * np.random.default_rng([spec.seed, spec.world_size]).normal())
        result = realistic(spec)
        return replace(result, t_s=tuple(factor * np.array(result.t_s)), columns={"oversubscribed": crowded})

    grids = [grid(1, "none", [16], [0.1]), grid([2, 4], "ring", [16], [0.1])]
    study_runs = made_up(tmp_path, train, grid=grids, budget={"samples_seen": 3200}, repeats=4)
    frames = Tables(study_runs)
    phases = draw((study_runs, frames), "phases", "")

    assert len(uprights(phases.axes[0])) == len(frames["phases"]) - 1 == 2
    assert "\u2191" in words(phases)


def test_a_line_over_ranks_is_of_the_same_points_all_along(tmp_path):
    """Ten rates; the fast ones have crashed on four ranks. Each point by itself scales perfectly."""

    def train(spec):
        fast = spec.learning_rate < 0.5
        if fast and spec.world_size == 4:
            return Result("crashed", "boom")
        efficiency = 1.0 if fast else 0.4
        step_s = 0.01 / (1 if spec.world_size == 1 else efficiency)
        return Result(t_s=tuple(step_s * np.arange(1, 41)), loss=(0.1,) * 40)

    rates = [number / 10 for number in range(1, 8)]
    points = [grid(1, "none", [16], rates), grid([2, 4], "ring", [16], rates)]
    study_runs = made_up(tmp_path, train, grid=points, budget={"steps": 40})
    figure = draw((study_runs, {"scaling": scaling.build(study_runs)}), "speedup", "")
    (line,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]

    assert list(line.get_ydata() / line.get_xdata()) == pytest.approx([1, 0.4, 0.4])
    assert "4 rows of the table left out" in words(figure).replace("\n", " ")


def test_numbers_of_the_heat_map_fit_their_cells():
    assert [_number(value) for value in (0.0855, 0.437, 33.4, 1234, 1.17e14)] == [
        "0.086",
        "0.437",
        "33.4",
        "1234",
        "1e14",
    ]
