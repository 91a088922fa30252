"""The noise of the loss over the world size, beside its inverse root, and how many steps it takes to settle."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import split, varying
from ddp_hpc.analysis.figures._panels import spelled_out, title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    grid,
    head,
    legend_above,
    nothing,
    plain_numbers,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("noise",)
CAPTION = (
    "Noise of the loss in its steady state over the world size, beside its inverse root; and the step at which its "
    "running mean has come to the steady mean: within a tenth of the noise, or within 5 %."
)
ON_REQUEST = True

PANELS = {
    "loss_sd": "standard deviation of the loss",
    "settle_step": "settled within the noise (step)",
    "settle_5_percent_step": "settled within 5 % (step)",
}
MOST_LINES = 8
APART = 1.015  # factor between the places of lines that would hide one another


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return three panels over the world size; a line for whatever else varies, but the seed.

    Args:
        tables: `noise`.
        study: not needed.
        coverage: how many of the planned runs there are.
    """
    noise = spelled_out(tables["noise"])
    known = noise[noise["loss_sd"] > 0]
    if known.empty:
        return nothing("no eligible runs: none has a loss in a steady state", coverage)
    groups = [name for name in SPEC_COLUMNS if name in known and name not in ("world_size", "seed")]
    differ = set(varying(known))
    lines = [
        (title(key, differ - {"world_size"}), rows)
        for key, rows in sorted(split(known, groups), key=lambda found: -len(found[1]))
    ]
    shown = lines[:MOST_LINES]
    figure, axes = grid(len(PANELS), 2.3)
    for one, (column, words) in zip(axes, PANELS.items(), strict=True):
        head(one, words)
        for number, (_, rows) in enumerate(shown):
            _line(one, rows, column, number, len(shown))
        if column == "loss_sd":
            _inverse_roots(one, [rows for _, rows in shown])
        one.set_yscale("log")
        plain_numbers(one.yaxis)
        one.set_xscale("log", base=2)
        one.set_xticks(sorted(known["world_size"].unique()))
        one.set_xticks([], minor=True)
        plain_numbers(one.xaxis)
        one.set_xlabel("world size (ranks)")
    handles = [
        Line2D([], [], **_look(number), label="measured" if words == "all" else words)
        for number, (words, _) in enumerate(shown)
    ]
    handles.append(Line2D([], [], color=GREY, linestyle="--", linewidth=0.8, label="world size to the power -1/2"))
    legend_above(figure, handles)
    notes = ["Markers: medians over the seeds; vertical: their range; moved sideways, to be seen beside one another."]
    if len(lines) > len(shown):
        notes.append(f"The {len(shown)} of {len(lines)} lines with most runs; all are in the table.")
    small_print(figure, coverage, notes)
    return figure


def _look(number: int) -> dict[str, Any]:
    colour = COLOURS[number % len(COLOURS)]
    return {
        "color": colour,
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 3.5,
        "linewidth": 0.9,
    }


def _line(axes: Axes, rows: pd.DataFrame, column: str, number: int, lines: int) -> None:
    """Draw medians over the seeds, and their range."""
    values = rows.assign(**{column: rows[column].astype("float64")}).dropna(subset=[column])
    grouped = values.groupby("world_size", sort=True)[column]
    middle = grouped.median()
    ranks = middle.index.to_numpy(float) * APART ** (number - (lines - 1) / 2)
    ends = [(middle - grouped.min()).to_numpy(float), (grouped.max() - middle).to_numpy(float)]
    axes.errorbar(ranks, middle.to_numpy(float), ends, **_look(number), elinewidth=0.6, capsize=1.5)


def _inverse_roots(axes: Axes, shown: list[pd.DataFrame]) -> None:
    """Draw through the first point of each line what would halve with four times the ranks; the same one once."""
    starts: list[tuple[int, float]] = []
    for rows in shown:
        first = int(rows["world_size"].min())
        start = float(rows.loc[rows["world_size"] == first, "loss_sd"].median())
        if any(first == other and np.isclose(start, known, rtol=0.05) for other, known in starts):
            continue
        starts.append((first, start))
        ranks = np.geomspace(first, max(float(rows["world_size"].max()), first), 50)
        axes.plot(ranks, start * np.sqrt(first / ranks), "--", color=GREY, linewidth=0.8, zorder=1)
