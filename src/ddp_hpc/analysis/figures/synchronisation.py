"""Synchronisation of the gradients over the ranks, per step and per epoch; after P. Orlob, TU Dresden (2022)."""

import pandas as pd
from matplotlib.figure import Figure

from ddp_hpc.analysis.figures._curves import (
    OF_EXCHANGES,
    SIDE_BY_SIDE,
    handles,
    interval_note,
    numbered,
    over_ranks,
    top_of,
)
from ddp_hpc.analysis.figures._layout import finished, first_reason, grid, head, nothing
from ddp_hpc.analysis.figures._panels import columns_but, panels
from ddp_hpc.analysis.figures._style import time_unit
from ddp_hpc.config.study import Study

INPUTS = ("synchronisation",)
CAPTION = (
    "Synchronisation of the gradients over the ranks: exposed exchange per step, and per epoch, which has fewer steps "
    "the more ranks there are; medians over the runs, with their 95 % intervals."
)

PANELS = {"sync_s": "time per step", "sync_per_epoch_s": "time per epoch"}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return two panels for each setting, e.g. each batch size: synchronisation per step and per epoch."""
    table = tables["synchronisation"]
    known = table[table["sync_s"].notna()]
    several = known[known["world_size"] > 1]
    known = several if len(several) else known  # one rank has nobody to wait for: what it costs is in the table
    if known.empty:
        return nothing(coverage, "none has an exchange", table)
    known, looks = numbered(known, OF_EXCHANGES, study, "exchange")
    shown = panels(known, columns_but(known, *OF_EXCHANGES, "world_size"))
    figure, axes = grid(2 * len(shown), 1.9)
    for number, (column, words) in enumerate(PANELS.items()):
        unit, size = time_unit(known[column])
        for one, panel in zip(axes[number::2], shown, strict=True):
            head(one, panel.title)
            top, why = top_of(known, column, 1 / size), first_reason(panel.rows, "not known")
            over_ranks(one, panel.rows, looks, column, why, 1 / size, apart=True, top=top)
            if one.lines:
                one.set(xlabel="world size (ranks)", ylabel=f"{words} ({unit})")
    notes = ["What overlaps the backward pass is not in it; waiting for the slowest rank is."]
    notes += [SIDE_BY_SIDE] if len(looks) > 1 else []
    if known["sync_low_s"].notna().any():
        notes.append(interval_note(known))
    return finished(figure, coverage, notes, handles(looks), known)
