"""Figures say what is missing, mark what may not win, and never fail for want of something to draw."""

import itertools
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import cache

import numpy as np
import pandas as pd
import pytest
from drawn import SITUATIONS, Tables, diverged, draw, grid, situations, words
from factory import made_up, planned, realistic
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.text import Text

from ddp_hpc.analysis import figures, tables
from ddp_hpc.analysis.figures import _layout as layout
from ddp_hpc.analysis.figures import exchange_speed, loss_areas, loss_curves, phases, waterfall
from ddp_hpc.analysis.figures._curves import MOST_INTERVAL, colour_of, look, looks_of, over_ranks, world_size_axis
from ddp_hpc.analysis.figures._marks import OVERSUBSCRIBED
from ddp_hpc.analysis.figures._panels import Panel, few, short_titles
from ddp_hpc.analysis.figures._style import EXCHANGES, HEADROOM, SIZES, TEXT, style, time_unit
from ddp_hpc.config import catalog

FIGURES = catalog.names("figure")
LOOKED_AT_AGAIN = ("usual", "mixed", "nothing", "all failed", "diverged")


@pytest.fixture(scope="module")
def situation(tmp_path_factory):
    return situations(lambda name: tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def picture(situation):
    """Draw a figure of a situation: `picture(name, which)`. Those that several tests look at are drawn once."""

    def drawn(name, which, size=None):
        return draw(situation(which), name, which, size)

    kept = cache(drawn)
    return lambda name, which, size=None: (kept if which in LOOKED_AT_AGAIN else drawn)(name, which, size)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("size", SIZES)
def test_all_letters_are_legible_in_print_at_both_widths(picture, size, name):
    figure = picture(name, "usual", size)
    letters = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]

    assert figure.get_figwidth() == SIZES[size]
    assert {text.get_fontsize() for text in letters} == {TEXT}


def test_a_caption_stands_beside_the_picture_and_not_in_it(tmp_path, situation, picture):
    study_runs, _ = situation("mixed")
    for table in ("phases",):
        tables.make(table, study_runs, tmp_path / "tables")
    figures.make("phases", study_runs.study, tmp_path / "tables", tmp_path)
    caption, svg = (tmp_path / f"phases.{form}" for form in ("txt", "svg"))
    latex = (tmp_path / "phases.tex").read_text()
    inside = " ".join(text.get_text() for text in picture("phases", "mixed").findobj(Text))

    assert caption.read_text().startswith(catalog.constants("figure", "phases")["CAPTION"])
    assert OVERSUBSCRIBED in caption.read_text()
    assert OVERSUBSCRIBED not in inside
    assert "14 of 16 runs" in caption.read_text()
    assert "14 of 16 runs" in inside
    assert latex.startswith(r"\caption{Phases of a training step")
    assert latex.endswith("\\label{fig:made-up-phases}\n")
    assert svg.is_file()


def test_a_figure_that_is_higher_than_a_page_says_so(tmp_path, situation):
    study_runs, _ = situation("many axes")
    tables.make("phases", study_runs, tmp_path / "tables")
    with pytest.raises(ValueError, match="high in this size, a page has 9; leave out `--size column`"):
        figures.make("phases", study_runs.study, tmp_path / "tables", tmp_path, "column")

    assert figures.make("phases", study_runs.study, tmp_path / "tables", tmp_path).is_file()


