"""Bars of loss area, sorted by minimum loss, a panel per group: as in SHM-Learn-Dist (2017), figures 5.1 to 5.4."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_hpc.columns import rows_of, search_columns, varying
from ddp_hpc.figures._panels import Panel, group_columns, matching, panels
from ddp_hpc.figures._style import OVERSUBSCRIBED, SMALL, grid, head, label_outer, nothing, say, small_print
from ddp_hpc.study import Study

INPUTS = ("areas", "winners")
CAPTION = "Loss areas of the points that reach the threshold, sorted by minimum loss; the least area wins."

FEWEST_PLACES = 8  # so that few bars are not broad
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
    differ = varying(areas)
    searched = [name for name in search_columns(study) if name in differ and not name.endswith("_options")]
    names = " / ".join(name.replace("_", " ") for name in searched) or "the only point"
    for one, panel in zip(axes, shown, strict=True):
        winners = rows_of(matching(tables["winners"], panel.key))
        _panel(
            one,
            panel,
            winners[0]["winner"],
            str(winners[0]["cannot_be_told_from"] or "").split(", "),
            str(winners[0]["excluded_because"]),
        )
    label_outer(axes, f"{names}, by minimum loss", "loss area (loss x s)")
    notes = ["Dark: the winner. Medium: cannot be told from it."]
    small_print(figure, coverage, notes + ([f"Hollow: {OVERSUBSCRIBED}."] if areas["oversubscribed"].any() else []))
    return figure


def _panel(axes: Axes, panel: Panel, winner: str, alike: list[str], excluded: str) -> None:
    wins = any(row["point"] == winner for row in rows_of(panel.rows))
    head(axes, f"{panel.title}: {winner}" if wins else f"{panel.title}: no winner")
    bars = panel.rows[panel.rows["excluded"].isin(["", "oversubscribed"])].sort_values("min_loss", kind="stable")
    if bars.empty:
        say(axes, f"no eligible runs: {excluded}")
        return
    rows = rows_of(bars)
    for place, row in enumerate(rows):
        hollow = row["excluded"] != ""
        colour = WINNER if row["point"] == winner else ALIKE if row["point"] in alike else OTHER
        axes.bar(
            place,
            row["loss_area_loss_s"],
            0.8,
            color="#ffffff" if hollow else colour,
            edgecolor="#404040",
            linewidth=0.4,
        )
    axes.set_xlim(-0.7, max(len(rows), FEWEST_PLACES) - 0.3)
    labelled = (
        range(len(rows))
        if len(rows) <= MOST_LABELS
        else [place for place, row in enumerate(rows) if row["point"] == winner]
    )
    axes.set_xticks(list(labelled), [rows[place]["point"] for place in labelled], rotation=90, size=SMALL)
    axes.tick_params(axis="x", length=0)
