"""Loss over steps at each world size: its range and its running mean, and how far exchanges are apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import rows_of, show_component, split, varying
from ddp_hpc.analysis.figures._panels import group_columns, spelled_out, title
from ddp_hpc.analysis.figures._style import COLOURS, LINES, PAGE_IN, legend_above, nothing, small_print
from ddp_hpc.config.study import Study

INPUTS = ("noise_curves",)
CAPTION = (
    "Loss over steps at each world size: running means, and the range of the single steps of the first exchange; "
    "beneath, by how much the loss of the others is off that of the reference."
)
ON_REQUEST = True

MOST_ROWS, MOST_COLUMNS = 6, 6
HEIGHT_IN = {"loss": 1.1, "difference": 0.95}
WORDS_IN = 0.14  # of what a row shows
EXCHANGE = ("exchange", "exchange_options")
ZERO = 1e-17  # where two losses with the same bits are drawn


@dataclass(frozen=True)
class Row:
    """Panels side by side: what is drawn, of which runs, and what sets them apart, in words."""

    kind: str
    words: str
    runs: pd.DataFrame


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a column of panels for each world size, a row for whatever else varies, but the exchange and the search.

    Of repeats, and of points that differ in what is searched, the first is drawn.

    Args:
        tables: `noise_curves`.
        study: says what is searched, and which exchange is the reference.
        coverage: how many of the planned runs there are.
    """
    curves, reference = spelled_out(tables["noise_curves"]), study.rules.reference_exchange
    if curves.empty:
        return nothing("no eligible runs: none has ended well", coverage)
    rest = [name for name in group_columns(curves, study) if name not in ("world_size", *EXCHANGE)]
    differ, groups = set(varying(curves)), [(key, runs) for key, runs in split(curves, rest)]
    groups.sort(key=lambda group: -len(_exchanges(group[1], reference)))  # what is compared stands first
    rows = []
    for key, runs in groups[:MOST_ROWS]:
        rows.append(Row("loss", title(key, differ), runs))
        if runs["difference"].notna().any():
            rows.append(Row("difference", "", runs))
    ranks, exchanges = sorted(curves["world_size"].unique()), _exchanges(curves, reference)
    figure = _panels(rows, ranks[:MOST_COLUMNS], exchanges)
    legend_above(figure, _handles(exchanges))
    steps = int(curves["step"].max())
    piece = max(1, round(steps / curves.groupby("run")["step"].nunique().max()))
    notes = [f"Lines: means over the last fiftieth of all steps, of one seed. Range: of each {piece} steps."]
    if any(row.kind == "difference" for row in rows):
        notes.append(f"Difference: the largest of each {piece} steps to the loss of {reference}; 0 stands at {ZERO:g}.")
    if len(groups) > MOST_ROWS or len(ranks) > MOST_COLUMNS:
        notes.append(f"Up to {MOST_ROWS} settings and {MOST_COLUMNS} world sizes; all are in the table.")
    small_print(figure, coverage, notes)
    return figure


def _exchanges(runs: pd.DataFrame, reference: str) -> list[str]:
    """Return the exchanges in words, the reference first."""
    found = sorted({(row["exchange"] != reference, _exchange(row)) for row in rows_of(runs)})
    return [words for _, words in found]


def _exchange(row: Mapping[str, Any]) -> str:
    return "no exchange" if row["exchange"] == "none" else show_component(row["exchange"], row.get("exchange_options"))


def _panels(rows: Sequence[Row], ranks: Sequence[int], exchanges: Sequence[str]) -> Figure:
    heights = [HEIGHT_IN[row.kind] + (WORDS_IN if row.words != "all" else 0) for row in rows]
    figure = Figure((PAGE_IN, sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), len(ranks), squeeze=False, sharex=True, sharey="row", height_ratios=heights)
    lowest: dict[int, Axes] = {}
    for line, row in zip(axes, rows, strict=True):
        for column, (one, n) in enumerate(zip(line, ranks, strict=True)):
            runs = row.runs[row.runs["world_size"] == n]
            if runs.empty:
                one.set_visible(False)
                continue
            lowest[column] = one
            (_losses if row.kind == "loss" else _differences)(one, runs, exchanges)
            if row.kind == "loss":
                one.set_title(f"{n} rank{'' if n == 1 else 's'}", loc="right")
        line[0].set_ylabel("loss" if row.kind == "loss" else "difference")
        _say(line[0], row.words if row.kind == "loss" else "")
    for one in lowest.values():
        one.set_xlabel("step")
        one.tick_params(labelbottom=True)
    return figure


def _say(axes: Axes, words: str) -> None:
    """Write above a row of panels what sets it apart."""
    if words and words != "all":
        axes.set_title(" \n ", loc="left")
        place = {"xytext": (0, 13), "textcoords": "offset points", "xycoords": "axes fraction"}
        axes.annotate(words, (0, 1), **place, weight="bold").set_in_layout(False)  # type: ignore[arg-type]


def _by_exchange(runs: pd.DataFrame, exchanges: Sequence[str]) -> list[tuple[int, pd.DataFrame]]:
    """Return the first run of each exchange, with its number."""
    words = pd.Series([_exchange(row) for row in rows_of(runs)], index=runs.index)
    first = {name: runs.loc[words == name, "run"].iloc[0] for name in words.unique()}
    return sorted((exchanges.index(name), runs[runs["run"] == run]) for name, run in first.items())


def _losses(axes: Axes, runs: pd.DataFrame, exchanges: Sequence[str]) -> None:
    found = _by_exchange(runs, exchanges)
    number, first = found[0]
    edges: dict[str, Any] = {"step": "pre", "color": COLOURS[number % len(COLOURS)], "alpha": 0.25, "linewidth": 0}
    axes.fill_between(first["step"], first["loss_least"], first["loss_largest"], **edges)
    for number, curve in found:
        axes.plot(curve["step"], curve["loss_mean"], **_look(number))


def _differences(axes: Axes, runs: pd.DataFrame, exchanges: Sequence[str]) -> None:
    for number, curve in _by_exchange(runs, exchanges):
        if curve["difference"].notna().any():
            axes.plot(curve["step"], np.maximum(curve["difference"].to_numpy(float), ZERO), **_look(number))
    axes.set_yscale("log")


def _look(number: int) -> dict[str, Any]:
    """Return how a line looks: the first is broad, so that others over it are seen."""
    colour, line = COLOURS[number % len(COLOURS)], LINES[number % len(LINES)]
    return {"color": colour, "linestyle": line, "linewidth": 0.9 if number else 1.8}


def _handles(exchanges: Sequence[str]) -> list[Artist]:
    words = [name or "measured" for name in exchanges]
    lines: list[Artist] = [Line2D([], [], label=name, **_look(number)) for number, name in enumerate(words)]
    return [*lines, Patch(color=COLOURS[0], alpha=0.25, linewidth=0, label="range of single steps")]
