"""Figures say what is missing, mark what may not win, and never fail for want of something to draw."""

import importlib
import itertools
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up, planned, realistic
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddp_hpc import catalog, figures, tables
from ddp_hpc.figures._style import OVERSUBSCRIBED, RING, SLOW, style
from ddp_hpc.figures.heat_map import PALE, WHITE

FIGURES = catalog.names("figure")
NAN = float("nan")


def grid(world_size, exchange="ring", batch_size=(16, 32), learning_rate=(0.1, 2.0), **more):
    lists = {"batch_size": list(batch_size), "learning_rate": list(learning_rate)}
    return {"exchange": exchange, "world_size": world_size, **lists, **more}


def diverged(spec):
    return Result("diverged", "loss is nan at step 3 (rank 0)", (0.1, 0.2, 0.3), (2.3, 9.0, NAN))


def mixed(spec):
    """Some of everything: two points missing, one failed, one out of memory, one cut short, one above the threshold."""
    result = realistic(spec)
    special = {
        (1, 16, 0.1): Result("missing"),
        (2, 16, 0.1): Result("crashed", "rank 1: ValueError: boom"),
        (2, 32, 0.1): Result("oom_gpu", "CUDA out of memory", (0.1,), (2.3,)),
        (2, 32, 2.0): replace(result, t_s=result.t_s[:-5], loss=result.loss[:-5]),
        (4, 16, 2.0): diverged(spec),
        (4, 32, 0.1): replace(result, columns={"min_loss": 0.9}),
    }
    return special.get((spec.world_size, spec.batch_size, spec.learning_rate), result)


TWO_MODELS = {"model": ["mlp", {"name": "mlp", "widths": [32, 16]}], "threads_per_rank": [None]}
RATES = [round(0.02 * number, 3) for number in range(1, 51)]
SITUATIONS = {
    "usual": {"grid": [grid(1, "none"), grid([1, 2, 4])], "budget": {"samples_seen": 6400}},
    "mixed": {"train": mixed, "grid": [grid(1, "none"), grid([2, 4, 16])], "budget": {"samples_seen": 6144}},
    "diverged": {"train": diverged},
    "nothing": {"train": lambda spec: Result("missing")},
    "all failed": {"train": lambda spec: Result("timeout", "10 minutes are over")},
    "one run": {"grid": [grid(1, "none", [16], [0.1])]},
    "one step": {"train": lambda spec: Result(t_s=(0.1,), loss=(0.2,)), "budget": {"seconds": 0.1}},
    "repeats": {"grid": [grid(1, "none"), grid([2, 4])], "repeats": 3, "budget": {"samples_seen": 3200}},
    "by the clock": {"grid": [grid(1, "none"), grid([2, 4])], "budget": {"seconds": 3.0}},
    "no baseline": {"grid": [grid([2, 4])]},
    "fifty rates": {"grid": [grid([1, 2], learning_rate=RATES, batch_size=[64])], "budget": {"samples_seen": 6400}},
    "216 points": {
        "grid": [grid([1, 2, 4, 8], "ring", [2**k for k in range(4, 10)], [k / 10 for k in range(1, 10)])],
        "budget": {"samples_seen": 8192},
    },
    "many axes": {
        "base": {"dataset": "digits"},
        "grid": [grid(1, "none", **TWO_MODELS), grid([1, 2, 32], ["ring", "mpi_allreduce"], **TWO_MODELS)],
        "budget": {"samples_seen": 6144},
    },
    "other search": {
        "grid": [grid(2, momentum=[0.0, 0.9], optimizer="sgd", weight_decay=[0.0, 0.01])],
        "search": ["momentum", "weight_decay", "learning_rate"],
        "budget": {"samples_seen": 3200},
    },
    "nothing searched": {"grid": [grid(1, "none", [16], [0.1]), grid([2, 4], "ring", [16], [0.1])], "search": []},
}


@pytest.fixture(scope="module")
def situation(tmp_path_factory):
    """Return a function from the name of a situation to its ledger and tables, each made once."""

    @cache
    def of(name):
        keys = dict(SITUATIONS[name])
        ledger = made_up(tmp_path_factory.mktemp("study"), keys.pop("train", realistic), **keys)
        modules = {table: importlib.import_module(f"ddp_hpc.tables.{table}") for table in catalog.names("table")}
        return ledger, {table: module.build(ledger) for table, module in modules.items()}

    return of


