"""Samples per second over the ranks, with the ideal line: as many times one rank without exchange."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import offset_copy
from numpy.typing import NDArray

from ddp_hpc.analysis.columns import DISTURBED, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    RING,
    SLOW,
    grid,
    head,
    label_outer,
    legend_above,
    nothing,
    plain_numbers,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("exchanges",)
CAPTION = (
    "Samples per second over the ranks, a line for each exchange, medians; the ideal line is one rank without exchange "
    "times the ranks, and the axis on the right counts in its rate."
)
ON_REQUEST = True

OF_A_LINE = ("exchange", "exchange_options", "placement", "ranks_per_node")
MOST_LINEAR = 8  # ranks; beyond, both axes are logarithmic
APART_PT = 4.0  # markers of the same ranks, where there are few
IDEAL: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 2)), "zorder": 1}
STAR: dict[str, Any] = {"color": GREY, "marker": "*", "markersize": 8, "linestyle": "none", "zorder": 4}


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each model, batch size and whatever else differs but the ranks and what is a line.

    Args:
        tables: `exchanges`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    known = tables["exchanges"][tables["exchanges"]["samples_per_s"].notna()]
    if known.empty:
        return nothing("no eligible runs: none has ended well", coverage)
    of_a_panel = [name for name in SPEC_COLUMNS if name in known and name not in (*OF_A_LINE, "world_size")]
    shown = list(split(known, of_a_panel))
    figure, axes = grid(len(shown), 2.6, most_columns=2)
    looks: dict[str, Line2D] = {}  # of each line, by its words
    with_ideal = [_panel(one, rows, looks) for one, (_, rows) in zip(axes, shown, strict=True)]
    differ = set(varying(known))
    for one, (key, _) in zip(axes, shown, strict=True):
        if len(shown) > 1:
            head(one, title(key, differ))
    label_outer(axes, "world size (ranks)", "samples per second of training")
    handles = list(looks.values())
    notes = ["Lines: medians. Vertical: 95 % intervals, from those of the mean step, cut at the axes."]
    if any(with_ideal):
        handles.append(Line2D([], [], **IDEAL, label="ideal"))
        notes.append("Star: one rank without exchange. Ideal: its rate times the ranks.")
    if not all(with_ideal):
        notes.append("No ideal line where one rank with exchange none has not run.")
    legend_above(figure, handles)
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    if (known["slow_steps_share"] > DISTURBED).any():
        notes.append(f"Ringed: {SLOW}.")
    small_print(figure, coverage, notes)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, looks: dict[str, Line2D]) -> bool:
    """Draw a panel, keep in `looks` how its lines look, and return whether it has an ideal line."""
    alone = rows[(rows["exchange"] == "none") & (rows["world_size"] == 1)]["samples_per_s"]
    measured = rows[rows["exchange"] != "none"]
    columns = [name for name in OF_A_LINE if name in rows]
    ranks = sorted({1, *map(int, rows["world_size"])})
    apart = APART_PT if ranks[-1] <= MOST_LINEAR else 0.0
    lines = list(split(measured, columns))
    for number, (key, part) in enumerate(lines):
        words = title(key, {*varying(rows), "exchange"})
        look = looks.setdefault(words, _look(len(looks), words))
        _line(axes, part.sort_values("world_size"), look, apart * (number - (len(lines) - 1) / 2))
    rate = float(alone.median()) if len(alone) else np.nan
    _scale(axes, ranks, rows["samples_per_s"].to_numpy(float), rate)
    if np.isnan(rate):
        return False
    axes.plot([1, ranks[-1]], [rate, rate * ranks[-1]], **IDEAL)
    axes.plot(1, rate, **STAR)
    right = axes.secondary_yaxis("right", functions=(partial(np.multiply, 1 / rate), partial(np.multiply, rate)))
    right.set_ylabel("times one rank without exchange")
    plain_numbers(right.yaxis)
    return True


def _scale(axes: Axes, ranks: list[int], rates: NDArray[np.float64], alone: float) -> None:
    """Let the axes end by the rates and the ideal: intervals may be cut."""
    least, most = (float(end) for end in (np.nanmin([*rates, alone]), np.nanmax([*rates, alone * ranks[-1]])))
    if ranks[-1] > MOST_LINEAR:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlim(2**-0.3, ranks[-1] * 2**0.3)
        axes.set_ylim(least / 1.3, most * 1.3)
    else:
        axes.set_xlim(0.7, ranks[-1] + 0.3)
        axes.set_ylim(0, 1.08 * most)
    axes.set_xticks(ranks)
    axes.set_xticks([], minor=True)
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)


def _look(number: int, words: str) -> Line2D:
    style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)]}
    return Line2D([], [], **style, marker=MARKERS[number % len(MARKERS)], markersize=4.5, linewidth=1.0, label=words)


def _line(axes: Axes, rows: pd.DataFrame, look: Line2D, beside_pt: float) -> None:
    """Draw a line, so many points to the right: not over those that are as fast."""
    beside: dict[str, Any] = {
        "transform": offset_copy(axes.transData, axes.get_figure(root=True), x=beside_pt, units="points")
    }
    ranks, rates = rows["world_size"].to_numpy(float), rows["samples_per_s"].to_numpy(float)
    samples = 1e6 * ranks * rows["batch_size"].to_numpy(float)  # of a step, in those of a microsecond
    low, high = (samples / rows[name].to_numpy(float) for name in ("step_high_us", "step_low_us"))
    known = ~np.isnan(low)
    colour, marker = look.get_color(), str(look.get_marker())
    ends = np.maximum(0, [(rates - low)[known], (high - rates)[known]])
    axes.errorbar(ranks[known], rates[known], ends, fmt="none", ecolor=colour, elinewidth=0.7, capsize=1.5, **beside)
    axes.plot(ranks, rates, color=colour, linestyle=look.get_linestyle(), linewidth=1.0, **beside)
    for rank, rate, hollow, slow in zip(
        ranks, rates, rows["oversubscribed"], rows["slow_steps_share"] > DISTURBED, strict=True
    ):
        face = "#ffffff" if hollow else colour
        axes.plot(rank, rate, marker, color=colour, markersize=4.5, markerfacecolor=face, **beside)
        if slow:
            axes.plot(rank, rate, "o", linestyle="none", **RING, **beside)
