"""Times of the exchanges over the message size, and their bus bandwidth beside the memory-copy limit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from ddp_hpc.analysis.figures._save import save
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    PAGE_IN,
    legend_above,
    small_print,
    style,
)
from ddp_hpc.config.component import shown

NAME = "exchange_sweep"
TITLE = "Exchanges over the message size: time, and bus bandwidth beside the memory-copy limit"
PANEL_IN = 2.7
DARK = COLOURS[:-1]  # the last, yellow, is too pale for a thin line
COPIES: dict[str, dict[str, Any]] = {
    "memory copy, one rank": {"color": GREY, "linewidth": 2.2},
    "memory copy, all ranks at once": {"color": GREY, "linewidth": 1.4, "linestyle": (0, (4, 2))},
}

Row = Mapping[str, Any]


def make(rows: Sequence[Row], folder: Path) -> Path:
    """Draw the rows of a sweep as `exchange_sweep.png`, `.pdf` and `.svg` into `folder`; return the SVG file."""
    with style():
        return save(draw(rows), folder, NAME, TITLE)


def draw(rows: Sequence[Row]) -> Figure:
    """Return two panels for each number of ranks: seconds, and bytes per second, over bytes; all logarithmic.

    Args:
        rows: of a sweep, with the columns of `bench.sweep_results.SWEEP`.
    """
    ranks = list(dict.fromkeys(row["world_size"] for row in rows))
    names = list(dict.fromkeys(_name(row) for row in rows if row["exchange"] not in COPIES))
    looks = {name: _look(number) for number, name in enumerate(names)} | COPIES
    figure = Figure((PAGE_IN, PANEL_IN * len(ranks)), layout="constrained")
    axes = figure.subplots(len(ranks), 2, squeeze=False)
    for (times, rates), world_size in zip(axes, ranks, strict=True):
        here = [row for row in rows if row["world_size"] == world_size and row["median_s"] is not None]
        for name, look in looks.items():
            mine = sorted((row for row in here if _name(row) == name), key=lambda row: int(row["bytes"]))
            _line(times, mine, look, "median_s")
            _line(rates, mine, look, "algorithm_bandwidth" if name in COPIES else "bus_bandwidth")
        words = f"{world_size} rank{'' if world_size == 1 else 's'}"
        _dress(times, f"{words}: time of one exchange", "s")
        _dress(rates, f"{words}: bus bandwidth", "B/s")
    handles: list[Artist] = [Line2D([], [], label=name, markersize=3.5, **look) for name, look in looks.items()]
    legend_above(figure, handles)
    notes = [
        "Points: medians over the rounds, bars from the least to the largest. Bus bandwidth: bytes / time x 2(n-1)/n; "
        "of a memory copy, the bytes that are copied, per rank."
    ]
    if any(row["oversubscribed"] for row in rows):
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    small_print(figure, "", notes)
    return figure


def _name(row: Row) -> str:
    return shown(row["exchange"], json.loads(row["exchange_options"]))


def _look(number: int) -> dict[str, Any]:
    colour, dash = DARK[number % len(DARK)], LINES[number // len(DARK) % len(LINES)]
    return {"color": colour, "linestyle": dash, "marker": MARKERS[number % len(MARKERS)]}


def _line(axes: Axes, rows: Sequence[Row], look: dict[str, Any], column: str) -> None:
    shown = [row for row in rows if row[column] is not None]
    if not shown:
        return
    x, y = [row["bytes"] for row in shown], [row[column] for row in shown]
    hollow: dict[str, Any] = {"markerfacecolor": "#ffffff"} if shown[0]["oversubscribed"] else {}
    axes.plot(x, y, markersize=3.5, zorder=1 if "marker" not in look else 2, **look, **hollow)
    for row, value in zip(shown, y, strict=True):
        if "marker" in look and row["least_s"] > 0:  # a range of differences may reach below 0
            ends = [value * row[end] / row["median_s"] for end in ("least_s", "largest_s")]
            if column != "median_s":
                ends = [value * row["median_s"] / row[end] for end in ("least_s", "largest_s")]
            axes.plot([row["bytes"]] * 2, ends, color=look["color"], linewidth=0.7)


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.yaxis.set_major_formatter(EngFormatter(unit=unit))
    axes.set_xlabel("size of the gradients")