def draw(situation, name, figure):
    ledger, frames = situation
    inputs = catalog.constants("figure", name)["INPUTS"]
    with style():
        drawn = importlib.import_module(f"ddp_hpc.figures.{name}").draw(
            {table: frames[table] for table in inputs}, ledger.study, ledger.coverage()
        )
        FigureCanvasAgg(drawn)
        drawn.draw_without_rendering()
    return drawn


def words(figure):
    """Return all texts of a figure."""
    texts = [*figure.texts, *(text for axes in figure.axes for text in [*axes.texts, axes.title])]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return "\n".join(text.get_text() for text in [*texts, *(text for legend in legends for text in legend.get_texts())])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("which", SITUATIONS)
def test_a_figure_is_drawn_whatever_there_is_and_no_titles_overlap(situation, which, name):
    figure = draw(situation(which), name, which)

    assert figure.axes
    box = figure.bbox
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
    assert all(box.x0 - 1 <= title.x0 and title.x1 <= box.x1 + 1 for title in titles)
    assert not [pair for pair in itertools.combinations(titles, 2) if pair[0].overlaps(pair[1])]
    small = [text.get_window_extent() for text in figure.texts]
    panels = [axes.get_tightbbox() for axes in figure.axes]
    assert not [(note, panel) for note in small for panel in panels if note.overlaps(panel)]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("which", ["nothing", "all failed", "diverged"])
def test_a_figure_without_winners_says_so(situation, which, name):
    text = words(draw(situation(which), name, which)).replace("\n", " ")

    assert "no eligible runs" in text or "no winner" in text
    if which != "diverged":
        assert "Coverage: 0 of 36 runs, 36 missing" in text


@pytest.mark.parametrize("name", FIGURES)
def test_coverage_and_oversubscription_stand_on_every_figure(situation, name):
    text = words(draw(situation("mixed"), name, "mixed"))

    assert "Coverage: 14 of 16 runs, 2 missing: " in text
    assert (OVERSUBSCRIBED in text) == (name != "loss_areas")  # the oversubscribed points are above the threshold too


def test_oversubscribed_bars_are_hollow(situation):
    ledger, frames = situation("mixed")
    areas = frames["areas"].copy()
    areas.loc[areas["oversubscribed"], "excluded"] = "oversubscribed"
    figure = draw((ledger, frames | {"areas": areas}), "loss_areas", "")

    assert f"Hollow: {OVERSUBSCRIBED}." in words(figure)
    assert [patch.get_facecolor() for patch in figure.axes[-1].patches] == [(1.0, 1.0, 1.0, 1.0)] * 4


@pytest.mark.parametrize("name", FIGURES)
def test_a_complete_study_needs_no_small_print_on_coverage(situation, name):
    text = words(draw(situation("usual"), name, "usual"))

    assert "Coverage" not in text
    assert OVERSUBSCRIBED not in text


def marks(figure, marker):
    return [line for axes in figure.axes for line in axes.lines if line.get_marker() == marker]


def test_the_heat_map_marks_what_may_not_win(situation):
    figure = draw(situation("mixed"), "heat_map", "mixed")
    _, frames = situation("mixed")
    reasons = frames["areas"]["excluded"].value_counts()

    for reason, marker in {
        "diverged": "x",
        "not yet run": ".",
        "crashed": "+",
        "oom gpu": "v",
        "incomplete": "s",
        "above threshold": "^",
    }.items():
        assert len(marks(figure, marker)) == reasons[reason] > 0, reason
    for legend in ("diverged", "not yet run", "failed", "out of GPU memory", "incomplete", "threshold", "winner"):
        assert legend in words(figure)


def test_a_diverged_cell_is_white_and_not_the_colour_of_zero(situation):
    figure = draw(situation("diverged"), "heat_map", "diverged")
    cells = [patch for axes in figure.axes for patch in axes.patches]

    assert len(cells) == len(marks(figure, "x")) == 36
    assert {patch.get_facecolor() for patch in cells} == {(1.0, 1.0, 1.0, 1.0)}


