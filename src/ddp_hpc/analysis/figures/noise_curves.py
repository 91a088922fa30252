"""Loss over steps at each world size: its range and its running mean, and how far exchanges are apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._curves import Look, by_line, colour_and_name, handles, looks_of
from ddp_hpc.analysis.figures._layout import LETTER_IN, LINE_IN, finished, nothing, wrapped
from ddp_hpc.analysis.figures._panels import exchange_words, group_columns, ranks, spelled_out, title
from ddp_hpc.analysis.figures._style import PAGE_IN, width_in
from ddp_hpc.config.study import Study

INPUTS = ("noise_curves",)
CAPTION = (
    "Loss over steps at each world size: running means, and the range of the single steps of the first exchange; "
    "beneath, by how much the loss of the others is off that of the reference."
)

MOST_ROWS, MOST_COLUMNS = 6, 6
HEIGHT_IN = {"loss": 1.1, "difference": 0.95}
WORDS_IN = 0.14  # of what a row shows
MARGIN_IN = 0.75  # beside those words
EXCHANGE = ("exchange", "exchange_options")
ZERO = 1e-17  # where two losses with the same bits are drawn
RANGE: dict[str, Any] = {"alpha": 0.25, "linewidth": 0}

PanelRow = tuple[str, str, pd.DataFrame]  # what panels side by side show, what sets them apart in words, their runs


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a column of panels for each world size, a row for whatever else varies, but the exchange and the search.

    Of repeats, and of points that differ in what is searched, the first is drawn.
    """
    curves, reference = spelled_out(tables["noise_curves"]), study.rules.reference_exchange
    if curves.empty:
        return nothing(coverage, "none has ended well")
    exchanges = [exchange_words(row["exchange"], row.get("exchange_options")) for row in rows_of(curves)]
    curves = curves.assign(words=exchanges, compared=curves["exchange"] != reference)
    exchanges = list(curves.sort_values(["compared", "words"])["words"].unique())  # the reference first
    curves["line"] = curves["words"].map(exchanges.index)
    rest = [name for name in group_columns(curves, study) if name not in ("world_size", *EXCHANGE)]
    differ, groups = set(varying(curves)), list(split(curves, rest))
    groups.sort(key=lambda group: -group[1]["words"].nunique())  # what is compared stands first
    rows: list[PanelRow] = []
    for key, runs in groups[:MOST_ROWS]:
        rows.append(("loss", title(key, differ), runs))
        if runs["difference"].notna().any():
            rows.append(("difference", "", runs))
    world_sizes = sorted(curves["world_size"].unique())
    first = curves.drop_duplicates("line").sort_values("line")
    keys = [{name: row[name] for name in EXCHANGE if name in row} for row in rows_of(first)]
    looks = [
        look
        | {"marker": "", "linewidth": 0.9 if number else 1.8}  # the first is broad, so that others over it are seen
        for number, look in enumerate(looks_of(keys, exchanges, study))
    ]
    most_columns = round(MOST_COLUMNS * width_in(PAGE_IN) / PAGE_IN)
    figure = _panels(rows, world_sizes[:most_columns], looks)
    steps = int(curves["step"].max())
    piece = max(1, round(steps / curves.groupby("run")["step"].nunique().max()))
    notes = [f"Lines: means over the last fiftieth of all steps, of one seed. Range: of each {piece} steps."]
    if any(kind == "difference" for kind, *_ in rows):
        notes.append(f"Difference: the largest of each {piece} steps to the loss of {reference}; 0 stands at {ZERO:g}.")
    if len(groups) > MOST_ROWS or len(world_sizes) > most_columns:
        notes.append(f"Up to {MOST_ROWS} settings and {most_columns} world sizes; all are in the table.")
    span = Patch(color=looks[0]["color"], label="range of single steps", **RANGE)
    return finished(figure, coverage, notes, [*handles(looks), span])


def _panels(rows: Sequence[PanelRow], world_sizes: Sequence[int], looks: Sequence[Look]) -> Figure:
    letters = int((width_in(PAGE_IN) - MARGIN_IN) / LETTER_IN)  # of a line above a row
    rows = [(kind, "\n".join(wrapped(words, letters)), runs) for kind, words, runs in rows]
    heights = [HEIGHT_IN[kind] + (WORDS_IN + LINE_IN * words.count("\n") if words else 0) for kind, words, _ in rows]
    figure = Figure((width_in(PAGE_IN), sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), len(world_sizes), squeeze=False, sharex=True, sharey="row", height_ratios=heights)
    for line, (kind, words, runs) in zip(axes, rows, strict=True):
        for one, n in zip(line, world_sizes, strict=True):
            here = runs[runs["world_size"] == n]
            _panel(one, kind, here, looks)
            if kind == "loss":
                one.set_title(ranks(n), loc="right")
        line[0].set_ylabel(kind)
        if words:
            line[0].set_title(" \n " + words.count("\n") * "\n ", loc="left")  # room for what sets the row apart
            above = line[0].annotate(words, (0, 1), (0, 13), "axes fraction", "offset points", weight="bold")
            above.set_in_layout(False)
    for one in axes[-1]:
        one.set_xlabel("step")
    return figure


def _panel(axes: Axes, kind: str, runs: pd.DataFrame, looks: Sequence[Look]) -> None:
    """Draw the first run of each exchange; of losses also the range of the single steps of the first exchange."""
    for number, curve in by_line(runs[runs["run"] == runs.groupby("line")["run"].transform("first")]):
        if kind == "difference" and curve["difference"].notna().any():
            axes.plot(curve["step"], np.maximum(curve["difference"].to_numpy(float), ZERO), **looks[number])
        elif kind == "loss":
            if not axes.lines:
                ends, (colour, name) = (curve["loss_least"], curve["loss_largest"]), colour_and_name(looks[number])
                axes.fill_between(curve["step"], *ends, step="pre", color=colour, gid=name, **RANGE)
            axes.plot(curve["step"], curve["loss_mean"], **looks[number])
    if kind == "difference":
        axes.set_yscale("log")
