"""What decides over batch size and learning rate, a panel per group; what cannot win is a mark, never a zero."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from ddp_hpc.analysis.columns import DISTURBED, decisive, key_of, label, rows_of, search_columns, split, varying
from ddp_hpc.analysis.figures._layout import (
    LETTER_IN,
    columns_of,
    finished,
    grid,
    head,
    label_outer,
    letters_in,
    nothing,
    room_for,
    width_of,
)
from ddp_hpc.analysis.figures._marks import is_oversubscribed, mark_notes
from ddp_hpc.analysis.figures._panels import axis_label, few, group_columns, panels
from ddp_hpc.analysis.figures._style import GREY, WINNER, plain_numbers, three_digits
from ddp_hpc.analysis.formatting import heading
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("areas", "winners")
CAPTION = (
    "Loss area, or what else `winner_by` names, over the searched values, for each group; marks for what diverged, is "
    "missing or may not win."
)
OF_A_SEARCH = True

FAR = 10  # times the least value: beyond, nothing has a colour where no point may win
LETTERS = 5  # of a number
BAR_IN = 1.1  # width of the scale of colours, and of the names of the lowest row
FRAMED: dict[str, Any] = {"fill": False, "edgecolor": WINNER, "linewidth": 1.6}
WHITE, PALE = (1.0, 1.0, 1.0, 1.0), (0.88, 0.88, 0.88, 1.0)  # no value; one that may not win
COLOURS = colormaps["cividis"].with_extremes(over=PALE, bad=WHITE)  # even in grey and to the colour-blind
CELLS: dict[str, Any] = {"cmap": COLOURS, "linewidths": 0.4, "linecolor": "#c8c8c8", "fmt": "", "cbar": False}
OVERSUBSCRIBED: dict[str, Any] = {"hatch": "////", "edgecolor": "#ffffff"}
ROW_IN, BEST_ROW_IN, MOST_IN = 0.26, 0.42, 1.3  # height of a cell: at least, at best, of all cells at best

# why a point may not win: its mark and the words of the legend; the first whose word is in the reason counts
MARKS: dict[str, tuple[str, str] | None] = {
    "diverged": ("x", "diverged"),
    "beaten": ("_", "stopped when it was beaten: at least this"),
    "oom gpu": ("v", "out of GPU memory"),
    "not yet run": (".", "not yet run"),
    "queued": (".", "not yet run"),
    "running": (".", "not yet run"),
    "threshold": ("^", "minimum loss above the threshold"),
    "loss window": ("^", "minimum loss above the threshold"),
    "incomplete": ("s", "incomplete"),
    "without a loss area": ("s", "incomplete"),
    "never reached": ("d", "never reached the test metric"),
    "oversubscribed": None,  # is hatched
}
FAILED = ("+", "failed")  # every other reason


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a heat map of the column that decides for each group, all on one scale of colours."""
    by = decisive(study.rules)
    if tables["areas"].empty:
        return nothing(coverage, "none is planned")
    areas = tables["areas"].assign(excluded=tables["areas"]["excluded"].fillna(""))
    areas["decisive"] = areas[by]
    areas["coloured"] = coloured(areas)
    searched = [name for name in search_columns(study) if name in areas]
    searched = [name for name in varying(areas) if name in searched] or searched[:1]
    searched.sort(key=lambda name: {"learning_rate": 0, "batch_size": 1}.get(name, 2))
    x, y, beside = searched[:1], searched[1:2], searched[2:]  # what varies beside the axes gets panels
    groups = group_columns(areas, study)
    in_both = [name for name in (*groups, *searched) if name in tables["winners"]]
    won = {key_of(row, in_both) for row in rows_of(tables["winners"]) if pd.notna(row["winner_runs"])}
    areas["wins"] = [key_of(row, in_both) in won for row in rows_of(areas)]
    across, up = _number_places(areas, x, "across"), _number_places(areas, y, "up")
    height_in = 0.75 + max(ROW_IN * len(up), min(MOST_IN, BEST_ROW_IN * len(up)))
    most_columns = 2 if len(across) > 6 else 4
    every = panels(areas, [name for name in SPEC_COLUMNS if name in groups or name in beside])
    shown, left_out = few(every, room_for(height_in, most_columns))
    figure, axes = grid(len(shown), height_in, most_columns)
    norm = _norm(areas)
    for one, panel in zip(axes, shown, strict=True):
        letters = int((figure.get_figwidth() - BAR_IN) / columns_of(one) / LETTER_IN)
        head(one, panel.title, "" if panel.rows["wins"].any() else "no winner", letters=letters)
        _panel(one, panel.rows, across, up, norm)
    label_outer(axes, *(axis_label(columns[0]) if columns else "" for columns in (x, y)))
    if norm is not None:
        looks: dict[str, Any] = {"pad": 0.01, "aspect": 14 * -(-len(axes) // columns_of(axes[0]))}
        bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=axes, label=heading(by), **looks)
        bar.outline.set_visible(False)
        plain_numbers(bar.ax.yaxis)
    return finished(figure, coverage, _notes(areas, norm) + left_out, _legend(areas))


def _legend(areas: pd.DataFrame) -> list[Artist]:
    marks = dict.fromkeys(filter(None, map(mark, areas["excluded"])))
    legend: list[Artist] = [Line2D([], [], label=words, linestyle="none", **_pen(marker)) for marker, words in marks]
    if areas["oversubscribed"].any():
        legend.insert(0, Patch(facecolor=GREY, label="oversubscribed", **OVERSUBSCRIBED))
    return [Patch(label="winner", **FRAMED), *legend] if areas["wins"].any() else legend


def _notes(areas: pd.DataFrame, norm: Normalize | None) -> list[str]:
    grey = (areas["decisive"].notna() & ~areas["coloured"]).any()
    notes = ["Grey: a point that may not win, or beyond the scale."] if norm is not None and grey else []
    if (areas["repeats"] > 1).any() and any(map(mark, areas["excluded"])):
        notes.append("A mark says what happened to a point in any repeat.")
    slow = int((areas["slow_steps_share"] > DISTURBED).sum())
    return notes + mark_notes(areas, "Hatched:", f"In {slow} of {len(areas)} points")


def _number_places(areas: pd.DataFrame, columns: list[str], axis: str) -> list[str]:
    """Add a column `axis` with the place of each point along it, and return the names of the places."""
    names = []
    for place, (key, rows) in enumerate(split(areas, columns)):
        areas.loc[rows.index, axis] = place
        names.append(label(key, columns))
    return names


def coloured(areas: pd.DataFrame) -> "pd.Series[bool]":
    """Return which points have a colour: those that may win; where none may, those up to ten times the least.

    A loss that has grown to 1e12, but not to infinity, must not make all others look alike.
    """
    fit = (areas["excluded"] == "") & areas["decisive"].notna()
    return fit if fit.any() else areas["decisive"] <= FAR * areas["decisive"].min()


def _norm(areas: pd.DataFrame) -> Normalize | None:
    """Return the scale of colours; None if nothing has one."""
    shown = areas["decisive"][areas["coloured"]]
    if shown.empty:
        return None
    low, high = float(shown.min()), float(shown.max())
    norm = LogNorm if low > 0 and high > 3 * low else Normalize
    return norm(low, high if high > low else low * 1.01)


def mark(excluded: str) -> tuple[str, str] | None:
    """Return the marker of a reason why a point may not win, and its words; None if it has no mark of its own."""
    return next((found for word, found in MARKS.items() if word in excluded), FAILED) if excluded else None


def _pen(marker: str, size: float = 4.0) -> dict[str, Any]:
    stroke = [withStroke(linewidth=2.2, foreground="#ffffff")]  # to be seen on dark cells too
    return {"marker": marker, "color": "#000000", "markersize": size, "mew": 0.28 * size, "path_effects": stroke}


def _number(value: float) -> str:
    """Return a number that fits a cell: 0.123, 0.012, 1234, 1e14."""
    text = three_digits(value)
    if "e+" in text:
        return f"{value:.0e}".replace("e+", "e")
    return text if len(text) <= LETTERS else f"{value:.2g}"


def _panel(axes: Axes, rows: pd.DataFrame, across: list[str], up: list[str], norm: Normalize | None) -> None:
    """Draw the cells of a panel, their numbers where there is room, and marks on them."""
    beyond = 2 * abs(norm.vmax or 0) + 1 if norm else 1.0  # has the colour of what may not win
    cells = rows.assign(shown=rows["decisive"].where(rows["coloured"] | rows["decisive"].isna(), beyond))
    cells["number"] = rows["decisive"].map(_number)
    shown, numbers = (
        cells.pivot(index="up", columns="across", values=name).reindex(range(len(up)), columns=range(len(across)))
        for name in ("shown", "number")
    )
    written = 0.7 * width_of(axes) / len(across) > LETTERS * LETTER_IN
    scale: dict[str, Any] = {"norm": norm} if norm else {"vmin": 0, "vmax": 0.5}
    named = shown.set_axis(up).set_axis(across, axis="columns")
    sns.heatmap(named, annot=numbers if written else None, ax=axes, **CELLS, **scale)
    axes.set(xlabel="", ylabel="", ylim=(0, len(up)))
    axes.tick_params(length=0)
    axes.tick_params("y", labelrotation=0)
    axes.tick_params("x", labelrotation=90 * (max(map(len, across)) * len(axes.get_xticks()) > letters_in(axes)))
    for row in rows_of(rows):
        x, y, found = row["across"], row["up"], mark(row["excluded"])
        if is_oversubscribed(row):
            axes.add_patch(Rectangle((x, y), 1, 1, fill=False, linewidth=0, **OVERSUBSCRIBED))
        if row["wins"]:
            axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, zorder=4, **FRAMED))
        if found:
            above = 0.3 if written and pd.notna(row["decisive"]) else 0.0
            axes.plot(x + 0.5, y + 0.5 + above, zorder=5, **_pen(found[0]))
