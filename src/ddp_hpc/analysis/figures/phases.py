"""Where the time of a step goes: its phases, stacked, by ranks and exchange, a panel per batch size."""

from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import rows_of, varying
from ddp_hpc.analysis.figures._curves import interval_note
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, letters_in, nothing, wrapped
from ddp_hpc.analysis.figures._marks import DAGGER, DOUBLE_DAGGER, daggers, is_oversubscribed, mark_notes
from ddp_hpc.analysis.figures._panels import columns_but, panels, title
from ddp_hpc.analysis.figures._style import EDGE, LOST, name_bars
from ddp_hpc.config.study import Study

INPUTS = ("phases",)
CAPTION = (
    "Phases of a training step, stacked: medians over the runs, by ranks and exchange, a panel for each batch size; "
    "waiting is for the slowest rank."
)
GENERAL = True

BARS = ("exchange", "exchange_options", "world_size")  # what stands side by side in a panel
FEW_BARS = 6
MOST = 2.0  # times the highest bar: where bars and mean steps are cut
ROOM = 1.2  # of the axis over what is drawn, for marks
DIFFERS = 0.03  # relative difference of mean and median steps that is seen
MEAN: dict[str, Any] = {"color": "#000000", "linewidth": 1.2, "solid_capstyle": "butt"}
INTERVAL: dict[str, Any] = {"color": "#000000", "linewidth": 0.9}
LINE = 0.15  # more, of each line beyond the first that is written above a bar
ASIDE = 0.22  # of a bar: the interval stands right of its middle, the mean step crosses all of it

# from bottom to top: words, colour, hatch; light and dark take turns, so that it reads in grey
PARTS = {
    "data_s": ("data", "#000000", ""),
    "h2d_s": ("copy to the device", "#ffffff", "xxxx"),
    "forward_backward_s": ("forward and backward", "#8296aa", ""),
    "forward_s": ("forward", "#c3cfdb", ""),
    "backward_s": ("backward", "#66788c", ""),
    "wait_s": ("exchange: waiting", "#eebccc", "////"),
    "move_s": ("exchange: moving", LOST, ""),
    "exchange_exposed_s": ("exchange", LOST, ""),
    "update_s": ("update", "#9c9c9c", "\\\\\\\\"),
    "rest_s": ("rest", "#ececec", ""),
    "step_s": ("step, its phases not told apart", "#b8b8b8", ""),  # of a program that does not say them
}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return stacked bars of milliseconds per step."""
    phases = tables["phases"]
    known = phases[phases["runs"] > 0]
    if known.empty:
        return nothing(coverage, "none has ended well")
    bar_columns = [name for name in BARS if name in phases]
    shown = panels(known, columns_but(known, *BARS), "batch_size")
    most_bars = max(len(panel.rows) for panel in shown)
    height_in, most_columns = (2.4, 3) if most_bars <= FEW_BARS else (3.0, 2)
    figure, axes = grid(len(shown), height_in, most_columns)
    unit_s, unit = (1e-3, "ms") if known["step_s"].max() < 1 else (1.0, "s")
    differ = set(varying(known))
    for one, panel in zip(axes, shown, strict=True):
        head(one, panel.title)
        bars = rows_of(panel.rows.sort_values(bar_columns, na_position="last"))
        bars.sort(key=lambda row: row["exchange"] != "none")  # the baseline stands first
        _bars(one, bars, unit_s)
        names = [title({name: row[name] for name in bar_columns}, differ) for row in bars]
        _name(one, names, letters_in(one, most_bars))
    label_outer(axes, "", f"time per step ({unit})")
    notes, legend = _explained(known)
    return finished(figure, coverage, notes + mark_notes(known, DAGGER, DOUBLE_DAGGER), legend)


def _explained(known: pd.DataFrame) -> tuple[list[str], list[Artist]]:
    """Return the small print, and the legend."""
    notes: list[str] = []
    stacked = {name for row in rows_of(known) for name, seconds in stack(row) if seconds > 0}
    legend: list[Artist] = [
        Patch(facecolor=colour, hatch=hatch, label=words, **EDGE)
        for name, (words, colour, hatch) in reversed(PARTS.items())
        if name in stacked
    ]
    if any(_apart(row) for row in rows_of(known)):
        legend.append(Line2D([], [], label="mean step: what the speedup counts", **MEAN))
        notes.append(
            "Bars are medians. A mean step above its bar: time lost in slow steps; beyond the axis it is a number."
        )
    if known["step_low_s"].notna().any():
        legend.append(Line2D([], [], marker="|", label="95 % interval", **INTERVAL))
        notes.append(interval_note(known, "Intervals of the median step, cut at the axes (none of cut bars)"))
    return notes, legend


def stack(row: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the parts of a bar in seconds, from bottom to top: the finest that are known, none twice."""
    known = {name for name in PARTS if name != "step_s" and pd.notna(row[name])}
    if not known:
        return [("step_s", float(row["step_s"]))]
    known -= {"exchange_exposed_s"} if {"wait_s", "move_s"} <= known else {"wait_s", "move_s"}
    if {"forward_s", "backward_s"} & known:
        known -= {"forward_backward_s"}
    return [(name, float(row[name])) for name in PARTS if name in known]


