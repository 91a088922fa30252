"""Times of the exchanges over the message size, and their bus bandwidth beside the memory-copy limit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from ddp_hpc.analysis.figures._layout import finished
from ddp_hpc.analysis.figures._panels import ranks
from ddp_hpc.analysis.figures._save import save
from ddp_hpc.analysis.figures._style import EXCHANGES, GREY, IDEAL, LINES, MARKERS, PAGE_IN, style
from ddp_hpc.bench.sweep_results import COPY_ALONE, COPY_TOGETHER, name_of
from ddp_hpc.bench.timing import Row

TITLE = "Exchanges over the message size: time, and bus bandwidth beside the memory-copy limit."
PANEL_IN = 2.7
COPIES: dict[str, dict[str, Any]] = {
    COPY_ALONE: {"color": GREY, "linewidth": 2.2},
    COPY_TOGETHER: IDEAL | {"linewidth": 1.4},
}


def make(rows: Sequence[Row], folder: Path, device: str = "cpu") -> Path:
    """Draw a sweep on this device as `exchange_sweep.png`, `.pdf` and `.svg` into `folder`; return the SVG file."""
    with style():
        return save(draw(rows, device), folder, "exchange_sweep", TITLE)


def draw(rows: Sequence[Row], device: str = "cpu") -> Figure:
    """Return two panels for each number of ranks: seconds, and bytes per second, over bytes; all logarithmic."""
    table = pd.DataFrame(rows)
    table["name"] = [name_of(row) for row in rows]
    names = table[~table["exchange"].isin(COPIES)]["name"].unique()
    looks = {name: _look(number) for number, name in enumerate(names)} | COPIES
    world_sizes = table["world_size"].unique()
    figure = Figure((PAGE_IN, PANEL_IN * len(world_sizes)), layout="constrained")
    axes = figure.subplots(len(world_sizes), 2, squeeze=False)
    for (times, rates), world_size in zip(axes, world_sizes, strict=True):
        here = table[(table["world_size"] == world_size) & table["median_s"].notna()].sort_values("bytes")
        for name, look in looks.items():
            _line(times, here[here["name"] == name], look, "median_s")
            rate = "algorithm_bandwidth" if name in COPIES else "bus_bandwidth"
            _line(rates, here[here["name"] == name], look, rate)
        _dress(times, f"{ranks(world_size)}: time of one exchange", "s")
        _dress(rates, f"{ranks(world_size)}: bus bandwidth", "B/s")
    note = (
        "Points: medians over the rounds, bars from the least to the largest. Bus bandwidth: bytes / time x 2(n-1)/n; "
        "of a memory copy, the bytes that are copied, per rank."
    ) + (" Each rank has a GPU, within whose memory is copied." if device == "cuda" else "")
    legend = [Line2D([], [], label=name, markersize=3.5, **look) for name, look in looks.items()]
    return finished(figure, "", [note], legend, table)


def _look(number: int) -> dict[str, Any]:
    colour, dash = EXCHANGES[number % len(EXCHANGES)], LINES[number // len(EXCHANGES) % len(LINES)]
    return {"color": colour, "linestyle": dash, "marker": MARKERS[number % len(MARKERS)]}


def _line(axes: Axes, rows: pd.DataFrame, look: dict[str, Any], column: str) -> None:
    rows = rows[rows[column].notna()]
    if rows.empty:
        return
    hollow: dict[str, Any] = {"markerfacecolor": "#ffffff"} if rows["oversubscribed"].any() else {}
    axes.plot(rows["bytes"], rows[column], markersize=3.5, zorder=1 if "marker" not in look else 2, **look, **hollow)
    ranges = rows[rows["least_s"] > 0] if "marker" in look else rows[:0]  # of differences it may reach below 0
    factors = [ranges[end] / ranges["median_s"] for end in ("least_s", "largest_s")]
    if column != "median_s":  # a rate is the larger the shorter the time
        factors = [1 / factor for factor in factors]
    low, high = (ranges[column] * factor for factor in factors)
    axes.vlines(ranges["bytes"], low, high, color=look["color"], linewidth=0.7)


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set(title=title, xscale="log", yscale="log", xlabel="size of the gradients")
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.yaxis.set_major_formatter(EngFormatter(unit=unit))
