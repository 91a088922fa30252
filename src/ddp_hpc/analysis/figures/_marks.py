"""The marks of points whose times are not valid (oversubscribed, disturbed), and what a caption says of them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ddp_hpc.analysis.columns import DISTURBED

OVERSUBSCRIBED = "ranks exceed the cores: times are not comparable"
SLOW = "more than a third of a run's training time went to steps slower than its median: not to be trusted"
RING: dict[str, Any] = {"color": "#000000", "markersize": 8.5, "markerfacecolor": "none", "markeredgewidth": 0.9}
DAGGER, DOUBLE_DAGGER = "\u2020", "\u2021"


def is_oversubscribed(row: Mapping[str, Any]) -> bool:
    """Return whether a point had more ranks than cores; not where it is not known."""
    return bool(pd.notna(row["oversubscribed"]) and row["oversubscribed"])


def is_disturbed(row: Mapping[str, Any]) -> bool:
    """Return whether a point lost much of its time in slow steps; not where no table says so."""
    return bool(row.get("slow_steps_share", 0.0) > DISTURBED)


def face(row: Mapping[str, Any], colour: str) -> str:
    """Return the colour of a marker or bar: hollow where the point is oversubscribed."""
    return "#ffffff" if is_oversubscribed(row) else colour


def ring(axes: Axes, x: float, y: float, row: Mapping[str, Any], **look: Any) -> None:
    """Draw a ring around a point that was disturbed."""
    if is_disturbed(row):
        axes.plot(x, y, "o", linestyle="none", **RING, **look)


def daggers(row: Mapping[str, Any]) -> str:
    """Return the marks of a point as letters, for what has no marker."""
    return DAGGER * is_oversubscribed(row) + DOUBLE_DAGGER * is_disturbed(row)


def mark_notes(rows: pd.DataFrame, oversubscribed: str = "Hollow:", disturbed: str = "Ringed:") -> list[str]:
    """Return what a caption says of the marks that `rows` have, after the words that name each mark."""
    notes = [f"{oversubscribed} {OVERSUBSCRIBED}."] if rows["oversubscribed"].any() else []
    slow = "slow_steps_share" in rows and (rows["slow_steps_share"] > DISTURBED).any()
    return [*notes, f"{disturbed} {SLOW}."] if slow else notes
