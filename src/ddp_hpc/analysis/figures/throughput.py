"""Samples per second over the ranks, with the ideal line: as many times one rank without exchange."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.figures._curves import OF_EXCHANGES, SIDE_BY_SIDE, curves, handles, numbered, world_size_axis
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, nothing
from ddp_hpc.analysis.figures._panels import columns_but, panels
from ddp_hpc.analysis.figures._style import GREY, IDEAL, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("exchanges",)
CAPTION = (
    "Samples per second over the ranks, a line for each exchange, medians; the ideal line is one rank without exchange "
    "times the ranks, and the axis on the right counts in its rate."
)

STAR: dict[str, Any] = {"color": GREY, "marker": "*", "markersize": 8, "linestyle": "none", "zorder": 4}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each model, batch size and whatever else differs but the ranks and what is a line."""
    exchanges = tables["exchanges"]
    known = exchanges[exchanges["samples_per_s"].notna()]
    if known.empty:
        return nothing(coverage, "none has ended well", exchanges)
    samples = 1e6 * known["world_size"] * known["batch_size"]  # of a step, in those of a microsecond
    known = known.assign(rate=known["samples_per_s"], rate_low=samples / known["step_high_us"])
    known["rate_high"] = samples / known["step_low_us"]
    shown = panels(known, columns_but(known, *OF_EXCHANGES, "world_size"))
    measured, looks = numbered(known[known["exchange"] != "none"], OF_EXCHANGES, study, "exchange")
    figure, axes = grid(len(shown), 2.1, most_columns=2)
    with_ideal = []
    for one, panel in zip(axes, shown, strict=True):
        with_ideal.append(_ideal(one, panel.rows))
        curves(one, measured[measured.index.isin(panel.rows.index)], looks, "world_size", "rate", apart=True)
        head(one, panel.title)
    label_outer(axes, "world size (ranks)", "samples per second of training")
    legend = handles(looks)
    notes = ["Lines: medians. Vertical: 95 % intervals, from those of the mean step, cut at the axes."]
    notes += [SIDE_BY_SIDE] if len(looks) > 1 else []
    if any(with_ideal):
        legend.append(Line2D([], [], **IDEAL, label="ideal"))
        notes.append("Star: one rank without exchange. Ideal: its rate times the ranks.")
    if not all(with_ideal):
        notes.append("No ideal line where one rank with exchange none has not run.")
    return finished(figure, coverage, notes, legend, known)


def _ideal(axes: Axes, rows: pd.DataFrame) -> bool:
    """End the axes of a panel by its rates and the ideal, intervals may be cut; return whether it has an ideal line."""
    alone = rows[(rows["exchange"] == "none") & (rows["world_size"] == 1)]["samples_per_s"]
    rate, most = float(alone.median()), int(rows["world_size"].max())
    seen = [*rows["samples_per_s"].astype("float64"), rate, rate * most]
    if world_size_axis(axes, [1, *rows["world_size"]]):
        axes.set_yscale("log")
        axes.set_ylim(np.nanmin(seen) / 1.3, np.nanmax(seen) * 1.3)
    else:
        axes.set_ylim(0, 1.08 * np.nanmax(seen))
    plain_numbers(axes.yaxis)
    if np.isnan(rate):
        return False
    axes.plot([1, most], [rate, rate * most], **IDEAL, zorder=1)
    axes.plot(1, rate, **STAR)
    right = axes.secondary_yaxis("right", functions=(partial(np.multiply, 1 / rate), partial(np.multiply, rate)))
    right.set_ylabel("times one rank without exchange")
    plain_numbers(right.yaxis)
    return True
