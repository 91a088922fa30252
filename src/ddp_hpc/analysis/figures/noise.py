"""The noise of the loss over the world size, beside its inverse root, and how many steps it takes to settle."""

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.figures._curves import by_line, handles, named_ticks, numbered
from ddp_hpc.analysis.figures._layout import finished, grid, head, nothing
from ddp_hpc.analysis.figures._panels import columns_but, spelled_out
from ddp_hpc.analysis.figures._style import IDEAL, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("noise",)
CAPTION = (
    "Noise of the loss in its steady state over the world size, beside its inverse root; and the step at which its "
    "running mean has come to the steady mean: within a tenth of the noise, or within 5 %."
)

PANELS = {
    "loss_sd": "standard deviation of the loss",
    "settle_step": "settled within the noise (step)",
    "settle_5_percent_step": "settled within 5 % (step)",
}
MOST_LINES = 8
APART = 1.015  # factor between the places of lines that would hide one another
OVER_SEEDS: dict[str, Any] = {"estimator": "median", "errorbar": ("pi", 100), "err_style": "bars", "legend": False}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return three panels over the world size; a line for whatever else varies, but the seed."""
    noise = spelled_out(tables["noise"])
    known = noise[noise["loss_sd"] > 0]
    if known.empty:
        return nothing(coverage, "none has a loss in a steady state")
    known, looks = numbered(known, columns_but(known, "world_size", "seed"), study)
    lines = sorted(by_line(known), key=lambda line: -len(line[1]))
    looks, shown = [looks[at] for at, _ in lines[:MOST_LINES]], [rows for _, rows in lines[:MOST_LINES]]
    figure, axes = grid(len(PANELS), 2.3)
    for one, (column, words) in zip(axes, PANELS.items(), strict=True):
        head(one, words)
        for number, (look, rows) in enumerate(zip(looks, shown, strict=True)):
            moved = rows.assign(world_size=rows["world_size"] * APART ** (number - (len(shown) - 1) / 2))
            sns.lineplot(moved[moved[column].notna()], x="world_size", y=column, ax=one, **look, **OVER_SEEDS)
        if column == "loss_sd":  # through the first point of the longest line
            start = shown[0].groupby("world_size")["loss_sd"].median().iloc[0]
            ranks = np.geomspace(shown[0]["world_size"].min(), known["world_size"].max(), 50)
            one.plot(ranks, start * np.sqrt(ranks[0] / ranks), **IDEAL, zorder=1)
        one.set(yscale="log", xlabel="world size (ranks)", ylabel="")
        plain_numbers(one.yaxis)
        one.set_xscale("log", base=2)
        named_ticks(one, sorted(known["world_size"].unique()))
    roots = Line2D([], [], label="world size to the power -1/2", **IDEAL)
    notes = ["Markers: medians over the seeds; vertical: their range; moved sideways, to be seen beside one another."]
    if len(lines) > MOST_LINES:
        notes.append(f"The {MOST_LINES} of {len(lines)} lines with most runs; all are in the table.")
    return finished(figure, coverage, notes, [*handles(looks), roots])