def _bars(axes: Axes, rows: list[dict[str, Any]], unit_s: float) -> None:
    highest = _highest(rows, unit_s)
    above = [_above(row, unit_s, highest) for row in rows]
    room = ROOM + LINE * max((len(lines) - 1 for lines in above if lines), default=0)
    for place, (row, lines) in enumerate(zip(rows, above, strict=True)):
        bottom = ends = 0.0
        for name, seconds in stack(row):
            height, (_, colour, hatch) = min(seconds / unit_s, highest - bottom), PARTS[name]
            axes.bar(place, height, 0.7, bottom, color=colour, hatch=hatch, **EDGE | {"linewidth": 0.3})
            bottom += height
        # an interval of a bar that is cut would be of what is not seen
        cut = sum(seconds for _, seconds in stack(row)) > highest * unit_s
        if not cut and pd.notna(row["step_low_s"]) and pd.notna(row["step_high_s"]):
            cut_at = 1.02 * highest if lines else room * highest
            low, ends = (min(row[name] / unit_s, cut_at) for name in ("step_low_s", "step_high_s"))
            axes.errorbar(place + ASIDE, low, [[0], [ends - low]], capsize=2.0, capthick=0.9, **INTERVAL)
        step = row["mean_step_s"] / unit_s
        if _apart(row) and step <= highest:
            axes.plot([place - 0.42, place + 0.42], [step, step], **MEAN)
        top = min(highest, max(bottom, step if _apart(row) else 0.0))
        at = (place, max(top, ends))
        axes.annotate("\n".join(lines), at, (0, 2), textcoords="offset points", ha="center", va="bottom")
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(0, room * highest)


def _above(row: dict[str, Any], unit_s: float, highest: float) -> list[str]:
    """Return the lines above a bar: a mean step that is beyond the axis, and marks."""
    step = row["mean_step_s"] / unit_s
    return list(filter(None, [f"\u2191{step:.3g}" if step > highest else "", daggers(row)]))


def _name(axes: Axes, names: list[str], letters: int) -> None:
    """Name the bars: `ring, 2 ranks` in two lines, each broken further if need be, or upright where none fits."""
    fits = max(len(word) for name in names for word in name.split()) <= letters
    if fits:
        names = ["\n".join(line for part in name.split(", ") for line in wrapped(part, letters)) for name in names]
    name_bars(axes.xaxis, names, rotation=0 if fits else 90)


def _highest(rows: list[dict[str, Any]], unit_s: float) -> float:
    """Return where bars are cut: above those whose times mean something, and means up to twice as high."""
    counted = [row for row in rows if not is_oversubscribed(row)] or rows
    bar = max(sum(seconds for _, seconds in stack(row)) for row in counted) / unit_s
    means = [row["mean_step_s"] / unit_s for row in counted]
    return max([bar, *(mean for mean in means if mean <= MOST * bar)]) or 1.0


def _apart(row: dict[str, Any]) -> bool:
    """Return whether the mean step differs visibly from the median."""
    return bool(abs(row["mean_step_s"] - row["step_s"]) > DIFFERS * row["step_s"])
