"""The noise of the loss over the world size, beside its inverse root, and how many steps it takes to settle."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import rows_of, varying
from ddp_hpc.analysis.figures._curves import SIDE_BY_SIDE, curves, handles, numbered, world_size_axis
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, nothing, say
from ddp_hpc.analysis.figures._panels import columns_but, short_titles, spelled_out
from ddp_hpc.analysis.figures._style import IDEAL, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("noise",)
CAPTION = (
    "Noise of the loss in its steady state over the world size, beside its inverse root; and the step at which its "
    "running mean has come to the steady mean: within a tenth of the noise, or within 5 %."
)

PANELS = {
    "loss_sd": "standard deviation of loss",
    "settle_step": "settled within noise (step)",
    "settle_5_percent_step": "settled within 5 % (step)",
}
MOST_LINES = 8
HEIGHT_IN = 2.1
ROOM = 1.15  # times: from the outermost interval to the end of a logarithmic axis


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return three panels over the world size; a line for whatever else varies, but the seed."""
    noise = spelled_out(tables["noise"])
    known = noise[noise["loss_sd"] > 0]
    if known.empty:
        return nothing(coverage, "none has a loss in a steady state")
    of_a_line = columns_but(known, "world_size", "seed")
    left_out = known.groupby(of_a_line, dropna=False).ngroups - MOST_LINES
    known, looks = numbered(_of_most_runs(known, of_a_line), of_a_line, study)
    keys = known.drop_duplicates("line").sort_values("line")[of_a_line]
    names, usual = short_titles(rows_of(keys), set(varying(known)))
    looks = [look | {"label": name or look["label"]} for look, name in zip(looks, names, strict=True)]
    figure, axes = grid(len(PANELS), HEIGHT_IN)
    for one, (column, words) in zip(axes, PANELS.items(), strict=True):
        head(one, words)
        rows = _over_seeds(known, column)
        if rows.empty:
            say(one, "not settled")
            continue
        one.set(yscale="log", ylim=(rows[f"{column}_low"].min() / ROOM, ROOM * rows[f"{column}_high"].max()))
        world_size_axis(one, known["world_size"])
        if column == "loss_sd":
            _root(one, rows)
        curves(one, rows, looks, "world_size", column, apart=True)
        plain_numbers(one.yaxis)
    label_outer(axes, "world size (ranks)", "")
    notes = ["Markers: medians over the seeds; vertical: their range.", SIDE_BY_SIDE]
    if "budget" in known and known["budget"].nunique() > 1:
        notes.append("Steps to settle compare within runs of one length: a running mean is over a fiftieth of a run.")
    if usual:
        notes.append(f"What a line does not say is {', '.join(usual)}.")
    if left_out > 0:
        notes.append(f"The {MOST_LINES} of {MOST_LINES + left_out} lines with most runs; all are in the table.")
    root = Line2D([], [], label="world size to the power -1/2", **IDEAL)
    return finished(figure, coverage, notes, [*handles(looks), root])


def _of_most_runs(known: pd.DataFrame, of_a_line: list[str]) -> pd.DataFrame:
    """Return the rows of as many lines as have room, those with most runs."""
    line = known.groupby(of_a_line, dropna=False).ngroup()
    return known[line.isin(line.value_counts(sort=True).index[:MOST_LINES])].reset_index(drop=True)


def _over_seeds(known: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the median of a column over the seeds of each point, and the least and the largest as its interval."""
    points = known[known[column].notna()].groupby(["line", "world_size"])[column]
    found = points.agg(["median", "min", "max"]).set_axis([column, f"{column}_low", f"{column}_high"], axis=1)
    return found.reset_index().assign(oversubscribed=False)  # a loss is the same on few cores


def _root(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the inverse root of the world size through the first point of the longest line."""
    longest = rows[rows["line"] == rows["line"].value_counts().index[0]].sort_values("world_size")
    ranks = np.array(axes.get_xlim())
    axes.plot(ranks, longest["loss_sd"].iloc[0] * np.sqrt(longest["world_size"].iloc[0] / ranks), **IDEAL, zorder=2.5)
