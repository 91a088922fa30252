"""Time of an epoch over the batch size, and how many times as fast it is as with the smallest batch."""

import pandas as pd
from matplotlib.figure import Figure

from ddp_hpc.analysis.columns import split
from ddp_hpc.analysis.figures._curves import curves, handles, interval_note, named_ticks, numbered
from ddp_hpc.analysis.figures._layout import finished, grid, in_lines, nothing
from ddp_hpc.analysis.figures._panels import axis_label, columns_but
from ddp_hpc.analysis.figures._style import IDEAL, plain_numbers, time_unit
from ddp_hpc.config.study import Study

INPUTS = ("epoch_time",)
CAPTION = (
    "Time of an epoch over the batch size, slow steps included, and how many times as fast it is as with the smallest "
    "batch; medians over the runs, with their 95 % intervals."
)

PANELS = {"epoch_s": "time of an epoch ({})", "gain": "times as fast as the smallest batch"}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return two panels, both axes logarithmic; a line for each setting that has several batch sizes."""
    table = tables["epoch_time"]
    known = table[table["epoch_s"].notna()]
    if known.empty:
        return nothing(coverage, "none is planned", table)
    lines = [rows for _, rows in split(known, columns_but(known, "batch_size"))]
    longest = max(map(len, lines))
    shown = pd.concat([rows for rows in lines if len(rows) >= min(longest, 3)])
    shown, looks = numbered(shown, columns_but(known, "batch_size"), study)
    figure, axes = grid(len(PANELS), 2.5)
    unit, size = time_unit(shown["epoch_s"])
    for one, (name, words) in zip(axes, PANELS.items(), strict=True):
        curves(one, shown, looks, "batch_size", name, 1 / size if name == "epoch_s" else 1.0)
        one.set(xscale="log", yscale="log", xlabel=in_lines(axis_label("batch_size"), one), ylabel=words.format(unit))
        named_ticks(one, sorted(shown["batch_size"].unique()))
        plain_numbers(one.yaxis)
    axes[1].axhline(1, **IDEAL, zorder=0)
    notes = [interval_note(shown, "Bars: 95 % intervals")] if shown["epoch_low_s"].notna().any() else []
    if len(shown) < len(known):
        notes.append("Settings with fewer batch sizes are in the table only.")
    return finished(figure, coverage, notes, handles(looks) if len(looks) > 1 else [], shown)
