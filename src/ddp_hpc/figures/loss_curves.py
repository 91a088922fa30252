"""Loss over time: the winners of all groups (if there are at most 8) in one panel, then all curves of each group."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ddp_hpc.columns import rows_of, varying
from ddp_hpc.figures._panels import Panel, group_columns, matching, panels, point_words, searched_names, title
from ddp_hpc.figures._style import (
    COLOURS,
    GREY,
    LINES,
    OVERSUBSCRIBED,
    grid,
    head,
    label_outer,
    nothing,
    plain_numbers,
    say,
    small_print,
)
from ddp_hpc.study import Study

INPUTS = ("curves", "winners")
CAPTION = "Training loss over time: the winner of each group, then every run of each group with its winner."

MANY = 60  # curves of one panel, from which on they are an image inside the figure
SMOOTH = 20  # lines are running means over a twentieth of the curve
DIVERGED = COLOURS[4]
HIGHEST = 1.5  # times the first loss: how much of a diverging curve is seen
LOWEST = 0.01  # quantile of the losses: single lucky steps do not stretch the axis


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return loss against seconds since time zero.

    Args:
        tables: `curves` and `winners`.
        study: says what is searched.
        coverage: how many of the planned runs there are.
    """
    curves, winners = tables["curves"], tables["winners"]
    if curves.empty:
        return nothing("no eligible runs: none has a loss curve yet", coverage)
    groups = group_columns(curves, study)
    shown = panels(curves, groups)
    together = 1 < len(shown) <= len(COLOURS)
    figure, axes = grid(len(shown) + together, 1.9, most_columns=3)
    limits, names = _limits(curves), searched_names(curves, study)
    if together:
        _winners(axes[0], curves, winners, groups, names)
    for one, panel in zip(axes[-len(shown) :], shown, strict=True):
        _group(one, panel, rows_of(matching(winners, panel.key)), names, limits[1])
    for one in axes:
        if one.lines:
            one.set_yscale("log" if limits[0] > 0 else "linear")
            one.set_ylim(*limits)
            one.set_xlim(left=0)
            plain_numbers(one.yaxis)
    label_outer(axes, "time (s)", "training loss")
    notes = [
        f"Running means over 1/{SMOOTH} of a curve; thick: the winner, faint: its steps. Dashed to a cross: diverged."
    ]
    if len(names) > 1:
        notes.append(f"The title of a panel names its winner: {' / '.join(names)}.")
    if curves["oversubscribed"].any():
        notes.append(f"Dotted: {OVERSUBSCRIBED}.")
    small_print(figure, coverage, notes)
    return figure


def _limits(curves: pd.DataFrame) -> tuple[float, float]:
    """Return the losses to show: nearly all of the runs that ended well, and a little of those that diverged.

    A lower limit above 0 asks for a logarithmic axis.
    """
    good = curves[(curves["status"] == "ok") & np.isfinite(curves["loss"])]["loss"]
    seen = good if len(good) else curves["loss"][np.isfinite(curves["loss"])]
    if seen.empty:
        return 0.0, 1.0
    first = curves[curves["step"] == 1]["loss"]
    high = min(float(seen.max()), HIGHEST * float(first.max())) if np.isfinite(first).any() else float(seen.max())
    low = float(np.quantile(seen, LOWEST)) if seen.min() > 0 else 0.0
    return (0.8 * low, 1.2 * high) if high > 15 * low > 0 else (min(0.0, float(seen.min())), 1.1 * high)


def _winners(axes: Axes, curves: pd.DataFrame, winners: pd.DataFrame, groups: Sequence[str], names: list[str]) -> None:
    head(axes, "winners")
    differ = set(varying(winners))
    drawn = [row for row in rows_of(winners) if pd.notna(row["loss_area_loss_s"])]
    for number, row in enumerate(drawn):
        runs = str(row["winner_runs"]).split()
        one = curves[curves["run"] == runs[0]]
        words = f"{title({name: row[name] for name in groups}, differ)}: {point_words(row['winner'], names)}"
        _line(axes, one, COLOURS[number], LINES[number], words)
    if drawn:
        axes.legend(loc="lower left", fontsize=5.5 if len(drawn) <= 6 else 4.5, handlelength=2.4)
    else:
        say(axes, "no eligible runs")


def _group(axes: Axes, panel: Panel, winners: list[dict[str, Any]], names: list[str], highest: float) -> None:
    winner = winners[0] if winners and pd.notna(winners[0]["loss_area_loss_s"]) else None
    best = str(winner["winner_runs"]).split() if winner else []
    head(axes, f"{panel.title}: {point_words(winner['winner'], names)}" if winner else f"{panel.title}: no winner")
    runs = list(panel.rows.groupby("run", sort=False))
    for name, curve in runs:
        if name not in best:
            _thin(axes, curve, highest, rasterized=len(runs) > MANY)
    for name, curve in runs:
        if name in best:
            _line(axes, curve, COLOURS[0], "-", None)


def _thin(axes: Axes, curve: pd.DataFrame, highest: float, rasterized: bool) -> None:
    finite = curve[np.isfinite(curve["loss"])]
    t_s, loss = finite["t_s"].to_numpy(float), finite["loss"].to_numpy(float)
    if (curve["status"] == "ok").all():
        line = ":" if curve["oversubscribed"].fillna(False).any() else "-"
        axes.plot(t_s, _smooth(loss), line, color=GREY, linewidth=0.6, alpha=0.8, rasterized=rasterized)
        return
    axes.plot(t_s, loss, "--", color=DIVERGED, linewidth=0.6, rasterized=rasterized)
    if len(loss):
        axes.plot(t_s[-1], min(loss[-1], highest), "x", color=DIVERGED, markersize=3.5, clip_on=False)


def _line(axes: Axes, curve: pd.DataFrame, colour: str, line: Any, words: str | None) -> None:
    t_s, loss = curve["t_s"].to_numpy(float), curve["loss"].to_numpy(float)
    axes.plot(t_s, loss, "-", color=colour, linewidth=0.4, alpha=0.35)
    axes.plot(t_s, _smooth(loss), color=colour, linestyle=line, linewidth=1.3, label=words)


def _smooth(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running mean over a twentieth of a curve, centred; near the ends over what there is."""
    window = len(x) // SMOOTH
    if window < 2:
        return x
    total = np.convolve(x, np.ones(window), mode="same")
    return np.asarray(total / np.convolve(np.ones(len(x)), np.ones(window), mode="same"))
