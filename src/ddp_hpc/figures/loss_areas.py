"""Bars of loss area, sorted by minimum loss, a panel per group: as in SHM-Learn-Dist (2017), figures 5.1 to 5.4."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_hpc.columns import rows_of
from ddp_hpc.figures._panels import Panel, group_columns, matching, panels, point_words, searched_names
from ddp_hpc.figures._style import OVERSUBSCRIBED, SMALL, grid, head, label_outer, nothing, say, small_print
from ddp_hpc.study import Study

INPUTS = ("areas", "winners")
CAPTION = "Loss areas of the points that reach the threshold, sorted by minimum loss; the least area wins."

FEWEST_PLACES = 6  # so that few bars are not broad
MOST_LABELS = 40  # bars with their names beneath
WINNER, ALIKE, OTHER = "#0072B2", "#56B4E9", "#d0d0d0"


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return bars of `loss_area_loss_s` for each group, from the lowest minimum loss to the highest.

    Args:
        tables: `areas` and `winners`.
        study: says what is searched.
        coverage: how many of the planned runs there are.
    """
    areas = tables["areas"]
    if areas.empty:
        return nothing("no runs are planned", coverage)
    shown = panels(areas, group_columns(areas, study))
    figure, axes = grid(len(shown), 1.9, most_columns=2)
    names = searched_names(areas, study)
    for one, panel in zip(axes, shown, strict=True):
        _panel(one, panel, rows_of(matching(tables["winners"], panel.key))[0], names)
    label_outer(axes, f"{' / '.join(names) or 'the only point'}, by minimum loss", "loss area (loss x s)")
    notes = ["Dark: the winner. Medium: cannot be told from it. Light: larger beyond doubt.", *left_out(areas)]
    small_print(figure, coverage, notes + ([f"Hollow: {OVERSUBSCRIBED}."] if areas["oversubscribed"].any() else []))
    return figure


def left_out(areas: pd.DataFrame) -> list[str]:
    """Return how many points have no bar, and why."""
    gone = areas[~areas["excluded"].isin(["", "oversubscribed"])]
    reasons = ", ".join(f"{count} {reason}" for reason, count in gone["excluded"].value_counts().items())
    return [f"Not drawn: {len(gone)} of {len(areas)} points ({reasons})."] if len(gone) else []


def _panel(axes: Axes, panel: Panel, winner: Mapping[str, Any], names: list[str]) -> None:
    wins = pd.notna(winner["loss_area_loss_s"])
    head(axes, f"{panel.title}: {point_words(winner['winner'], names) if wins else winner['winner']}")
    bars = panel.rows[panel.rows["excluded"].isin(["", "oversubscribed"])].sort_values("min_loss", kind="stable")
    if bars.empty:
        say(axes, f"no eligible runs: {winner['excluded_because']}")
        return
    alike = str(winner["cannot_be_told_from"]).split(", ") if wins else []
    points = list(bars["point"])
    looks = [WINNER if point == winner["winner"] else ALIKE if point in alike else OTHER for point in points]
    fills = ["#ffffff" if excluded else colour for excluded, colour in zip(bars["excluded"], looks, strict=True)]
    axes.bar(range(len(points)), bars["loss_area_loss_s"], 0.8, color=fills, edgecolor="#404040", linewidth=0.4)
    axes.set_xlim(-0.7, max(len(points), FEWEST_PLACES) - 0.3)
    named = [place for place, point in enumerate(points) if len(points) <= MOST_LABELS or point == winner["winner"]]
    axes.set_xticks(named, [points[place] for place in named], rotation=90, size=SMALL)
    axes.tick_params(axis="x", length=0)
