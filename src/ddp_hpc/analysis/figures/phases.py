"""Where the time of a step goes: its phases, stacked, by ranks and exchange, a panel per batch size."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import DISTURBED, rows_of, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    OVERSUBSCRIBED,
    SLOW,
    SMALL,
    columns_of,
    grid,
    head,
    label_outer,
    legend_above,
    nothing,
    small_print,
    wrapped,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("phases",)
CAPTION = (
    "Phases of a training step, stacked: medians over the runs, by ranks and exchange, a panel for each batch size."
)

BARS = ("exchange", "exchange_options", "world_size")  # what stands side by side in a panel
FEW_BARS = 6
MOST = 2.0  # times the highest bar: where bars and mean steps are cut
ROOM = 1.2  # of the axis over what is drawn, for marks
DIFFERS = 0.03  # relative difference of mean and median steps that is seen
MEAN: dict[str, Any] = {"color": "#000000", "linewidth": 1.2, "solid_capstyle": "butt"}
INTERVAL: dict[str, Any] = {"color": "#000000", "linewidth": 0.9, "capsize": 2.0, "capthick": 0.9}
ASIDE = 0.22  # of a bar: the interval stands right of its middle, the mean step crosses all of it
LETTER_IN = 0.045  # width of a letter of small print

# from bottom to top: column, words, colour, hatch; light and dark take turns, so that it reads in grey
PARTS = (
    ("data_s", "data", "#000000", ""),
    ("h2d_s", "copy to the device", "#999999", ""),
    ("forward_backward_s", "forward and backward", "#0072B2", ""),
    ("forward_s", "forward", "#56B4E9", ""),
    ("backward_s", "backward", "#0072B2", ""),
    ("wait_s", "exchange: waiting for the slowest rank", "#F0E442", "////"),
    ("move_s", "exchange: moving", "#E69F00", ""),
    ("exchange_exposed_s", "exchange", "#E69F00", "...."),
    ("update_s", "update", "#009E73", ""),
    ("rest_s", "rest", "#e4e4e4", ""),
)


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return stacked bars of milliseconds per step.

    Args:
        tables: `phases`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    phases = tables["phases"]
    known = phases[phases["runs"] > 0]
    if known.empty:
        return nothing("no eligible runs: none has ended well", coverage)
    panel_columns = [name for name in SPEC_COLUMNS if name in phases and name not in BARS]
    bar_columns = [name for name in BARS if name in phases]
    shown = list(split(known, panel_columns))
    most_bars = max(len(rows) for _, rows in shown)
    figure, axes = grid(
        len(shown), 2.4 if most_bars <= FEW_BARS else 3.0, most_columns=3 if most_bars <= FEW_BARS else 2
    )
    unit_s, unit = (1e-3, "ms") if known["step_s"].max() < 1 else (1.0, "s")
    differ = set(varying(known))
    bar_in = 0.85 * figure.get_figwidth() / columns_of(axes) / most_bars
    for one, (key, rows) in zip(axes, shown, strict=True):
        head(one, title(key, differ | {"batch_size"}))
        bars = rows_of(rows.sort_values(bar_columns, na_position="last"))
        bars.sort(key=lambda row: row["exchange"] != "none")  # the baseline stands first
        _bars(one, bars, [title({name: row[name] for name in bar_columns}, differ) for row in bars], unit_s, bar_in)
    label_outer(axes, "", f"time per step ({unit})")
    stacked = {column for row in rows_of(known) for column, seconds in stack(row) if seconds > 0}
    handles: list[Artist] = [_patch(part) for part in reversed(PARTS) if part[0] in stacked]
    notes = []
    if any(_apart(row) for row in rows_of(known)):
        handles.append(Line2D([], [], label="mean step: what the speedup counts", **MEAN))
        notes.append(
            "Bars are medians. A mean step above its bar: time lost in slow steps; beyond the axis it is a number."
        )
    if known["step_low_s"].notna().any():
        handles.append(Line2D([], [], color="#000000", linewidth=0.9, marker="|", label="median step: 95 % interval"))
        notes.append(_interval_note(known))
    legend_above(figure, handles)
    if known["oversubscribed"].any():
        notes.append(f"\u2020 {OVERSUBSCRIBED}; where such a bar is cut, its mean step is written.")
    if (known["slow_steps_share"] > DISTURBED).any():
        notes.append(f"\u2021 {SLOW}.")
    small_print(figure, coverage, notes)
    return figure


def _interval_note(known: pd.DataFrame) -> str:
    """Say from what the intervals are; those of few runs are wide, and cut at the axes."""
    bases = sorted(known["interval_from"].dropna().unique())
    return f"Intervals of the median step, cut at the axes (none of cut bars): {'; '.join(bases)}."


def stack(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the parts of a bar in seconds, from bottom to top: the finest that are known, none twice."""
    known = {name for name, *_ in PARTS if pd.notna(row[name])}
    if {"wait_s", "move_s"} <= known:
        known -= {"exchange_exposed_s"}
    else:
        known -= {"wait_s", "move_s"}
    if {"forward_s", "backward_s"} & known:
        known -= {"forward_backward_s"}
    return [(name, float(row[name])) for name, *_ in PARTS if name in known]