def test_an_exchange_has_one_colour_in_all_figures_and_a_batch_one_marker(situation):
    """Without exchange is grey; the batches of an exchange differ in shade, dash and marker."""
    study = situation("many axes")[0].study
    ring, other = (colour_of(name, study) for name in ("ring", "mpi_allreduce"))
    keys = [{"exchange": name, "batch_size": n} for name in ("ring", "mpi_allreduce", "none") for n in (16, 32)]
    looks = looks_of(keys, [""] * 6, study)
    alone = looks_of([{"exchange": "ring"}, {"exchange": "mpi_allreduce"}], ["", ""], study)

    assert ring != other
    assert [one["color"] for one in alone] == [ring, other]
    assert [one["marker"] for one in looks] == [looks[0]["marker"], looks[1]["marker"]] * 3
    assert len({(one["color"], one["marker"]) for one in looks}) == 6


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(
    ("which", "size"), [*((which, None) for which in SITUATIONS), ("usual", "column"), ("mixed", "column")]
)
def test_a_figure_is_drawn_whatever_there_is_and_no_words_overlap(picture, which, size, name):
    figure = picture(name, which, size)

    assert figure.axes
    box = figure.bbox
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
    assert all(box.x0 - 1 <= title.x0 and title.x1 <= box.x1 + 1 for title in titles)
    assert not [pair for pair in itertools.combinations(titles, 2) if pair[0].overlaps(pair[1])]
    small = [text.get_window_extent() for text in figure.texts]
    panels = [axes.get_tightbbox() for axes in figure.axes]
    assert not [(note, panel) for note in small for panel in panels if note.overlaps(panel)]
    legends = [legend.get_window_extent() for legend in figure.legends]
    assert all(box.x0 - 1 <= legend.x0 and legend.x1 <= box.x1 + 1 for legend in legends)
    assert not [(legend, panel) for legend in legends for panel in panels if legend.overlaps(panel)]


def test_what_sets_rows_of_panels_apart_is_whole_in_a_column(tmp_path):
    models = [{"name": "mlp", "widths": [128, 64, 32, 16]}, "mlp"]
    axes = {"model": models, "sampling": ["global", "partitioned"], "weight_decay": [0, 0.0001]}
    study_runs = made_up(tmp_path, grid=grid([1, 2], "ring", [16], [0.1], **axes), budget={"steps": 20})
    table = tables.built("noise_curves", study_runs)
    figure = figures.picture("noise_curves", study_runs.study, {"noise_curves": table}, "", "column")
    above = [text for axes in figure.axes for text in axes.texts if text.get_text()]

    assert any("\n" in text.get_text() for text in above)
    assert max(text.get_window_extent().x1 for text in above) <= figure.bbox.x1


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("which", ["nothing", "all failed", "diverged"])
def test_a_figure_without_winners_says_so(picture, which, name):
    text = words(picture(name, which)).replace("\n", " ")

    assert "no eligible runs" in text or "no winner" in text
    if which != "diverged":
        assert "Coverage: 0 of 36 runs, 36 missing" in text


@pytest.mark.parametrize("name", FIGURES)
def test_coverage_and_oversubscription_stand_on_every_figure(picture, name):
    text = words(picture(name, "mixed"))

    assert "Coverage: 14 of 16 runs, 2 missing: " in text
    # the oversubscribed points are above the threshold too, have no server, and no evaluations; steps know no time;
    # nothing is predicted from them
    without = {"loss_areas", "server_times", "accuracy", "noise", "noise_curves", "prediction", "cost"}
    without |= {"steps_to_threshold"}
    assert (OVERSUBSCRIBED in text) == (name not in without)


def test_oversubscribed_bars_are_hollow(situation):
    study_runs, frames = situation("mixed")
    areas = frames["areas"].copy()
    areas.loc[areas["oversubscribed"], "excluded"] = "oversubscribed"
    figure = draw((study_runs, frames | {"areas": areas}), "loss_areas", "")

    assert f"Hollow: {OVERSUBSCRIBED}." in words(figure)
    assert [patch.get_facecolor() for patch in figure.axes[-1].patches] == [(1.0, 1.0, 1.0, 1.0)] * 4


@pytest.mark.parametrize("name", FIGURES)
def test_a_complete_study_needs_no_small_print_on_coverage(picture, name):
    text = words(picture(name, "usual"))

    assert "Coverage" not in text
    assert OVERSUBSCRIBED not in text


def test_steps_whose_phases_are_not_known_are_whole_bars_and_times_have_the_unit_that_suits_them(situation):
    study_runs, frames = situation("usual")
    whole = frames["phases"].assign(**{name: np.nan for name in phases.PARTS if name != "step_s"})
    figure = draw((study_runs, frames | {"phases": whole}), "phases", "")

    heights = {round(patch.get_height(), 6) for axes in figure.axes for patch in axes.patches}
    assert heights == {round(1e3 * seconds, 6) for seconds in whole["step_s"]}
    for seconds, expected in ((3e-6, ("us", 1e-6)), (0.02, ("ms", 1e-3)), (300, ("min", 60)), (1e5, ("h", 3600))):
        assert time_unit(pd.Series([seconds] * 3)) == expected


