"""Loss over steps at each world size: its range and its running mean, and how far exchanges are apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._curves import look
from ddp_hpc.analysis.figures._layout import finished, nothing
from ddp_hpc.analysis.figures._panels import exchange_words, group_columns, ranks, spelled_out, title
from ddp_hpc.analysis.figures._style import COLOURS, PAGE_IN
from ddp_hpc.config.study import Study

INPUTS = ("noise_curves",)
CAPTION = (
    "Loss over steps at each world size: running means, and the range of the single steps of the first exchange; "
    "beneath, by how much the loss of the others is off that of the reference."
)
ON_REQUEST = True

MOST_ROWS, MOST_COLUMNS = 6, 6
HEIGHT_IN = {"loss": 1.1, "difference": 0.95}
WORDS_IN = 0.14  # of what a row shows
EXCHANGE = ("exchange", "exchange_options")
ZERO = 1e-17  # where two losses with the same bits are drawn
RANGE: dict[str, Any] = {"alpha": 0.25, "linewidth": 0}


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side: what is drawn, of which runs, and what sets them apart, in words."""

    kind: str
    words: str
    runs: pd.DataFrame


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a column of panels for each world size, a row for whatever else varies, but the exchange and the search.

    Of repeats, and of points that differ in what is searched, the first is drawn.
    """
    curves, reference = spelled_out(tables["noise_curves"]), study.rules.reference_exchange
    if curves.empty:
        return nothing(coverage, "none has ended well")
    exchanges = [exchange_words(row["exchange"], row.get("exchange_options")) for row in rows_of(curves)]
    curves = curves.assign(words=exchanges, compared=curves["exchange"] != reference)
    rest = [name for name in group_columns(curves, study) if name not in ("world_size", *EXCHANGE)]
    differ, groups = set(varying(curves)), list(split(curves, rest))
    groups.sort(key=lambda group: -group[1]["words"].nunique())  # what is compared stands first
    rows = []
    for key, runs in groups[:MOST_ROWS]:
        words = title(key, differ)
        rows.append(PanelRow("loss", words if words != "all" else "", runs))
        if runs["difference"].notna().any():
            rows.append(PanelRow("difference", "", runs))
    world_sizes = sorted(curves["world_size"].unique())
    exchanges = list(curves.sort_values(["compared", "words"])["words"].unique())  # the reference first
    figure = _panels(rows, world_sizes[:MOST_COLUMNS], exchanges)
    steps = int(curves["step"].max())
    piece = max(1, round(steps / curves.groupby("run")["step"].nunique().max()))
    notes = [f"Lines: means over the last fiftieth of all steps, of one seed. Range: of each {piece} steps."]
    if any(row.kind == "difference" for row in rows):
        notes.append(f"Difference: the largest of each {piece} steps to the loss of {reference}; 0 stands at {ZERO:g}.")
    if len(groups) > MOST_ROWS or len(world_sizes) > MOST_COLUMNS:
        notes.append(f"Up to {MOST_ROWS} settings and {MOST_COLUMNS} world sizes; all are in the table.")
    legend: list[Artist] = [Line2D([], [], label=name, **_look(at)) for at, name in enumerate(exchanges)]
    legend.append(Patch(color=COLOURS[0], label="range of single steps", **RANGE))
    return finished(figure, coverage, notes, legend)


def _panels(rows: Sequence[PanelRow], world_sizes: Sequence[int], exchanges: Sequence[str]) -> Figure:
    heights = [HEIGHT_IN[row.kind] + (WORDS_IN if row.words else 0) for row in rows]
    figure = Figure((PAGE_IN, sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), len(world_sizes), squeeze=False, sharex=True, sharey="row", height_ratios=heights)
    lowest: dict[int, Axes] = {}
    for line, row in zip(axes, rows, strict=True):
        for one, n in zip(line, world_sizes, strict=True):
            runs = row.runs[row.runs["world_size"] == n]
            if runs.empty:
                one.set_visible(False)
                continue
            lowest[n] = one
            (_losses if row.kind == "loss" else _differences)(one, _by_exchange(runs, exchanges))
            if row.kind == "loss":
                one.set_title(ranks(n), loc="right")
        line[0].set_ylabel(row.kind)
        if row.words:
            _say_above(line[0], row.words)
    for one in lowest.values():
        one.set_xlabel("step")
        one.tick_params(labelbottom=True)
    return figure


def _say_above(axes: Axes, words: str) -> None:
    """Write above a row of panels what sets it apart."""
    axes.set_title(" \n ", loc="left")
    place = {"xytext": (0, 13), "textcoords": "offset points", "xycoords": "axes fraction"}
    axes.annotate(words, (0, 1), **place, weight="bold").set_in_layout(False)  # type: ignore[arg-type]


def _by_exchange(runs: pd.DataFrame, exchanges: Sequence[str]) -> list[tuple[int, pd.DataFrame]]:
    """Return the first run of each exchange, with its number."""
    first = {words: rows[rows["run"] == rows["run"].iloc[0]] for words, rows in runs.groupby("words", sort=False)}
    return [(number, first[words]) for number, words in enumerate(exchanges) if words in first]


def _losses(axes: Axes, curves: list[tuple[int, pd.DataFrame]]) -> None:
    number, first = curves[0]
    colour = look(number)["color"]
    axes.fill_between(first["step"], first["loss_least"], first["loss_largest"], step="pre", color=colour, **RANGE)
    for number, curve in curves:
        axes.plot(curve["step"], curve["loss_mean"], **_look(number))


def _differences(axes: Axes, curves: list[tuple[int, pd.DataFrame]]) -> None:
    for number, curve in curves:
        if curve["difference"].notna().any():
            axes.plot(curve["step"], np.maximum(curve["difference"].to_numpy(float), ZERO), **_look(number))
    axes.set_yscale("log")


def _look(number: int) -> dict[str, Any]:
    """Return how a line looks: the first is broad, so that others over it are seen."""
    return look(number, marker="", linewidth=0.9 if number else 1.8)