def test_bars_stand_in_the_order_of_minimum_loss_with_the_winner_in_the_title(situation):
    figure = draw(situation("usual"), "loss_areas", "usual")
    _, frames = situation("usual")
    for axes, winner in zip(figure.axes, frames["winners"].to_dict("records"), strict=True):
        same = (frames["areas"]["exchange"] == winner["exchange"]) & (
            frames["areas"]["world_size"] == winner["world_size"]
        )
        fit = frames["areas"][same & frames["areas"]["excluded"].isna()].sort_values("min_loss")
        assert [label.get_text() for label in axes.get_xticklabels()] == list(fit["point"])
        np.testing.assert_allclose([bar.get_height() for bar in axes.patches], fit["loss_area_loss_s"])
        assert axes.get_title().endswith(winner["winner"])


def test_speedup_is_drawn_with_its_ideal_and_hollow_where_oversubscribed(situation):
    figure = draw(situation("mixed"), "speedup", "mixed")
    upper = figure.axes[0]
    hollow = {
        float(line.get_xdata()[0])
        for line in upper.lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "#ffffff"
    }

    assert hollow == {16.0}
    ideal = next(line for line in upper.lines if line.get_label() == "ideal")
    np.testing.assert_allclose(ideal.get_xdata(), ideal.get_ydata())


def test_stacked_phases_are_the_phases_of_the_table(situation):
    figure = draw(situation("usual"), "phases", "usual")
    _, frames = situation("usual")
    shown = sum(patch.get_height() for axes in figure.axes for patch in axes.patches)
    columns = ["data_s", "h2d_s", "forward_s", "backward_s", "exchange_exposed_s", "update_s", "rest_s"]

    assert shown == pytest.approx(1e3 * frames["phases"][columns].to_numpy().sum())


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_tables_make_the_same_bytes_in_three_forms(tmp_path, situation, name):
    ledger, _ = situation("nothing searched")
    for table in catalog.constants("figure", name)["INPUTS"]:
        tables.make(table, ledger, tmp_path / "tables")
    drawn = [figures.make(name, ledger.study, tmp_path / "tables", tmp_path / folder) for folder in ("a", "b")]

    assert sorted(os.listdir(tmp_path / "a")) == [f"{name}.{form}" for form in ("pdf", "png", "svg")]
    assert drawn[0] == tmp_path / "a" / f"{name}.svg"
    for form in ("svg", "pdf", "png"):
        one, other = (file.with_suffix(f".{form}").read_bytes() for file in drawn)
        assert one == other, form
    ET.parse(drawn[0])


def test_neither_display_nor_backend_matters(tmp_path):
    ledger = planned(tmp_path)
    tables.make("scaling", ledger, tmp_path / "tables")
    code = (
        "import sys; from pathlib import Path; from ddp_hpc import figures; from ddp_hpc.grid import expand\n"
        "study, folder = expand(Path(sys.argv[1])).study, Path(sys.argv[2])\n"
        "figures.make('speedup', study, folder / 'tables', folder / 'figures')"
    )
    file = tmp_path / "config" / "studies" / "made_up.yaml"
    environment = os.environ | {"DISPLAY": "nowhere:7", "MPLBACKEND": "no_such_backend", "MPLCONFIGDIR": str(tmp_path)}

    subprocess.run([sys.executable, "-c", code, file, tmp_path], env=environment, check=True, timeout=60)

    assert (tmp_path / "figures" / "speedup.svg").is_file()


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"scaling\.parquet.*ddp-hpc table made_up scaling"):
        figures.make("speedup", planned(tmp_path).study, tmp_path / "tables", tmp_path / "figures")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_which_tables_it_reads(name):
    constants = catalog.constants("figure", name)

    assert set(constants["INPUTS"]) <= set(catalog.names("table"))
    assert constants["CAPTION"].endswith(".")


def test_an_empty_table_is_no_exception(situation):
    ledger, frames = situation("one run")
    empty = {name: frame.iloc[:0] for name, frame in frames.items()}
    for name in FIGURES:
        figure = draw((ledger, empty), name, "empty")
        assert isinstance(words(figure), str)
        assert pd.Series([words(figure)]).str.contains("no eligible runs|no runs").all()


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
    tables_of = ("areas", "winners", "scaling", "phases")
    return ledger, {name: importlib.import_module(f"ddp_hpc.tables.{name}").build(ledger) for name in tables_of}


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
    frames = {name: importlib.import_module(f"ddp_hpc.tables.{name}").build(ledger) for name in ("curves", "winners")}
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