def marks(figure, marker):
    return [line for axes in figure.axes for line in axes.lines if line.get_marker() == marker]


def test_the_heat_map_marks_what_may_not_win(situation, picture):
    figure = picture("heat_map", "mixed")
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


@pytest.fixture(scope="module")
def of_repeats(tmp_path_factory):
    """Three repeats: of four points the first of one diverged, and all of another."""

    def train(spec):
        bad = spec.learning_rate == 0.2 and (spec.batch_size == 32 or spec.seed == 0)
        return diverged(spec) if bad else realistic(spec)

    keys = {"grid": [grid([2, 4], learning_rate=(0.1, 0.2))], "repeats": 3, "budget": {"samples_seen": 3200}}
    keys |= {"rules": {"loss_threshold": 3.0}}
    study_runs = made_up(tmp_path_factory.mktemp("study"), train, **keys)
    return study_runs, Tables(study_runs)


def test_a_heat_map_of_repeats_says_that_any_of_them_makes_the_mark(of_repeats, picture):
    assert "in any repeat" in words(draw(of_repeats, "heat_map", ""))
    assert "repeat" not in words(picture("heat_map", "mixed"))


def test_of_a_winner_with_repeats_one_run_is_drawn_and_the_caption_says_which(of_repeats, picture):
    assert "several repeats the panel of winners has the first run" in words(draw(of_repeats, "loss_curves", ""))
    assert "repeats" not in words(picture("loss_curves", "usual"))


def test_a_count_of_points_is_told_from_one_of_repeats(of_repeats):
    title = words(draw(of_repeats, "loss_areas", "")).replace("\n", " ")

    assert "left out: 1 with 1 of 3 repeats diverged, 1 diverged" in title
    assert "1 1 of 3" not in title


def test_a_diverged_cell_is_white_and_not_the_colour_of_zero(picture):
    figure = picture("heat_map", "diverged")
    cells = [tuple(face) for axes in figure.axes for mesh in axes.collections for face in mesh.get_facecolors()]

    assert len(cells) == len(marks(figure, "x")) == 36
    assert set(cells) == {(1.0, 1.0, 1.0, 1.0)}


def test_bars_stand_in_the_order_of_minimum_loss_with_the_winner_in_the_title(situation, picture):
    figure = picture("loss_areas", "usual")
    _, frames = situation("usual")
    won = frames["winners"][frames["winners"]["eligible_points"] > 0]  # the others have no panel
    assert 0 < len(won) < len(frames["winners"])
    for axes, winner in zip(figure.axes, won.to_dict("records"), strict=True):
        same = (frames["areas"]["exchange"] == winner["exchange"]) & (
            frames["areas"]["world_size"] == winner["world_size"]
        )
        fit = frames["areas"][same & frames["areas"]["excluded"].isna()].sort_values("min_loss")
        assert [label.get_text() for label in axes.get_xticklabels()] == list(fit["point"])
        np.testing.assert_allclose([bar.get_height() for bar in axes.patches], fit["loss_area_loss_s"])
        assert axes.get_title().endswith(winner["winner"])


def test_speedup_is_drawn_with_its_ideal_and_hollow_where_oversubscribed(picture):
    figure = picture("speedup", "mixed")
    upper = figure.axes[0]
    hollow = {
        float(line.get_xdata()[0])
        for line in upper.lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "#ffffff"
    }

    assert hollow == {16.0}
    ideal = next(line for line in upper.lines if line.get_label() == "ideal")
    np.testing.assert_allclose(ideal.get_xdata(), ideal.get_ydata())


