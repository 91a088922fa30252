"""Measured and predicted steps over the ranks, with the model's band, and beneath them of what a step consists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._curves import world_size_axis
from ddp_hpc.analysis.figures._layout import finished, head, nothing
from ddp_hpc.analysis.figures._marks import ring
from ddp_hpc.analysis.figures._panels import columns_but, matching, title
from ddp_hpc.analysis.figures._style import (
    COLUMN_IN,
    EDGE,
    EXCHANGES,
    GREY,
    INK,
    LOST,
    PAGE_IN,
    name_bars,
    plain_numbers,
    width_in,
)
from ddp_hpc.config.study import Study

INPUTS = ("prediction",)
CAPTION = (
    "Steps at world sizes that were measured and that were not: the model's curve with its 95 % band, and the parts of "
    "a step, which add up."
)

MOST_PANELS = 3  # on a page; one in a column
MS = 1e3
PARTS = {"work_s": GREY, "waiting_s": LOST, "exchange_s": EXCHANGES[0]}
NAMES = {"work_s": "work", "waiting_s": "waiting for the slowest rank", "exchange_s": "exposed exchange"}
PALE = 0.45  # opacity of bars that were not measured
POINT: dict[str, Any] = {"marker": "o", "markersize": 4.0, "color": INK, "linestyle": "none"}
MODEL: dict[str, Any] = {"color": EXCHANGES[0], "linewidth": 1.0}
BAND: dict[str, Any] = {"color": EXCHANGES[0], "alpha": 0.18, "linewidth": 0}
WHAT_IF: dict[str, Any] = {"color": EXCHANGES[1], "linewidth": 1.0, "linestyle": (0, (4, 2))}
HOLLOW: dict[str, Any] = {**POINT, "color": EXCHANGES[0], "markerfacecolor": "#ffffff"}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return steps above their parts, a column of panels for each line over the ranks, at most three."""
    table = tables["prediction"]
    other = table[table["what_if"].notna() & table["step_s"].notna()] if "what_if" in table else table[:0]
    table = table[table["what_if"].isna()] if "what_if" in table else table
    known = table[table["step_s"].notna()]
    if known.empty:
        return nothing(coverage, "none has several ranks", table)
    differ = {*varying(known), "exchange"}
    lines = list(split(known, [*columns_but(known, "world_size", "batch_size"), "kind", "batch"]))
    width = width_in(COLUMN_IN if len(lines) == 1 else PAGE_IN)
    most = round(MOST_PANELS * width / PAGE_IN)
    shown = sorted(lines, key=lambda line: -int(line[1]["runs"].sum()))[:most]  # those that were measured most
    figure = Figure((width, 3.8), layout="constrained")
    axes = figure.subplots(2, len(shown), squeeze=False, height_ratios=[1.3, 1])
    for (upper, lower), (key, rows) in zip(axes.T, shown, strict=True):
        _steps(upper, rows, matching(other, key) if len(other) else other)
        _parts(lower, rows_of(rows))
        batch = "per rank" if key["kind"] == "weak" else "in all"
        words = title({name: key[name] for name in key if name not in ("kind", "batch")}, differ)
        head(upper, words, f"{key['kind']}, {key['batch']} samples {batch}")
    axes[0][0].set_ylabel("mean step (ms)")
    axes[1][0].set_ylabel("parts of it (ms)")
    legend = [
        Line2D([], [], label="measured", **POINT),
        Line2D([], [], label="predicted", **HOLLOW),
        Line2D([], [], label="model", **MODEL),
        *(Patch(label=NAMES[part], facecolor=colour, **EDGE) for part, colour in PARTS.items()),
    ]
    if len(other):
        legend.append(Line2D([], [], label=f"what if: {other['what_if'].iloc[0]}", **WHAT_IF))
    notes = [
        "Band: 95 %, by a bootstrap over the runs. Vertical: 95 % intervals of what was measured, cut at the axes. "
        "Pale: predicted."
    ]
    notes += [f"Of panel {number} {_checked(rows)}." for number, (_, rows) in enumerate(shown, 1)]
    if len(lines) > len(shown):
        notes.append(f"{len(lines) - len(shown)} lines of the table left out, which have fewer runs.")
    return finished(figure, coverage, notes + _unsaid(table), legend, known)


def _steps(axes: Axes, rows: pd.DataFrame, other: pd.DataFrame) -> None:
    """Draw the model with its band, what was measured, hollow what was not, and over it what if."""
    what_if = MS * other["step_s"].to_numpy(float)
    axes.plot(other["world_size"].to_numpy(float), what_if, **WHAT_IF)
    low, high = (MS * other[f"step_{end}_s"].to_numpy(float) for end in ("low", "high"))
    axes.fill_between(other["world_size"].to_numpy(float), low, high, **{**BAND, "color": WHAT_IF["color"]})
    x = rows["world_size"].to_numpy(float)
    middle, low, high = (MS * rows[f"step{end}_s"].to_numpy(float) for end in ("", "_low", "_high"))
    world_size_axis(axes, sorted({*rows["world_size"], *other["world_size"]}))
    axes.fill_between(x, low, high, **BAND)
    axes.plot(x, middle, **MODEL)
    new = rows["measured_s"].isna().to_numpy(bool)
    if new.any():  # a line of no points that is not clipped lies in a corner of the figure
        axes.plot(x[new], middle[new], clip_on=False, **HOLLOW)
    measured, least, most = (MS * rows[f"measured{end}_s"].to_numpy(float) for end in ("", "_low", "_high"))
    axes.vlines(x, least, most, color=POINT["color"], linewidth=0.8)
    if not new.all():
        axes.plot(x, measured, clip_on=False, **POINT)
    for one, step, row in zip(x, measured, rows_of(rows), strict=True):
        ring(axes, one, step, row)
    axes.set_ylim(0, 1.08 * np.nanmax([*high, *middle, *measured, *what_if]))
    plain_numbers(axes.yaxis)


def _parts(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Draw a bar for each world size, of the parts of the model's step."""
    for place, row in enumerate(rows):
        bottom = 0.0
        for part, colour in PARTS.items():
            seconds = MS * row[part]
            opacity = PALE if pd.isna(row["measured_s"]) else 1.0
            axes.bar(place, seconds, 0.7, bottom=bottom, facecolor=colour, alpha=opacity, **EDGE)
            bottom += seconds
    name_bars(axes.xaxis, [str(row["world_size"]) for row in rows])
    axes.set_xlabel("world size (ranks)")
    axes.set_ylim(0, 1.08 * MS * max(row["step_s"] for row in rows))
    plain_numbers(axes.yaxis)


def _checked(rows: pd.DataFrame) -> str:
    """Return how far the model is off where it was checked."""
    known = rows.dropna(subset=["held_out_error_percent"])
    if known.empty:
        return "nothing was checked: it has too few world sizes to leave one out"
    size, error = (known[name].iloc[0] for name in ("held_out_world_size", "held_out_error_percent"))
    return f"{size:.0f} ranks were left out and predicted from the others, {error:+.1f} % off"


def _unsaid(table: pd.DataFrame) -> list[str]:
    """Return the first reason why some world sizes have no prediction."""
    lacking = table[table["step_s"].isna() & table["reason"].notna()]
    if lacking.empty:
        return []
    reason = lacking["reason"].iloc[0]
    sizes = sorted(set(lacking[lacking["reason"] == reason]["world_size"]))
    return [f"No prediction at {', '.join(map(str, sizes))} ranks: {reason}."]