def _patch(part: tuple[str, str, str, str]) -> Patch:
    _, words, colour, hatch = part
    return Patch(facecolor=colour, edgecolor="#404040", linewidth=0.4, hatch=hatch, label=words)


def _bars(axes: Axes, rows: list[dict[str, Any]], words: list[str], unit_s: float, bar_in: float) -> None:
    highest = _highest(rows, unit_s)
    looks = {name: {"color": colour, "hatch": hatch} for name, _, colour, hatch in PARTS}
    for place, row in enumerate(rows):
        bottom = 0.0
        for name, seconds in stack(row):
            height = min(seconds / unit_s, highest - bottom)
            axes.bar(place, height, 0.7, bottom, edgecolor="#404040", linewidth=0.3, **looks[name])  # type: ignore[arg-type]
            bottom += height
        cut = (
            sum(seconds for _, seconds in stack(row)) > highest * unit_s
        )  # an interval there would be of what is not seen
        if not cut and pd.notna(row["step_low_s"]) and pd.notna(row["step_high_s"]):
            low, high = (min(row[name] / unit_s, ROOM * highest) for name in ("step_low_s", "step_high_s"))
            axes.errorbar(place + ASIDE, low, [[0], [high - low]], **INTERVAL)
        step = row["mean_step_s"] / unit_s
        if _apart(row) and step <= highest:
            axes.plot([place - 0.42, place + 0.42], [step, step], **MEAN)
        top = min(highest, max(bottom, step if _apart(row) else 0.0))
        texts = [f"\u2191{step:.3g}"] if step > highest else []
        marks = ("\u2020" if _marked(row) else "") + ("\u2021" if row["slow_steps_share"] > DISTURBED else "")
        above = "\n".join([*texts, *([marks] if marks else [])])
        axes.annotate(above, (place, top), (0, 2), textcoords="offset points", ha="center", va="bottom", size=SMALL)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(0, ROOM * highest)
    letters = int(bar_in / LETTER_IN)
    fits = max(len(word) for text in words for word in text.split()) <= letters
    texts = [_in_lines(text, letters) if fits else text for text in words]
    axes.set_xticks(range(len(rows)), texts, rotation=0 if fits else 90, size=SMALL)
    axes.tick_params(axis="x", length=0)


def _highest(rows: list[dict[str, Any]], unit_s: float) -> float:
    """Return where bars are cut: above those whose times mean something, and means up to twice as high."""
    counted = [row for row in rows if not _marked(row)] or rows
    bar = max(sum(seconds for _, seconds in stack(row)) for row in counted) / unit_s
    means = [row["mean_step_s"] / unit_s for row in counted]
    return max([bar, *(mean for mean in means if mean <= MOST * bar)]) or 1.0


def _apart(row: Mapping[str, Any]) -> bool:
    """Return whether the mean step differs visibly from the median."""
    return bool(abs(row["mean_step_s"] - row["step_s"]) > DIFFERS * row["step_s"])


def _marked(row: Mapping[str, Any]) -> bool:
    return bool(pd.notna(row["oversubscribed"]) and row["oversubscribed"])


def _in_lines(text: str, letters: int) -> str:
    """Return `ring, 2 ranks` as two lines, each broken further if need be."""
    return "\n".join(line for part in text.split(", ") for line in wrapped(part, letters))