def test_stacked_phases_are_the_phases_of_the_table(situation, picture):
    figure = picture("phases", "usual")
    _, frames = situation("usual")
    shown = sum(patch.get_height() for axes in figure.axes for patch in axes.patches)
    columns = ["data_s", "h2d_s", "forward_s", "backward_s", "exchange_exposed_s", "update_s", "rest_s"]

    assert shown == pytest.approx(1e3 * frames["phases"][columns].to_numpy().sum())


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_tables_make_the_same_bytes_in_all_forms(tmp_path, situation, name):
    study_runs, _ = situation("nothing searched")
    for table in catalog.constants("figure", name)["INPUTS"]:
        tables.make(table, study_runs, tmp_path / "tables")
    drawn = [figures.make(name, study_runs.study, tmp_path / "tables", tmp_path / folder) for folder in ("a", "b")]

    assert sorted(os.listdir(tmp_path / "a")) == [f"{name}.{form}" for form in ("pdf", "png", "svg", "tex", "txt")]
    assert drawn[0] == tmp_path / "a" / f"{name}.svg"
    for form in ("svg", "pdf", "png", "tex", "txt"):
        one, other = (file.with_suffix(f".{form}").read_bytes() for file in drawn)
        assert one == other, form
    ET.parse(drawn[0])


