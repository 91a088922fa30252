"""Loss over time: the winners of all groups, up to 8 in a panel, then all curves of each group."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ddp_hpc.analysis.columns import key_of, rows_of, varying
from ddp_hpc.analysis.figures._curves import Look, colour_and_name, handles, looks_of
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, nothing, room_for
from ddp_hpc.analysis.figures._marks import mark_notes
from ddp_hpc.analysis.figures._panels import Panel, few, group_columns, matching, panels, searched_names, title
from ddp_hpc.analysis.figures._style import GREY, LOST, WINNER, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("curves", "winners")
CAPTION = "Training loss over time: the winner of each group, then every run of each group with its winner."
GENERAL = True

PANEL_IN = 1.8
MARGIN = 1.02  # of the time axis over the last step
MANY = 60  # curves of one panel, besides those of the winner
MOST_DRAWN = 200  # curves of all panels, from which on they are an image inside the figure
SMOOTH = 20  # lines are running means over a twentieth of the curve
DIVERGED = LOST
MOST_LINES = 8  # of winners in a panel
HIGHEST = 1.5  # times the first loss: how much of a diverging curve is seen
BEYOND = 2  # times the winner's time that a panel shows; of several winners its square, times their median
LOWEST = 0.01  # quantile of the losses: single lucky steps do not stretch the axis


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return loss against seconds since time zero."""
    curves, winners = tables["curves"], tables["winners"]
    if curves.empty:
        return nothing(coverage, "none has a loss curve yet")
    groups = group_columns(curves, study)
    shown, left_out = few(panels(curves, groups), room_for(PANEL_IN, 4) - 1)  # one is of the winners
    here = {key_of(panel.key, groups) for panel in shown}
    won = [row for row in rows_of(winners) if pd.notna(row["winner_runs"]) and key_of(row, groups) in here]
    won.sort(key=lambda row: row["exchange"] != "none")  # the baseline stands first
    chunks = [won[at : at + MOST_LINES] for at in range(0, len(won), MOST_LINES)] if len(shown) > 1 else []
    figure, axes = grid(len(chunks) + len(shown), PANEL_IN)
    limits, names = _limits(curves), searched_names(curves, study)
    differ, keys = set(varying(winners)), [{name: row[name] for name in groups} for row in won]
    words = [f"{title(key, differ)}: {row['winner']}" for key, row in zip(keys, won, strict=True)]
    looks = [look | {"marker": ""} for look in looks_of(keys, words, study)]
    for number, (one, rows) in enumerate(zip(axes, chunks, strict=False)):
        head(one, "winners" if len(chunks) == 1 else f"winners ({number + 1} of {len(chunks)})")
        _winners(one, curves, rows, looks[MOST_LINES * number :])
    counts = [int(panel.rows["run"].nunique()) for panel in shown]
    rasterized = sum(min(count, MANY) for count in counts) > MOST_DRAWN
    cut = sum(
        _group(one, panel, rows_of(matching(winners, panel.key)), limits, rasterized)
        for one, panel in zip(axes[len(chunks) :], shown, strict=True)
    )
    for one in axes:
        one.set_yscale("log" if limits[0] > 0 else "linear")
        one.set_ylim(*limits)
        plain_numbers(one.yaxis)
    short = any(np.max(line.get_xdata()) > one.get_xlim()[1] for one in axes[: len(chunks)] for line in one.lines)
    label_outer(axes, "time (s)", "training loss")
    notes = _notes(pd.concat([panel.rows for panel in shown]), bool(won), names, cut, short)
    if any(" " in str(row["winner_runs"]) for rows in chunks for row in rows):
        notes.append("Of a winner with several repeats the panel of winners has the first run.")
    if max(counts) > MANY:
        left_out.append(
            f"Of more than {MANY} curves in a panel, {MANY} are drawn: evenly from the best end to the worst."
        )
    return finished(figure, coverage, notes + left_out, handles(looks) if chunks else [])


