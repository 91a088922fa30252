"""Which scheme suits which arithmetic intensity: efficiency, and speed against the reference, over FLOP per byte."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import DISTURBED, rows_of, show_component, split, varying
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
    legend_above,
    nothing,
    plain_numbers,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("schemes",)
CAPTION = (
    "Schemes over the arithmetic intensity, the work of a rank's step over the bytes of the parameters: efficiency "
    "against one rank, and how many times as fast as the reference."
)
ON_REQUEST = True

SCHEME = ("exchange", "exchange_options")
SAME_LINE = ("model", "model_options", "dataset", "dataset_options")
ALONG = "flop_per_parameter_byte"
HEADROOM = 1.08
IDEAL: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 2))}


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return two panels, again for each number of ranks and whatever else varies.

    Args:
        tables: `schemes`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    table = tables["schemes"]
    known = table[(table["runs"] > 0) & table[ALONG].notna() & (table["world_size"] > 1)]
    if known.empty:
        why = "of none that has ended well is the work known" if (table["runs"] > 0).any() else "none has ended well"
        return nothing(f"no eligible runs: several ranks, and {why}", coverage)
    columns = [name for name in SPEC_COLUMNS if name in known]
    panel_columns = [name for name in columns if name not in (*SCHEME, *SAME_LINE, "batch_size")]
    lines = {tuple(key.values()): number for number, (key, _) in enumerate(split(known, _line_columns(known)))}
    groups = list(split(known, panel_columns))
    figure, axes = grid(2 * len(groups), 2.6, most_columns=2)
    differ = set(varying(known))
    for place, (key, rows) in enumerate(groups):
        efficiency, speed = axes[2 * place : 2 * place + 2]
        words = title(key, differ)
        head(efficiency, words, "efficiency")
        head(speed, words, f"times as fast as {study.rules.reference_exchange}")
        for one, column in ((efficiency, "weak_efficiency"), (speed, "times_as_fast")):
            one.axhline(1, **IDEAL)
            for line, part in split(rows, _line_columns(rows)):
                _line(one, part, column, lines[tuple(line.values())])
            _dress(one)
        efficiency.set_ylim(0, HEADROOM * max(1.0, efficiency.get_ylim()[1] / HEADROOM))
    handles = [_handle(key, number, known) for key, number in lines.items()]
    legend_above(figure, [*handles, Line2D([], [], label="one rank; the reference", **IDEAL)])
    small_print(figure, coverage, _notes(known))
    return figure


def _line_columns(rows: pd.DataFrame) -> list[str]:
    return [name for name in SCHEME if name in rows]


def _notes(known: pd.DataFrame) -> list[str]:
    repeated = (known["runs"] > 1).any()
    notes = [f"Bars: 95 % intervals{' over the rounds' if repeated else ', within the only run'}."]
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    if (known["slow_steps_share"] > DISTURBED).any():
        notes.append(f"Ringed: {SLOW}.")
    return notes


def _look(number: int) -> dict[str, Any]:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "linestyle": LINES[number % len(LINES)], "marker": marker, "markersize": 4}


def _handle(key: tuple[Any, ...], number: int, known: pd.DataFrame) -> Line2D:
    named = dict(zip(_line_columns(known), key, strict=True))
    rows = known[known["exchange"] == named["exchange"]]
    words = show_component(named["exchange"], named.get("exchange_options", "{}"))
    scheme = rows["scheme"].iloc[0]
    return Line2D([], [], label=words if pd.isna(scheme) else f"{scheme}: {words}", **_look(number))


def _line(axes: Axes, rows: pd.DataFrame, column: str, number: int) -> None:
    """Draw a scheme: a line for each model, along its batch sizes."""
    look = _look(number)
    shown = rows[rows[column].notna()]
    for _, part in split(shown, [name for name in SAME_LINE if name in shown]):
        part = part.sort_values(ALONG)
        axes.plot(part[ALONG], part[column], **look | {"marker": ""})
        for row in rows_of(part):
            _point(axes, row, column, look)


def _point(axes: Axes, row: Mapping[str, Any], column: str, look: Mapping[str, Any]) -> None:
    at, middle, low, high = row[ALONG], row[column], row[f"{column}_low"], row[f"{column}_high"]
    if pd.notna(low) and pd.notna(high):
        axes.plot([at, at], [low, high], color=look["color"], linewidth=0.7, scaley=False)
    hollow = pd.notna(row["oversubscribed"]) and row["oversubscribed"]
    face = "#ffffff" if hollow else look["color"]
    axes.plot(at, middle, look["marker"], color=look["color"], markersize=4, markerfacecolor=face)
    if row["slow_steps_share"] > DISTURBED:
        axes.plot(at, middle, "o", linestyle="none", **RING)


def _dress(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("FLOP of a step per byte of the parameters")
    axes.margins(x=0.06)
    plain_numbers(axes.xaxis)