def test_neither_display_nor_backend_matters(tmp_path):
    study_runs = planned(tmp_path)
    tables.make("scaling", study_runs, tmp_path / "tables")
    code = (
        "import sys; from pathlib import Path; from ddp_hpc.analysis import figures\n"
        "from ddp_hpc.config.grid import expand\n"
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
    study_runs, frames = situation("one run")
    for name in FIGURES:
        empty = {table: frames[table].iloc[:0] for table in catalog.constants("figure", name)["INPUTS"]}
        figure = draw((study_runs, empty), name, "empty")
        assert isinstance(words(figure), str)
        assert pd.Series([words(figure)]).str.contains("no eligible runs|no runs").all()


def test_forty_curves_have_forty_looks_in_colour_and_without():
    """Colour and dash tell lines without markers apart, colour and marker points without lines."""
    looks = [look(colour, number, 8) for colour in EXCHANGES[:5] for number in range(8)]

    for names in (("color", "linestyle"), ("color", "marker")):
        assert len({tuple(str(one[name]) for name in names) for one in looks}) == 40
    of_one_exchange = [look(EXCHANGES[0], number, 64) for number in range(64)]
    assert len({(str(one["linestyle"]), one["marker"]) for one in of_one_exchange}) == 64


@pytest.mark.parametrize(
    "world_sizes", [[1, 2, 4], range(1, 25), [1, 7, 8], [2**k for k in range(16)], [120, 121, 122]]
)
def test_numbers_of_an_axis_thin_out_until_none_overlap(world_sizes):
    """Every world size keeps its tick, the last its number, and the caption says so."""
    with style():
        figure, panels = layout.grid(4, 1.6)
        for axes in panels:
            world_size_axis(axes, world_sizes)
        layout.finished(figure, "")
        FigureCanvasAgg(figure).draw()
    ticks = panels[0].get_xticklabels()
    boxes = [label.get_window_extent() for label in ticks if label.get_text()]

    assert list(panels[0].get_xticks()) == sorted(world_sizes)
    assert not [pair for pair in itertools.pairwise(boxes) if pair[0].overlaps(pair[1])]
    assert ticks[-1].get_text() == str(max(world_sizes))
    assert (len(boxes) < len(ticks)) == ("numbers stand where there is room" in figure.get_label())


@pytest.mark.parametrize("world_sizes", [[1, 2, 4], range(1, 25), [2**k for k in range(12)]])
def test_equal_curves_stand_beside_one_another_and_by_their_own_world_size(world_sizes):
    cells = [{"line": line, "world_size": n, "y": 1.0} for line in range(10) for n in world_sizes]
    with style():
        figure, (axes, _) = layout.grid(2, 2.0)
        looks = [look(EXCHANGES[0], number, 10) for number in range(10)]
        over_ranks(axes, pd.DataFrame(cells).assign(oversubscribed=False), looks, "y", "", apart=True)
        layout.finished(figure, "")
        FigureCanvasAgg(figure).draw()
    places = [axes.transData.transform((n, 1))[0] for n in world_sizes]
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    drawn = [float(line.get_transform().transform(line.get_xydata())[0, 0]) for line in marks]
    nearest = [np.argmin(np.abs(np.array(places) - place)) for place in drawn]

    assert nearest == list(range(len(places))) * 10
    assert len({round(place, 3) for place in drawn}) == len(cells)


def test_an_interval_that_leaves_the_axis_has_an_arrow_at_its_top():
    rows = pd.DataFrame(
        {"line": 0, "world_size": [1, 2, 4], "y": [1.0, 1.0, 1.0], "y_low": 0.5, "oversubscribed": False}
    )
    rows["y_high"] = [1.5, 2.0, 9.0]
    with style():
        figure, (axes,) = layout.grid(1, 2.0)
        over_ranks(axes, rows, [look(EXCHANGES[0], 0, 1)], "y", "")
        FigureCanvasAgg(figure).draw()
    (arrow,) = marks(figure, "^")
    x, y = arrow.get_transform().transform(arrow.get_xydata())[0]

    assert axes.get_ylim()[1] == pytest.approx(HEADROOM * MOST_INTERVAL)
    assert axes.transData.inverted().transform((x, y)) == pytest.approx((4, HEADROOM * MOST_INTERVAL))


def test_curves_that_differ_in_their_exchange_alone_can_be_told_apart_without_colours(situation):
    study = situation("many axes")[0].study
    looks = looks_of([{"exchange": name, "batch_size": 16} for name in ("none", *study.exchanges)], [""] * 3, study)

    assert len({one["marker"] for one in looks}) == len({str(one["linestyle"]) for one in looks}) == 3


def test_titles_leave_out_what_most_have_and_name_it_once():
    keys = [
        {"model": "neuron", "model_options": options, "exchange": exchange, "sampling": sampling}
        for options, exchange, sampling in [
            ("{}", "ring", "global"),
            ("{}", "gloo", "global"),
            ('{"bias":true}', "ring", "global"),
            ("{}", "ring", "partitioned"),
        ]
    ]
    names, usual = short_titles(keys, {"model_options", "exchange", "sampling"})

    assert names == ["ring", "gloo", "neuron (bias), ring", "ring, sampling partitioned"]
    assert usual == ["neuron", "sampling global"]
    assert short_titles(keys[1:3], {"model_options"}) == (["neuron", "neuron (bias)"], [])


def test_a_legend_has_as_many_columns_as_its_words_leave_room_for_and_lines_where_they_are_long():
    def legend(*labels):
        with style("column"):
            figure, _ = layout.grid(1, 1.0)
            layout.finished(figure, "", (), [Line2D([], [], label=label) for label in labels])
            FigureCanvasAgg(figure).draw()
        (drawn,) = figure.legends
        assert drawn.get_window_extent().x1 <= figure.bbox.x1
        assert drawn.get_window_extent().y0 >= figure.axes[0].get_window_extent().y1
        return [text.get_text().count("\n") + 1 for text in drawn.get_texts()], drawn._ncols

    assert legend("ring", "gloo", "none", "mpi") == ([1, 1, 1, 1], 4)
    assert legend("W" * 25, "i" * 25) == ([1, 1], 1)
    assert legend("i" * 25, "l" * 25) == ([1, 1], 2)
    assert legend("ring", "weight_average (different_starts, period 100), sampling partitioned") == ([1, 2], 1)


def test_noise_is_drawn_as_the_median_of_the_seeds_with_their_range_of_the_lines_with_most_runs(situation):
    rows = [
        {"exchange": "weight_average", "exchange_options": f'{{"period":{period}}}', "world_size": n, "seed": seed}
        | {"loss_sd": (1 + seed) / n, "settle_step": 100.0 * n, "settle_5_percent_step": np.nan}
        for period in range(1, 10)
        for seed in range(2 if period == 4 else 3)
        for n in (2, 4)
    ]
    figure = draw((situation("usual")[0], {"noise": pd.DataFrame(rows)}), "noise", "")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    spread = [segment for part in figure.axes[0].collections for segment in part.get_segments()]

    assert "The 8 of 9 lines with most runs" in figure.get_label()
    assert names == [
        *(f"weight_average (period {period})" for period in range(1, 10) if period != 4),
        "world size to the power -1/2",
    ]
    assert {(*part[:, 0], *part[:, 1]) for part in map(np.array, spread)} == {(2, 2, 0.5, 1.5), (4, 4, 0.25, 0.75)}
    root = figure.axes[0].lines[0].get_xydata()
    assert root[:, 1] ** 2 * root[:, 0] == pytest.approx(2)  # through 1 at 2 ranks


def keyed(exchange, world_size):
    return Panel({"exchange": exchange, "world_size": world_size}, f"{exchange}, {world_size}", pd.DataFrame())


def test_of_too_many_panels_those_of_the_most_ranks_are_drawn_and_the_caption_says_so():
    every = [keyed(name, n) for name in ("none", "ring") for n in ((1,) if name == "none" else (2, 8, 4))]

    assert few(every, 4) == (every, [])
    kept, said = few(every, 3)
    assert [(panel.key["exchange"], panel.key["world_size"]) for panel in kept] == [("none", 1), ("ring", 8)]
    assert said == ["Shown are 2 of 4 panels, those of the most ranks; all are in the tables."]
    kept, said = few(every, 1)
    assert len(kept) == 1
    assert "the first ones of those of the most ranks" in said[0]


def test_of_too_many_panels_of_exchanges_those_with_the_reference_are_drawn():
    ratios = {"none": [np.nan], "with": [1.0, 0.9], "without": [np.nan, np.nan]}
    every = [
        Panel({"batch_size": batch}, kind, pd.DataFrame({"times_as_fast": values}))
        for batch in range(8)
        for kind, values in ratios.items()
    ]
    kept, said = exchange_speed._few(every)
    assert {panel.title for panel in kept} == {"with"}
    assert said == ["Left out are panels without the reference: 16 of 24."]
    alone, said = exchange_speed._few([panel for panel in every if panel.title != "with"] * 2)
    assert {panel.title for panel in alone} == {"without"}
    assert said[-1] == "Left out are panels of one exchange: 16 of 32."
    assert exchange_speed._few(every[:5]) == (every[:5], [])


def test_of_too_many_curves_some_are_drawn_from_the_best_end_to_the_worst():
    runs = [(str(loss), pd.DataFrame({"loss": [3.0, loss]})) for loss in (*np.arange(200.0)[::-1], np.nan)]
    drawn = [curve["loss"].iloc[-1] for _, curve in loss_curves._few(runs)]

    assert len(drawn) == loss_curves.MANY
    assert min(drawn) == 0
    assert np.isnan(drawn).sum() == 1  # one that diverged
    assert max(np.diff(sorted(drawn)[:-1])) <= 4
    assert loss_curves._few(runs[:60]) == runs[:60]


def test_a_waterfall_of_too_many_batch_sizes_has_those_with_the_best_efficiency():
    every = [
        pd.DataFrame({"exchange": [name], "batch_size": [batch], "kind": ["weak"], "efficiency": [batch / 100]})
        for name in ("ring", "gloo")
        for batch in (8, 16, 64, 32, *range(40, 50))
    ]
    kept, said = waterfall._few(every, ["exchange"])

    assert [(one["exchange"].iloc[0], one["batch_size"].iloc[0]) for one in kept] == [("ring", 64), ("gloo", 64)]
    assert said[0].startswith("Shown are 2 of 28 panels: the batch size with the best efficiency")
    assert waterfall._few(every[:12], ["exchange"]) == (every[:12], [])


def test_rows_of_panels_are_lowered_to_fit_a_page_but_not_without_end():
    heights = [layout.grid(panels, 2.0, 1)[0].get_figheight() for panels in (3, 5, 20)]

    assert heights == pytest.approx([6.0, layout.PANELS_IN, 20 * 2.0 * layout.LEAST_SQUEEZED])
    assert layout.room_for(2.0, 1) == 5


def test_groups_in_which_no_point_may_win_have_no_empty_panel_and_the_caption_names_them(situation):
    study_runs, made = situation("usual")
    four = made["areas"]["world_size"] == 4
    areas = made["areas"].assign(excluded=made["areas"]["excluded"].mask(four, "diverged"))
    with style():
        before, after = (loss_areas.draw(made | {"areas": one}, study_runs.study, "") for one in (made["areas"], areas))

    assert (len(before.axes), len(after.axes)) == (2, 1)  # one rank is above the threshold
    said = "No point may win, so that there is no panel: no exchange, 1 rank; ring, 1 rank"
    assert f"{said}." in before.get_label()
    assert f"{said}; ring, 4 ranks." in after.get_label()