def _notes(curves: pd.DataFrame, won: bool, names: list[str], cut: int, short: bool) -> list[str]:
    ended, stopped = curves["status"].isin(["ok", "beaten"]), curves["status"] == "beaten"
    notes = [f"Running means over 1/{SMOOTH} of a curve{'; thick: the winner, faint: its steps' if won else ''}."]
    if not ended.all():
        notes.append("Dashed to a cross: diverged or out of memory; beyond the axes, the cross stands at their end.")
    if stopped.any():
        notes.append("To a bar: stopped when it was beaten.")
    if won and len(names) > 1:
        notes.append(f"The title of a panel names its winner: {' / '.join(names)}.")
    if cut:
        notes.append(f"Time ends at {BEYOND} x the winner's (without one: the median): {cut} curves go on beyond.")
    if short:
        notes.append(f"The panel of winners ends at {BEYOND**2} x the median of their times: some go on beyond.")
    return notes + mark_notes(curves, "Dotted:")


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


def _winners(axes: Axes, curves: pd.DataFrame, rows: list[dict[str, Any]], looks: list[Look]) -> None:
    """Draw one run of each winner, the first."""
    ends = []
    for row, look in zip(rows, looks, strict=False):
        curve = curves[curves["run"] == str(row["winner_runs"]).split()[0]]
        _line(axes, curve, look)
        ends.append(float(curve["t_s"].max()))
    axes.set_xlim(0, min(max(ends), BEYOND**2 * float(np.median(ends))) * MARGIN)


def _group(
    axes: Axes, panel: Panel, winners: list[dict[str, Any]], limits: tuple[float, float], rasterized: bool
) -> int:
    """Draw the curves of a group; return how many of them go on beyond the time axis."""
    winner = winners[0] if winners and pd.notna(winners[0]["winner_runs"]) else None
    best = str(winner["winner_runs"]).split() if winner else []
    head(axes, panel.title, str(winner["winner"]) if winner else "no winner")
    runs = list(panel.rows.groupby("run", sort=False))
    ends = {name: float(curve["t_s"].max()) for name, curve in runs}
    usual = [ends[name] for name in best if name in ends] or [float(np.median(list(ends.values())))]
    last = MARGIN * min(max(ends.values()), BEYOND * max(usual))
    axes.set_xlim(0, last)
    for _, curve in _few([run for run in runs if run[0] not in best]):
        _thin(axes, curve, limits, last, rasterized)
    for _, curve in (run for run in runs if run[0] in best):  # above all others
        _line(axes, curve, {"color": WINNER})
    return sum(end > last for end in ends.values())


def _few(runs: list[tuple[Any, pd.DataFrame]]) -> list[tuple[Any, pd.DataFrame]]:
    """Return the curves for which a panel has room: of too many some, evenly spread by their last loss."""
    if len(runs) <= MANY:
        return runs
    order = np.argsort([curve["loss"].iloc[-1] for _, curve in runs], kind="stable")
    places = sorted(order[np.linspace(0, len(runs) - 1, MANY).round().astype(np.int64)])
    return [runs[place] for place in places]


def _thin(axes: Axes, curve: pd.DataFrame, limits: tuple[float, float], last: float, rasterized: bool) -> None:
    finite = curve[np.isfinite(curve["loss"])]
    t_s, loss = finite["t_s"].to_numpy(float), finite["loss"].to_numpy(float)
    if curve["status"].isin(["ok", "beaten"]).all():
        line, mean = ":" if curve["oversubscribed"].fillna(False).any() else "-", _smooth(loss)
        axes.plot(t_s, mean, line, color=GREY, linewidth=0.6, alpha=0.8, rasterized=rasterized)
        if (curve["status"] == "beaten").any() and t_s[-1] <= last:
            axes.plot(t_s[-1], float(np.clip(mean[-1], *limits)), "|", color=GREY, markersize=5.0)
        return
    axes.plot(t_s, loss, "--", color=DIVERGED, linewidth=0.6, rasterized=rasterized)
    if len(loss):
        place = min(t_s[-1], last), float(np.clip(loss[-1], *limits))
        axes.plot(*place, "x", color=DIVERGED, markersize=4.5, markeredgewidth=1.2, clip_on=False, zorder=5)


def _line(axes: Axes, curve: pd.DataFrame, look: Look) -> None:
    t_s, loss = curve["t_s"].to_numpy(float), curve["loss"].to_numpy(float)
    colour, name = colour_and_name(look)
    axes.plot(t_s, loss, "-", color=colour, gid=name, linewidth=0.4, alpha=0.35)
    axes.plot(t_s, _smooth(loss), linewidth=1.3, **look)


def _smooth(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running mean over a twentieth of a curve, centred; near the ends over what there is."""
    window = max(1, len(x) // SMOOTH)
    return pd.Series(x).rolling(window, center=True, min_periods=1).mean().to_numpy()
