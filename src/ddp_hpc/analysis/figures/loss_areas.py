"""Bars of what decides, sorted by minimum loss, a panel per group: as in SHM-Learn-Dist (2017), figures 5.1 to 5.4."""

from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import ERRORS, counted_reasons, decisive, rows_of
from ddp_hpc.analysis.figures._layout import (
    finished,
    grid,
    head,
    label_outer,
    letters_in,
    nothing,
    room_for,
    say,
    wrapped,
)
from ddp_hpc.analysis.figures._marks import RING, mark_notes, ring
from ddp_hpc.analysis.figures._panels import few, group_columns, matching, panels, searched_names
from ddp_hpc.analysis.figures._style import EDGE, INK, WINNER, name_bars
from ddp_hpc.analysis.formatting import heading
from ddp_hpc.config.study import Study

INPUTS = ("areas", "winners")
CAPTION = (
    "Loss areas, or what else `winner_by` names, of the points that reach the threshold, sorted by minimum loss; the "
    "best wins."
)
OF_A_SEARCH = True

FEWEST_PLACES = 3  # so that few bars are not broad
MOST_LABELS = 40  # bars with their names beneath

# what a bar is: its colour, and the words of the legend
LOOKS = {
    "winner": (WINNER, "winner"),
    "alike": ("#f0b58c", "cannot be distinguished from the winner"),
    "worse": ("#d0d0d0", "larger than the winner at 95 %"),
    "unfit": ("#ffffff", "oversubscribed, may not win"),
    "beaten": ("#f0f0f0", "stopped when it was beaten: the area is at least this"),
}
DRAWN = ("oversubscribed", "beaten")  # points that may not win, and have a bar
TIME_ONLY = "larger than the winner by more than the noise of time"  # of one run each


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return bars of the column that decides for each group, from the lowest minimum loss to the highest."""
    areas, by = tables["areas"], decisive(study.rules)
    if areas.empty:
        return nothing(coverage, "none is planned")
    areas = areas.assign(decisive=areas[by], error=areas[ERRORS[by]])
    groups = panels(areas, group_columns(areas, study))
    empty = [panel for panel in groups if not _has_bar(panel.rows).any()]
    full = [panel for panel in groups if _has_bar(panel.rows).any()]
    shown, notes = few(full or groups, room_for(1.9, 2))
    if full and empty:
        notes.append(f"No point may win, so that there is no panel: {'; '.join(panel.title for panel in empty)}.")
    figure, axes = grid(len(shown), 1.9, most_columns=2)
    names = searched_names(areas, study)
    drawn = []
    for one, panel in zip(axes, shown, strict=True):
        (winner,) = rows_of(matching(tables["winners"], panel.key))
        bars = _bars(panel.rows, winner)
        head(one, panel.title, str(winner["winner"]), _left_out(one, panel.rows) if len(bars) else ())
        _panel(one, bars, winner, names)
        drawn.append(bars)
    label_outer(axes, f"{' / '.join(names) or 'the only point'}, by minimum loss", heading(by))
    bars = pd.concat(drawn)
    marks = mark_notes(bars.assign(oversubscribed=bars["look"] == "unfit"))
    seen, worse = set(bars["look"]), "worse" if by == "test_metric" else "larger"
    repeated = study.looks[-1] > 1
    looks = LOOKS if repeated else LOOKS | {"worse": (LOOKS["worse"][0], TIME_ONLY)}
    legend: list[Artist] = [
        Patch(facecolor=colour, label=words.replace("larger", worse), **EDGE)
        for look, (colour, words) in looks.items()
        if look in seen
    ]
    if any(mark.startswith("Ringed") for mark in marks):
        legend.append(Line2D([], [], marker="o", linestyle="none", label="ringed: disturbed", **RING))
    value = "area" if study.rules.winner_by == "loss_area" else "value"
    if bars["error"].notna().any():
        source = "the spread of the repeats" if repeated else "the noise of time between runs that do the same work"
        notes.append(f"Lines on the bars: the {value} and one standard error to either side, from {source}.")
    return finished(figure, coverage, notes + marks, legend)


def _has_bar(areas: pd.DataFrame) -> "pd.Series[bool]":
    return areas["excluded"].fillna("").isin(["", *DRAWN])


def _bars(areas: pd.DataFrame, winner: dict[str, Any]) -> pd.DataFrame:
    """Return the points that have a bar, in the order of their minimum loss, and as what each is drawn (`look`)."""
    bars = areas[_has_bar(areas)].sort_values("min_loss", kind="stable").copy()
    alike = str(winner["cannot_be_told_from"]).split("; ") if pd.notna(winner["winner_runs"]) else []
    bars["look"] = "worse"
    bars.loc[bars["point"].isin(alike), "look"] = "alike"
    bars.loc[bars["point"] == winner["winner"], "look"] = "winner"
    bars.loc[bars["excluded"].notna(), "look"] = "unfit"
    bars.loc[bars["excluded"] == "beaten", "look"] = "beaten"
    return bars


def _left_out(axes: Axes, areas: pd.DataFrame) -> list[str]:
    """Return how many points of a panel have a bar, and why the others have none."""
    gone = areas[~_has_bar(areas)]["excluded"]
    if gone.empty:
        return []
    words = f"{len(areas) - len(gone)} of {len(areas)} points; left out: {counted_reasons(gone)}"
    return wrapped(words, letters_in(axes))


def _panel(axes: Axes, bars: pd.DataFrame, winner: dict[str, Any], names: list[str]) -> None:
    if bars.empty:
        say(axes, f"no eligible runs: {winner['excluded_because']}")
        return
    places, areas, errors = range(len(bars)), bars["decisive"], bars["error"]
    fills = [LOOKS[look][0] for look in bars["look"]]
    axes.bar(places, areas, 0.8, color=fills, **EDGE)
    if errors.notna().any():
        axes.errorbar(places, areas, errors, fmt="none", ecolor="#000000", elinewidth=0.7, capsize=1.5, capthick=0.7)
    for place, row in enumerate(rows_of(bars)):
        ring(axes, place, row["decisive"], row, clip_on=False, zorder=4)
        if row["look"] == "beaten":
            axes.plot(place, row["decisive"], "^", color=INK, markersize=4.0, clip_on=False)
    axes.set_ylim(bottom=0)
    margin = max(0.0, FEWEST_PLACES - len(bars)) / 2 + 0.7
    axes.set_xlim(-margin, len(bars) - 1 + margin)
    # one searched value is named by the axis
    points = [point.removeprefix(f"{names[0]} ") if len(names) == 1 else point for point in bars["point"]]
    all_named = len(points) <= MOST_LABELS
    shown = [point if all_named or look == "winner" else "" for point, look in zip(points, bars["look"], strict=True)]
    flat = sum(map(bool, shown)) < 10 and all(len(text) < 5 for text in shown)
    name_bars(axes.xaxis, shown, rotation=0 if flat else 90)
