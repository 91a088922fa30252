"""Synchronisation of the gradients over the ranks, per step and per epoch; after P. Orlob, TU Dresden (2022)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import DISTURBED, rows_of, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    PAGE_IN,
    RING,
    SLOW,
    head,
    legend_above,
    nothing,
    plain_numbers,
    say,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("synchronisation",)
CAPTION = (
    "Synchronisation of the gradients over the ranks: exposed exchange per step, and per epoch, which has fewer steps "
    "the more ranks there are; medians over the runs, with their 95 % intervals."
)
ON_REQUEST = True

LINE = ("exchange", "exchange_options", "placement", "ranks_per_node")  # what is a line; the rest has other panels
PANELS = (("sync", "time per step (ms)", 1e3), ("sync_per_epoch", "time per epoch (s)", 1.0))
MOST_COLUMNS = 3
HEADROOM = 1.1  # of the axis over what is drawn
MOST = 1.6  # times the highest median, where intervals are cut
MOST_LINEAR = 8  # ranks, up to which their axis is linear
ASIDE = 0.008  # of the axis of ranks: so far beside one another are the intervals of lines


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return two panels for each setting, e.g. each batch size: synchronisation per step and per epoch.

    Args:
        tables: `synchronisation`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    table = tables["synchronisation"]
    known = table[table["sync_s"].notna()]
    several = known[known["world_size"] > 1]
    known = several if len(several) else known  # one rank has nobody to wait for: what it costs is in the table
    if known.empty:
        reasons = table["reason"].dropna()
        return nothing(f"no eligible runs: {reasons.iloc[0] if len(reasons) else 'none has an exchange'}", coverage)
    line_columns = [name for name in LINE if name in known]
    panel_columns = [name for name in SPEC_COLUMNS if name in known and name not in (*LINE, "world_size")]
    lines = {tuple(key.values()): number for number, (key, _) in enumerate(split(known, line_columns))}
    groups = list(split(known, panel_columns))
    columns = min(len(groups), MOST_COLUMNS)
    rows = -(-len(groups) // columns)
    figure = Figure((PAGE_IN, 3.6 * rows), layout="constrained")
    axes = figure.subplots(2 * rows, columns, squeeze=False, sharey="row")
    differ = set(varying(known))
    for number in range(columns * rows):
        pair = axes[2 * (number // columns) : 2 * (number // columns) + 2, number % columns]
        for one, (name, words, factor) in zip(pair, PANELS, strict=True):
            if number >= len(groups):
                one.remove()
                continue
            key, part = groups[number]
            head(one, title(key, differ) if len(groups) > 1 and name == "sync" else "")
            _panel(one, part, name, factor, line_columns, lines)
            one.set_ylabel(words if number % columns == 0 else "")
            one.set_xlabel("world size (ranks)" if name != "sync" else "")
    for row, (name, _, factor) in zip(axes, PANELS * rows, strict=True):
        row[0].set_ylim(0, HEADROOM * _highest(known, name, factor))
    names = [title(dict(zip(line_columns, key, strict=True)), {*differ, "exchange"}) for key in lines]
    legend_above(
        figure, [Line2D([], [], label=words, **_look(at)) for words, at in zip(names, lines.values(), strict=True)]
    )
    small_print(figure, coverage, _notes(known))
    return figure


def _look(number: int) -> dict[str, Any]:
    looks = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {"markersize": 4} | {name: values[number % len(values)] for name, values in looks.items()}


def _panel(
    axes: Axes,
    rows: pd.DataFrame,
    name: str,
    factor: float,
    line_columns: list[str],
    lines: Mapping[tuple[Any, ...], int],
) -> None:
    shown = rows[rows[f"{name}_s"].notna()]
    if shown.empty:
        say(axes, str(rows["reason"].iloc[0]))
        return
    ranks_all = sorted(map(int, rows["world_size"].unique()))
    wide = ranks_all[-1] > MOST_LINEAR
    if wide:
        axes.set_xscale("log", base=2)
    top = _highest(shown, name, factor)
    for place, (key, part) in enumerate(split(shown, line_columns)):
        part, look = part.sort_values("world_size"), _look(lines[tuple(key.values())])
        ranks = part["world_size"].to_numpy(float)
        ranks = (
            ranks * 2 ** (ASIDE * 6 * place) if wide else ranks + ASIDE * place * (ranks_all[-1] - ranks_all[0] or 1)
        )
        middle, low, high = (factor * part[f"{name}{end}_s"].to_numpy(float) for end in ("", "_low", "_high"))
        axes.plot(ranks, middle, **look | {"marker": ""})
        sure = np.isfinite(low) & np.isfinite(high)
        axes.vlines(ranks[sure], low[sure], np.minimum(high, top)[sure], color=look["color"], linewidth=0.8)
        for rank, value, row in zip(ranks, middle, rows_of(part), strict=True):
            hollow = pd.notna(row["oversubscribed"]) and row["oversubscribed"]
            axes.plot(rank, value, **look, markerfacecolor="#ffffff" if hollow else look["color"])
            if row["slow_steps_share"] > DISTURBED:
                axes.plot(rank, value, "o", linestyle="none", **RING)
    axes.set_xticks(ranks_all, minor=False)
    axes.set_xticks([], minor=True)
    axes.margins(x=0.1)
    plain_numbers(axes.xaxis)


def _highest(rows: pd.DataFrame, name: str, factor: float) -> float:
    """Return where a panel ends: above all medians, and intervals up to well above them."""
    middle, high = (factor * rows[f"{name}{end}_s"].max() for end in ("", "_high"))
    return float(min(np.nanmax([middle, high]), MOST * middle)) if middle > 0 else 1.0


def _notes(known: pd.DataFrame) -> list[str]:
    notes = ["What overlaps the backward pass is not in it; waiting for the slowest rank is."]
    if known["sync_low_s"].notna().any():
        bases = sorted(known["interval_from"].dropna().unique())
        notes.append(f"Bars: 95 % intervals, cut at the axes: {'; '.join(bases)}.")
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    if (known["slow_steps_share"] > DISTURBED).any():
        notes.append(f"Ringed: {SLOW}.")
    return notes
