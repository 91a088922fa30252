"""Usage of the GPUs over the ranks, beside power, clocks, MFU and the exposed exchange: why busy is not fast."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    SMALL,
    grid,
    head,
    legend_above,
    nothing,
    plain_numbers,
    say,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("utilisation",)
CAPTION = (
    "Usage of the GPUs as the driver tells it, beside what shows whether they compute: power, clock, MFU, exposed "
    "exchange and speed; medians over the runs."
)
OF_GPUS = True

LINE = ("exchange", "exchange_options")
MOST_LINEAR = 8  # ranks; beyond, their axis is logarithmic
HEADROOM = 1.1
# column, what stands over its panel, factor, the end of its axis if it has one
PANELS = (
    ("gpu_utilisation_mean", "busy: any kernel runs (%)", 100, 100),
    ("power_mean_w", "power of a GPU (W)", 1, None),
    ("sm_clock_mean_mhz", "clock (MHz)", 1, None),
    ("mfu", "MFU: of the peak FLOP/s (%)", 100, None),
    ("exchange_share", "exposed exchange (% of a step)", 100, 100),
    ("samples_per_s_per_rank", "samples/s of a rank", 1, None),
)


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return six panels over the ranks, again for each batch size and whatever else varies.

    Args:
        tables: `utilisation`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    known = tables["utilisation"]
    known = known[known["runs"] > 0]
    if known.empty:
        return nothing("no eligible runs: none has ended well", coverage)
    panel_columns = [name for name in SPEC_COLUMNS if name in known and name not in (*LINE, "world_size")]
    line_columns = [name for name in LINE if name in known]
    groups = list(split(known, panel_columns))
    lines = {tuple(key.values()): number for number, (key, _) in enumerate(split(known, line_columns))}
    figure, axes = grid(len(PANELS) * len(groups), 1.55, most_columns=3)
    differ = set(varying(known))
    for place, (key, rows) in enumerate(groups):
        for number, panel in enumerate(PANELS):
            words = title(key, differ) if number == 0 and len(groups) > 1 else ""
            one = axes[place * len(PANELS) + number]
            head(one, panel[1], small=[words] if words else [])
            _panel(one, rows, panel, line_columns, lines)
    for one in axes[-3:]:
        one.set_xlabel("world size (ranks)" if one.lines else "")
    legend_above(figure, [_handle(key, number, line_columns, differ) for key, number in lines.items()])
    notes = [
        "Busy counts kernels that wait for other ranks: what rises alone, without power, MFU and speed, is waiting."
    ]
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    small_print(figure, coverage, notes)
    return figure


def _handle(key: tuple[Any, ...], number: int, columns: list[str], differ: set[str]) -> Artist:
    words = title(dict(zip(columns, key, strict=True)), differ)
    return Line2D([], [], label="measured" if words == "all" else words, **_look(number))


def _look(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
    }


def _panel(
    axes: Axes,
    rows: pd.DataFrame,
    panel: tuple[str, str, int, int | None],
    line_columns: list[str],
    lines: Mapping[tuple[Any, ...], int],
) -> None:
    column, _, factor, end = panel
    shown = rows[rows[column].notna()]
    if shown.empty:
        reasons = [text for row in rows_of(rows) for text in _reasons(row, column)]
        say(axes, reasons[0] if reasons else "not known")
        return
    for key, part in split(shown, line_columns):
        part = part.sort_values("world_size")
        look = _look(lines[tuple(key.values())])
        ranks, values = part["world_size"].to_numpy(float), factor * part[column].to_numpy(float)
        axes.plot(ranks, values, **look | {"marker": ""})
        for rank, value, hollow in zip(ranks, values, part["oversubscribed"].fillna(False), strict=True):
            axes.plot(rank, value, **look | {"linestyle": ""}, markerfacecolor="#ffffff" if hollow else look["color"])
    axes.set_ylim(0, HEADROOM * (end or factor * float(shown[column].max()) or 1.0))
    ranks_all = sorted(map(int, rows["world_size"].unique()))
    if ranks_all[-1] > MOST_LINEAR:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ranks_all, minor=False)
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize=SMALL)
    plain_numbers(axes.xaxis)


def _reasons(row: Mapping[str, Any], column: str) -> list[str]:
    """Return the part of a row's reason that is of a column: `energy_j, mfu: no GPU is used`."""
    if pd.isna(row["reason"]):
        return []
    of = {"power_mean_w": "energy_j", "sm_clock_mean_mhz": "gpu_utilisation_mean"}.get(column, column)
    parts = [part.partition(": ") for part in str(row["reason"]).split("; ")]
    return [why for names, _, why in parts if of in names.split(", ")]
