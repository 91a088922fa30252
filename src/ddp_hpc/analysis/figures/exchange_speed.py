"""How fast each exchange is: the time of a step with its range, and its ratio to the reference beside it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import DISTURBED, rows_of, show_component, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    GREY,
    OVERSUBSCRIBED,
    PAGE_IN,
    RING,
    SLOW,
    SMALL,
    head,
    label_outer,
    legend_above,
    nothing,
    plain_numbers,
    small_print,
    wrapped,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("exchanges",)
CAPTION = (
    "Training time per step of each exchange, median and range over the rounds, and how many times as fast as the "
    "reference it is in the same round; a panel for each model, batch size and world size."
)
COMPARES_EXCHANGES = True

BARS = ("exchange", "exchange_options")  # what stands below one another in a panel
ROW_IN, AROUND_IN = 0.19, 0.75  # height of a bar, and of what is around the bars of a panel
MOST_RATIO = 30.0  # of the longest bar to the shortest, up to which bars start at 0
LETTERS = 24  # of an exchange with its options, in a line
WHISKER = 1.25  # times the longest bar, where ranges are cut
ROOM = 1.42  # of the axis over the longest bar, for what is written beside
BAR: dict[str, Any] = {"height": 0.62, "linewidth": 0.7}


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return bars of milliseconds or microseconds per step, the fastest exchange on top.

    Args:
        tables: `exchanges`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    exchanges = tables["exchanges"]
    known = exchanges[exchanges["runs"] > 0]
    if known.empty:
        return nothing("no eligible runs: none has ended well", coverage)
    panel_columns = [name for name in SPEC_COLUMNS if name in exchanges and name not in BARS]
    shown = list(split(known, panel_columns))
    figure, axes, room = _panels([len(rows) for _, rows in shown])
    unit, us = ("us", 1.0) if known["step_us"].median() < 1e3 else ("ms", 1e3)
    differ = set(varying(known))
    for one, (key, rows), places in zip(axes, shown, room, strict=True):
        head(one, title(key, differ).replace("batch size ", "batch size\u00a0"))
        _bars(one, rows_of(rows.sort_values("step_us")), us, study.rules.reference_exchange)
        one.set_ylim(places - 0.4, -0.6)
    label_outer(axes, f"training time per step ({unit})", "")
    reference = study.rules.reference_exchange
    compared = known["times_as_fast"].notna().any()
    handles: list[Artist] = [
        Line2D([], [], color="#000000", linewidth=0.8, marker="|", label="least and largest of the rounds")
    ]
    notes = ["Bars: medians over the rounds."]
    if compared:
        handles.insert(0, Line2D([], [], color=GREY, linestyle="--", label=f"{reference}, the reference"))
        notes[0] += (
            f" Beside them: the median, and how many times as fast as {reference} the exchange is in the same round, "
            "in parentheses the least and the largest."
        )
    legend_above(figure, handles)
    if any(row["step_largest_us"] > _cut(rows_of(rows)) for _, rows in shown for row in rows_of(rows)):
        notes.append("An arrow: the largest lies beyond the axis, and in the table.")
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    if (known["slow_steps_share"] > DISTURBED).any():
        notes.append(f"Ringed: {SLOW}.")
    small_print(figure, coverage, notes)
    return figure


def _panels(bars: list[int]) -> tuple[Figure, list[Axes], list[int]]:
    """Return panels, two beside one another, and for how many bars each has room: as many as the fuller of the two."""
    columns = min(2, len(bars))
    rows = [max(bars[first : first + columns]) for first in range(0, len(bars), columns)]
    heights = [AROUND_IN + ROW_IN * most for most in rows]
    figure = Figure((PAGE_IN, sum(heights)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights).ravel().tolist()
    for unused in axes[len(bars) :]:
        unused.remove()
    return figure, axes[: len(bars)], [rows[number // columns] for number in range(len(bars))]


def _bars(axes: Axes, rows: list[dict[str, Any]], us: float, reference: str) -> None:
    cut = _cut(rows)
    longest = min(cut, max(row["step_largest_us"] for row in rows)) / us
    shortest = min(row["step_least_us"] for row in rows) / us
    wide = longest > MOST_RATIO * shortest
    if wide:
        axes.set_xscale("log")
    left = shortest / 2 if wide else 0.0
    for place, row in enumerate(rows):
        step, least, largest = (row[name] / us for name in ("step_us", "step_least_us", "step_largest_us"))
        colour = _colour(row, reference)
        face = "#ffffff" if _marked(row) else colour
        axes.barh(place, step - left, left=left, color=face, edgecolor=colour, **BAR)
        largest = min(largest, longest)
        axes.plot([least, largest], [place, place], color="#000000", linewidth=0.8, marker="|", markersize=4)
        if row["step_largest_us"] > cut:
            axes.plot(largest, place, color="#000000", marker=">", markersize=4)
        if row["slow_steps_share"] > DISTURBED:
            axes.plot(step, place, "o", clip_on=False, zorder=4, **RING)
        axes.annotate(
            _beside(row, us, reference),
            (largest, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            size=SMALL,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "#ffffff", "edgecolor": "none"},
        )
        if _is_reference(row, reference):
            axes.axvline(row["step_us"] / us, color=GREY, linestyle="--", linewidth=0.8, zorder=0)
    axes.set_xlim(left, left * (longest / left) ** ROOM if wide else ROOM * longest)
    names = [_in_lines(_name(row)) for row in rows]
    axes.set_yticks(range(len(rows)), names, size=SMALL if any("\n" in name for name in names) else None)
    axes.tick_params(axis="y", length=0)
    plain_numbers(axes.xaxis)


def _cut(rows: list[dict[str, Any]]) -> float:
    """Return where ranges are cut, in us: one slow round must not squeeze all bars together."""
    return WHISKER * max(float(row["step_us"]) for row in rows)


def _name(row: Mapping[str, Any]) -> str:
    return "no exchange" if row["exchange"] == "none" else show_component(row["exchange"], row["exchange_options"])


def _in_lines(name: str) -> str:
    """Return a name in one line if it fits, else with its options in lines below."""
    if len(name) <= LETTERS:
        return name
    first, bracket, options = name.partition(" (")
    return "\n".join([first, *(wrapped(f"({options}", LETTERS) if bracket else [])])


def _colour(row: Mapping[str, Any], reference: str) -> str:
    return GREY if _is_reference(row, reference) else "#c8c8c8" if row["exchange"] == "none" else COLOURS[3]


def _is_reference(row: Mapping[str, Any], reference: str) -> bool:
    """Return whether the ratios are to this row: another one may be the same exchange with other options."""
    ratios = [row[name] for name in ("times_as_fast_least", "times_as_fast", "times_as_fast_largest")]
    return bool(row["exchange"] == reference and ratios == [1, 1, 1])


def _beside(row: Mapping[str, Any], us: float, reference: str) -> str:
    """Return the time and, where there is a reference, the ratio with its range."""
    time = f"{row['step_us'] / us:.3g}"
    ratio = row["times_as_fast"]
    if pd.isna(ratio):
        return time
    if _is_reference(row, reference):
        return f"{time}   the reference"
    spread = f" ({row['times_as_fast_least']:.2f}\u2013{row['times_as_fast_largest']:.2f})" if row["pairs"] > 1 else ""
    return f"{time}   {ratio:.2f}\u00d7{spread}"


def _marked(row: Mapping[str, Any]) -> bool:
    return bool(pd.notna(row["oversubscribed"]) and row["oversubscribed"])
