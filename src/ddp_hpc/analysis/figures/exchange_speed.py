"""How fast each exchange is: the time of a step with its range, and its ratio to the reference beside it."""

import json
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.figures._curves import colour_of
from ddp_hpc.analysis.figures._layout import columns_of, finished, grid, head, label_outer, nothing, room_for, wrapped
from ddp_hpc.analysis.figures._marks import face, ring
from ddp_hpc.analysis.figures._panels import Panel, columns_but, exchange_words, few, panels
from ddp_hpc.analysis.figures._style import GREY, PAGE_IN, name_bars, plain_numbers, three_digits
from ddp_hpc.config import catalog
from ddp_hpc.config.study import Study

INPUTS = ("exchanges",)
CAPTION = (
    "Training time per step of each exchange, median and range over the rounds, and how many times as fast as the "
    "reference it is in the same round; a panel for each model, batch size and world size."
)
COMPARES_EXCHANGES = True

ROW_IN, AROUND_IN = 0.19, 0.75  # height of a bar, and of what is around the bars of a panel
MOST_RATIO = 30.0  # of the longest bar to the shortest, up to which bars start at 0
LETTERS = 24  # of an exchange with its options, in a line
APART, INEXACT, COMPRESSED = (  # why an exchange does other work than the mean of all gradients
    "asynchronous: no mean of all ranks' gradients, each rank steps by itself",
    "need not train like one rank on all samples",
    "compressed gradients",
)
WHISKER = 1.25  # times the longest bar, where ranges are cut
ROOM = 1.42  # of the axis over the longest bar, for what is written beside
RANGE: dict[str, Any] = {"color": "#000000", "linewidth": 0.8, "marker": "|"}
REFERENCE: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": "--"}
PAPER = {"boxstyle": "square,pad=0.1", "facecolor": "#ffffff", "edgecolor": "none"}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return bars of milliseconds or microseconds per step, the fastest exchange on top."""
    exchanges, reference = tables["exchanges"], study.rules.reference_exchange
    known = exchanges[exchanges["runs"] > 0]
    if known.empty:
        return nothing(coverage, "none has ended well", exchanges)
    # by its ratios: another row may be the same exchange with other options
    ratios = known[["times_as_fast_least", "times_as_fast", "times_as_fast_largest"]].astype("float64")
    known = known.assign(is_reference=(known["exchange"] == reference) & (ratios == 1).all(axis=1))
    every = panels(known, columns_but(known, "exchange", "exchange_options"))
    shown, left_out = _few(every)
    figure, axes = grid(len(shown), [AROUND_IN + ROW_IN * len(panel.rows) for panel in shown], 2, PAGE_IN)
    columns = columns_of(axes[0])
    places = [max(len(panel.rows) for panel in shown[at - at % columns :][:columns]) for at in range(len(shown))]
    unit, us = ("us", 1.0) if known["step_us"].median() < 1e3 else ("ms", 1e3)
    cut = []
    for one, panel, most in zip(axes, shown, places, strict=True):
        head(one, panel.title.replace("batch size ", "batch size\u00a0"))
        cut.append(_bars(one, rows_of(panel.rows.sort_values("step_us")), us, study))
        one.set_ylim(most - 0.4, -0.6)
    label_outer(axes, f"training time per step ({unit})", "")
    legend = [Line2D([], [], label="least and largest of the rounds", **RANGE)]
    notes = ["Bars: medians over the rounds."]
    if known["times_as_fast"].notna().any():
        legend.insert(0, Line2D([], [], label=f"{reference}, the reference", **REFERENCE | {"linewidth": 1.0}))
        notes[0] += (
            f" Beside them: the median, and how many times as fast as {reference} the exchange is in the same round, "
            "in parentheses the least and the largest."
        )
    if any(cut):
        notes.append("An arrow: the largest lies beyond the axis, and in the table.")
    drawn = pd.concat([panel.rows for panel in shown])
    return finished(figure, coverage, [*notes, *_other_work(drawn), *left_out], legend, known)


def _other_work(rows: pd.DataFrame) -> list[str]:
    """Say which exchanges do not compute, between several ranks, what the others do: their times are of other work."""
    found: dict[str, set[str]] = {APART: set(), INEXACT: set(), COMPRESSED: set()}
    for row in rows_of(rows[(rows["world_size"] > 1) & (rows["exchange"] != catalog.PROGRAM)]):
        flags, words = catalog.constants("exchange", row["exchange"]), row["exchange"]
        if not flags["SYNCHRONOUS"]:
            found[APART].add(words)
        elif not flags.get("EXACT", False):
            found[INEXACT].add(words)
        elif catalog.asked(row["exchange"], "COMPRESSES", json.loads(row["exchange_options"])):
            found[COMPRESSED].add(exchange_words(row["exchange"], row["exchange_options"]))
    listed = "; ".join(f"{', '.join(sorted(names))} ({why})" for why, names in found.items() if names)
    return [f"Not all compute the same, so compare losses, too: {listed}."] if listed else []


def _few(every: list[Panel]) -> tuple[list[Panel], list[str]]:
    """Return the panels for which a figure has room, of too many those with the reference; and what that leaves."""
    most = room_for(AROUND_IN + ROW_IN * max(len(panel.rows) for panel in every), 2)
    if len(every) <= most:
        return every, []
    several = [panel for panel in every if len(panel.rows) > 1]
    compared = [panel for panel in several if panel.rows["times_as_fast"].notna().any()]
    shown, left_out = few(compared or several or every, most)
    if compared and len(compared) < len(every):
        left_out.append(f"Left out are panels without the reference: {len(every) - len(compared)} of {len(every)}.")
    elif several and len(several) < len(every):
        left_out.append(f"Left out are panels of one exchange: {len(every) - len(several)} of {len(every)}.")
    return shown, left_out


def _bars(axes: Axes, rows: list[dict[str, Any]], us: float, study: Study) -> bool:
    """Draw the bars of a panel; return whether a range is cut: one slow round must not squeeze all bars together."""
    cut = WHISKER * max(row["step_us"] for row in rows) / us
    longest = min(cut, max(row["step_largest_us"] for row in rows) / us)
    shortest = min(row["step_least_us"] for row in rows) / us
    wide = longest > MOST_RATIO * shortest
    if wide:
        axes.set_xscale("log")
    left = shortest / 2 if wide else 0.0
    for place, row in enumerate(rows):
        step, least, largest = (row[name] / us for name in ("step_us", "step_least_us", "step_largest_us"))
        colour = colour_of(row["exchange"], study)
        end = min(largest, longest)
        axes.barh(place, step - left, 0.62, left, color=face(row, colour), edgecolor=colour, linewidth=0.7)
        axes.plot([least, end], [place, place], markersize=4, **RANGE)
        if largest > cut:
            axes.plot(end, place, color="#000000", marker=">", markersize=4)
        ring(axes, step, place, row, clip_on=False, zorder=4)
        beside = _beside(row, us)
        axes.annotate(beside, (end, place), (5, 0), "data", "offset points", va="center", bbox=PAPER)
        if row["is_reference"]:
            axes.axvline(step, zorder=0, **REFERENCE)
    axes.set_xlim(left, left * (longest / left) ** ROOM if wide else ROOM * longest)
    names = ["\n".join(wrapped(exchange_words(row["exchange"], row["exchange_options"]), LETTERS)) for row in rows]
    name_bars(axes.yaxis, names)
    plain_numbers(axes.xaxis)
    return any(row["step_largest_us"] / us > cut for row in rows)


def _beside(row: dict[str, Any], us: float) -> str:
    """Return the time and, where there is a reference, the ratio with its range."""
    time = three_digits(row["step_us"] / us)
    if pd.isna(row["times_as_fast"]):
        return time
    if row["is_reference"]:
        return f"{time}   the reference"
    spread = f" ({row['times_as_fast_least']:.2f}\u2013{row['times_as_fast_largest']:.2f})" if row["pairs"] > 1 else ""
    return f"{time}   {row['times_as_fast']:.2f}\u00d7{spread}"
