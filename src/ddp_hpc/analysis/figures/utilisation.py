"""Usage of the GPUs over the ranks, beside power, clocks, MFU and the exposed exchange: why busy is not fast."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.figures._curves import curves, handles, numbered, world_size_axis
from ddp_hpc.analysis.figures._layout import finished, grid, head, nothing, say
from ddp_hpc.analysis.figures._marks import mark_notes
from ddp_hpc.analysis.figures._panels import columns_but, panels
from ddp_hpc.analysis.figures._style import HEADROOM, SMALL
from ddp_hpc.config.study import Study

INPUTS = ("utilisation",)
CAPTION = (
    "Usage of the GPUs as the driver tells it, beside what shows whether they compute: power, clock, MFU, exposed "
    "exchange and speed; medians over the runs."
)
OF_GPUS = True

LINE = ("exchange", "exchange_options")
# what stands over a column's panel, factor, the end of its axis if it has one
PANELS = {
    "gpu_utilisation_mean": ("busy: any kernel runs (%)", 100, 100),
    "power_mean_w": ("power of a GPU (W)", 1, None),
    "sm_clock_mean_mhz": ("clock (MHz)", 1, None),
    "mfu": ("MFU: of the peak FLOP/s (%)", 100, None),
    "exchange_share": ("exposed exchange (% of a step)", 100, 100),
    "samples_per_s_per_rank": ("samples/s of a rank", 1, None),
}


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return six panels over the ranks, again for each batch size and whatever else varies."""
    table = tables["utilisation"]
    known = table[table["runs"] > 0]
    if known.empty:
        return nothing(coverage, "none has ended well", table)
    known, names = numbered(known, LINE)
    shown = panels(known, columns_but(known, *LINE, "world_size"))
    figure, axes = grid(len(PANELS) * len(shown), 1.55, most_columns=3)
    for place, panel in enumerate(shown):
        for number, (one, column) in enumerate(zip(axes[place * len(PANELS) :], PANELS, strict=False)):
            head(one, PANELS[column][0], small=[panel.title] if number == 0 and len(shown) > 1 else [])
            _panel(one, panel.rows, column)
    for one in axes[-3:]:
        one.set_xlabel("world size (ranks)" if one.lines else "")
    notes = [
        "Busy counts kernels that wait for other ranks: what rises alone, without power, MFU and speed, is waiting."
    ]
    return finished(figure, coverage, notes + mark_notes(known), handles(names))


def _panel(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    _, factor, end = PANELS[column]
    shown = rows[rows[column].notna()]
    if shown.empty:
        reasons = [text for row in rows_of(rows) for text in _reasons(row, column)]
        say(axes, reasons[0] if reasons else "not known")
        return
    curves(axes, shown, "world_size", column, factor)
    axes.set_ylim(0, HEADROOM * (end or factor * float(shown[column].max()) or 1.0))
    world_size_axis(axes, rows["world_size"])
    axes.tick_params(labelsize=SMALL)


def _reasons(row: Mapping[str, Any], column: str) -> list[str]:
    """Return the part of a row's reason that is of a column: `energy_j, mfu: no GPU is used`."""
    if pd.isna(row["reason"]):
        return []
    of = {"power_mean_w": "energy_j", "sm_clock_mean_mhz": "gpu_utilisation_mean"}.get(column, column)
    parts = [part.partition(": ") for part in str(row["reason"]).split("; ")]
    return [why for names, _, why in parts if of in names.split(", ")]
