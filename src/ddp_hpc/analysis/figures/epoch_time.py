"""Time of an epoch over the batch size, and how many times as fast it is as with the smallest batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import DISTURBED, rows_of, split, varying
from ddp_hpc.analysis.figures._panels import axis_label, title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    PAGE_IN,
    RING,
    SLOW,
    legend_above,
    nothing,
    plain_numbers,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("epoch_time",)
CAPTION = (
    "Time of an epoch over the batch size, slow steps included, and how many times as fast it is as with the smallest "
    "batch; medians over the runs, with their 95 % intervals."
)
ON_REQUEST = True

PANELS = (("epoch", "_s", "time of an epoch (s)"), ("gain", "", "times as fast as the smallest batch"))
FEW = 200  # ratio of the ends of an axis from which on only decades are named


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return two panels, both axes logarithmic; a line for each setting that has several batch sizes.

    Args:
        tables: `epoch_time`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    table = tables["epoch_time"]
    known = table[table["epoch_s"].notna()]
    if known.empty:
        reasons = table["reason"].dropna()
        return nothing(f"no eligible runs: {reasons.iloc[0] if len(reasons) else 'none is planned'}", coverage)
    line_columns = [name for name in SPEC_COLUMNS if name in known and name != "batch_size"]
    lines = list(split(known, line_columns))
    longest = max(len(rows) for _, rows in lines)
    lines = [(key, rows) for key, rows in lines if len(rows) >= min(longest, 3)]
    shown = pd.concat([rows for _, rows in lines])
    figure = Figure((PAGE_IN, 2.5), layout="constrained")
    axes = figure.subplots(1, 2).tolist()
    for one, (name, unit, words) in zip(axes, PANELS, strict=True):
        for number, (_, rows) in enumerate(lines):
            _line(one, rows.sort_values("batch_size"), name, unit, _look(number))
        _dress(one, words, sorted(map(int, shown["batch_size"].unique())))
    axes[1].axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
    differ = set(varying(shown))
    if len(lines) > 1:
        names = [title(key, differ) for key, _ in lines]
        legend_above(figure, [Line2D([], [], label=words, **_look(at)) for at, words in enumerate(names)])
    small_print(figure, coverage, _notes(shown, len(known) - len(shown)))
    return figure


def _look(number: int) -> dict[str, Any]:
    looks = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {"markersize": 4} | {name: values[number % len(values)] for name, values in looks.items()}


def _line(axes: Axes, rows: pd.DataFrame, name: str, unit: str, look: Mapping[str, Any]) -> None:
    batch = rows["batch_size"].to_numpy(float)
    middle, low, high = (rows[f"{name}{end}{unit}"].to_numpy(float) for end in ("", "_low", "_high"))
    axes.plot(batch, middle, **{**look, "marker": ""})
    sure = np.isfinite(low) & np.isfinite(high) & (low > 0)
    axes.vlines(batch[sure], low[sure], high[sure], color=look["color"], linewidth=0.8)
    for place, value, row in zip(batch, middle, rows_of(rows), strict=True):
        hollow = pd.notna(row["oversubscribed"]) and row["oversubscribed"]
        axes.plot(place, value, **look, markerfacecolor="#ffffff" if hollow else look["color"])
        if row["slow_steps_share"] > DISTURBED:
            axes.plot(place, value, "o", linestyle="none", **RING)


def _dress(axes: Axes, words: str, batches: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(batches, minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(True, color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis, FEW)
    axes.set_xlabel(axis_label("batch_size"))
    axes.set_ylabel(words)


def _notes(shown: pd.DataFrame, others: int) -> list[str]:
    notes = []
    if shown["epoch_low_s"].notna().any():
        bases = sorted(shown["interval_from"].dropna().unique())
        notes.append(f"Bars: 95 % intervals: {'; '.join(bases)}.")
    if others:
        notes.append("Settings with fewer batch sizes are in the table only.")
    if shown["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    if (shown["slow_steps_share"] > DISTURBED).any():
        notes.append(f"Ringed: {SLOW}.")
    return notes
