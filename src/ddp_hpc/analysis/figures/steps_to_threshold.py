"""Steps to the loss threshold against the global batch: measured, and the curve of the gradient noise scale."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, nothing
from ddp_hpc.analysis.figures._panels import columns_but, title
from ddp_hpc.analysis.figures._style import EXCHANGES, GREY, IDEAL, INK, LOST, plain_numbers, three_digits
from ddp_hpc.config.study import Study

INPUTS = ("steps_to_threshold",)
CAPTION = (
    "Steps to the loss threshold against the global batch, with the best learning rate: measured, and the curve that "
    "the gradient noise scale gives."
)

MOST_PANELS = 4
CURVE_POINTS = 100
POINT: dict[str, Any] = {"marker": "o", "markersize": 4.0, "color": INK, "linestyle": "none"}
CURVE: dict[str, Any] = {"color": EXCHANGES[0], "linewidth": 1.0}
BAND: dict[str, Any] = {"color": EXCHANGES[0], "alpha": 0.18, "linewidth": 0}
FITTED, BATCH = "from the noise scale", "critical batch"  # what is not always drawn
CRITICAL: dict[str, Any] = {"color": LOST, "linewidth": 0.8, "linestyle": (0, (4, 2))}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each kind of training, at most four."""
    table = tables["steps_to_threshold"]
    known = table[table["measured_steps"].notna()]
    if known.empty:
        return nothing(coverage, "no run came to a loss_threshold", table)
    names, differ = columns_but(known), set(varying(known)) - {"learning_rate"}
    kinds = [name for name in names if name != "learning_rate"]
    shown = list(split(table, kinds)) if kinds else [({}, table)]
    left_out, shown = len(shown) - MOST_PANELS, shown[:MOST_PANELS]
    figure, axes = grid(len(shown), 2.4, most_columns=2)
    for one, (key, rows) in zip(axes, shown, strict=True):
        _panel(one, rows)
        head(one, title(key, differ) or f"to a loss of {study.rules.loss_threshold:g}")
    label_outer(axes, "global batch (samples)", "steps")
    drawn = {line.get_label() for one in axes for line in one.lines}
    fitted = [Line2D([], [], label=FITTED, **CURVE), Patch(label="95 %", **BAND)] if FITTED in drawn else []
    critical = [Line2D([], [], label=BATCH, **CRITICAL)] if BATCH in drawn else []
    measured, perfect = Line2D([], [], label="measured", **POINT), Line2D([], [], label="perfect scaling", **IDEAL)
    legend = [measured, *fitted, *critical, perfect]
    notes = ["Vertical: 95 % intervals of what was measured. Perfect scaling: half the steps at twice the batch."]
    notes += [_checked(number, rows) for number, (_, rows) in enumerate(shown, 1)]
    if doubts := sorted(set(known["doubt"].dropna())):
        notes.append(f"Of some batches {'; '.join(doubts)}: these may take fewer steps.")
    notes += [f"{left_out} kinds of training left out; all are in the table."] if left_out > 0 else []
    return finished(figure, coverage, notes, legend)


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    x = rows["global_batch_size"].to_numpy(float)
    measured, low, high = (rows[f"measured_steps{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    axes.set(xscale="log", yscale="log")
    modelled = rows[rows["predicted_steps"].notna()]
    drawn = [*measured, *modelled["predicted_steps"]]
    if len(modelled):
        _model(axes, modelled)
    first = int(np.flatnonzero(np.isfinite(measured))[0])
    axes.plot(x, measured[first] * x[first] / x, **IDEAL)
    axes.vlines(x, low, high, color=INK, linewidth=0.8)
    axes.plot(x, measured, **POINT)
    axes.set_ylim(0.5 * np.nanmin(drawn), 2 * np.nanmax(drawn))
    axes.set_xlim(x.min() / 1.3, x.max() * 1.3)
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)


def _model(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the curve between the batches of the table, its band, relative to it as there, and the critical batch."""
    row, ends = rows_of(rows)[0], rows["global_batch_size"].to_numpy(float)
    x = np.geomspace(ends[0], ends[-1], CURVE_POINTS)
    curve = row["least_steps"] * (1 + row["critical_batch"] / x)
    middle, *band = (rows[f"predicted_steps{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    axes.plot(x, curve, label=FITTED, **CURVE)
    axes.fill_between(x, *(curve * np.interp(np.log(x), np.log(ends), edge / middle) for edge in band), **BAND)
    if ends[0] < row["critical_batch"] < ends[-1]:
        axes.axvline(row["critical_batch"], label=BATCH, **CRITICAL)
        text = three_digits(row["critical_batch"])
        axes.annotate(text, (row["critical_batch"], 1), (2, -8), ("data", "axes fraction"), "offset points", color=GREY)


def _checked(number: int, rows: pd.DataFrame) -> str:
    """Return what is to be said of a panel: how far the model is off where it was checked, or why there is none."""
    checked = rows.dropna(subset=["held_out_error_percent"])
    if len(checked):
        batch, error = (checked[name].iloc[0] for name in ("held_out_batch", "held_out_error_percent"))
        return f"Panel {number}: a batch of {batch:.0f}, predicted from the others, is {error:+.1f} % off."
    return f"Panel {number}: {next(iter(rows['reason'].dropna()), 'one batch only, so nothing was checked')}."
