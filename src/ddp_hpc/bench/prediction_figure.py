"""Exchanges measured on shaped links, and as predicted from fewer nodes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.figures._layout import finished
from ddp_hpc.analysis.figures._save import save
from ddp_hpc.analysis.figures._style import EXCHANGES, INK, PAGE_IN, style
from ddp_hpc.bench.sweep_results import in_words
from ddp_hpc.bench.timing import Row
from ddp_hpc.config.spec import shown

TITLE = "Exchanges on nodes with shaped links: measured, and predicted from fewer nodes."
PANEL_IN = 2.4
FITTED: dict[str, Any] = {"marker": "o", "markersize": 4.0, "color": INK, "linestyle": "none"}
JUDGED: dict[str, Any] = FITTED | {"markerfacecolor": "#ffffff"}
MODEL: dict[str, Any] = {"color": EXCHANGES[0], "linewidth": 1.0}
BAND: dict[str, Any] = {"color": EXCHANGES[0], "alpha": 0.18, "linewidth": 0}


def make(rows: Sequence[Row], folder: Path) -> Path:
    """Draw predictions as `prediction.png`, `.pdf` and `.svg` into `folder`; return the SVG file."""
    with style():
        return save(draw(rows), folder, "prediction", TITLE)


def draw(rows: Sequence[Row]) -> Figure:
    """Return a panel for each exchange (across) and size (down): milliseconds over the nodes."""
    table = pd.DataFrame(rows).sort_values("world_size")
    table["name"] = [shown(row["exchange"], json.loads(row["exchange_options"])) for row in table.to_dict("records")]
    names, sizes = list(dict.fromkeys(row["exchange"] for row in rows)), sorted(table["bytes"].unique())
    names = list(dict.fromkeys(table.sort_values("exchange", key=lambda one: one.map(names.index))["name"]))
    figure = Figure((PAGE_IN, PANEL_IN * len(sizes)), layout="constrained")
    axes = figure.subplots(len(sizes), len(names), squeeze=False, sharex=True)
    for line, size in zip(axes, sizes, strict=True):
        for one, name in zip(line, names, strict=True):
            _panel(one, table[(table["name"] == name) & (table["bytes"] == size)])
            one.set_title(f"{name}, {in_words(size)}")
        line[0].set_ylabel("exchange, ms")
    for one in axes[-1]:
        one.set_xlabel("nodes")
    note = "Bars and band: 95 % intervals of what was measured, and of what is predicted."
    legend = [
        Line2D([], [], label="measured, fitted", **FITTED),
        Line2D([], [], label="measured, not fitted", **JUDGED),
        Line2D([], [], label="predicted", **MODEL),
    ]
    return finished(figure, "", [note], legend)


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    n, known = rows["world_size"], rows[rows["predicted_s"].notna()]
    axes.fill_between(known["world_size"], 1e3 * known["predicted_low_s"], 1e3 * known["predicted_high_s"], **BAND)
    axes.plot(known["world_size"], 1e3 * known["predicted_s"], **MODEL)
    axes.vlines(n, 1e3 * rows["measured_low_s"], 1e3 * rows["measured_high_s"], color=INK, linewidth=0.7)
    for fitted, look in ((True, FITTED), (False, JUDGED)):
        taken = rows[rows["fitted"] == fitted]
        axes.plot(taken["world_size"], 1e3 * taken["measured_s"], zorder=3, **look)
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted(set(n)))
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
