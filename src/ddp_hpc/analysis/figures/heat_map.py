"""What decides over batch size and learning rate, a panel per group; what cannot win is a mark, never a zero."""

from typing import Any

import pandas as pd
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
from ddp_hpc.analysis.figures._layout import columns_of, finished, grid, head, label_outer, nothing, width_of
from ddp_hpc.analysis.figures._marks import is_oversubscribed, mark_notes
from ddp_hpc.analysis.figures._panels import axis_label, group_columns, panels
from ddp_hpc.analysis.figures._style import GREY, plain_numbers
from ddp_hpc.analysis.formatting import heading
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("areas", "winners")
CAPTION = (
    "Loss area, or what else `winner_by` names, over the searched values, for each group; marks for what diverged, is "
    "missing or may not win."
)
OF_A_SEARCH = True

COLOURS = "cividis"  # even in grey and to the colour-blind
FAR = 10  # times the least value: beyond, nothing has a colour where no point may win
FRAME: dict[str, Any] = {"color": "#e4e4e4", "linewidth": 0.4, "zorder": 0.5}  # of a cell, also where none is planned
MOST_LETTERS = 95  # size of a number, in points, x its letters / width of its cell, in inches
WINNER: dict[str, Any] = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.6}
WHITE, PALE = (1.0, 1.0, 1.0, 1.0), (0.88, 0.88, 0.88, 1.0)  # no value; one that may not win
OVERSUBSCRIBED: dict[str, Any] = {"hatch": "////", "edgecolor": "#ffffff"}
MOST_TICKS = 12
ROW_IN, BEST_ROW_IN, MOST_IN = 0.26, 0.42, 1.3  # height of a cell: at least, at best, of all cells at best
NUMBER_IN = 0.25  # width of a cell that has room for its number

# why a point may not win: its mark and the words of the legend; the first whose word is in the reason counts
MARKS: dict[str, tuple[str, str] | None] = {
    "diverged": ("x", "diverged"),
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
    shown = panels(areas, [name for name in SPEC_COLUMNS if name in groups or name in beside])
    cells_in = max(ROW_IN * len(up), min(MOST_IN, BEST_ROW_IN * len(up)))
    figure, axes = grid(len(shown), 0.75 + cells_in, most_columns=2 if len(across) > 6 else 4)
    norm = _norm(areas)
    for one, panel in zip(axes, shown, strict=True):
        head(one, panel.title, "" if panel.rows["wins"].any() else "no winner")
        _panel(one, rows_of(panel.rows), across, up, norm)
    label_outer(axes, *(axis_label(columns[0]) if columns else "" for columns in (x, y)))
    if norm is not None:
        looks: dict[str, Any] = {"pad": 0.01, "aspect": 14 * -(-len(axes) // columns_of(axes[0]))}
        bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=axes, label=heading(by), **looks)
        bar.outline.set_visible(False)
        plain_numbers(bar.ax.yaxis)
    return finished(figure, coverage, _notes(areas, norm), _legend(areas))


def _legend(areas: pd.DataFrame) -> list[Artist]:
    marks = dict.fromkeys(filter(None, map(mark, areas["excluded"])))
    legend: list[Artist] = [Line2D([], [], label=words, linestyle="none", **_pen(marker)) for marker, words in marks]
    if areas["oversubscribed"].any():
        legend.insert(0, Patch(facecolor=GREY, label="oversubscribed", **OVERSUBSCRIBED))
    return [Patch(label="winner", **WINNER), *legend] if areas["wins"].any() else legend


def _notes(areas: pd.DataFrame, norm: Normalize | None) -> list[str]:
    grey = (areas["decisive"].notna() & ~areas["coloured"]).any()
    notes = ["Grey: a point that may not win, or beyond the scale."] if norm is not None and grey else []
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


def _panel(axes: Axes, rows: list[dict[str, Any]], across: list[str], up: list[str], norm: Normalize | None) -> None:
    columns, lines = len(across), len(up)
    axes.hlines([y - 0.5 for y in range(lines + 1)], -0.5, columns - 0.5, **FRAME)
    axes.vlines([x - 0.5 for x in range(columns + 1)], -0.5, lines - 0.5, **FRAME)
    cell_in = 0.7 * width_of(axes) / columns
    for row in rows:
        x, y, found = row["across"], row["up"], mark(row["excluded"])
        ink = _cell(axes, row, (x, y), norm)
        written = cell_in >= NUMBER_IN and pd.notna(row["decisive"])
        if written:
            value = row["decisive"]
            text = f"{value:.0f}" if 1e3 <= value < 1e5 else f"{value:.3g}"
            paper = withStroke(linewidth=1.2, foreground="#000000" if ink == "#ffffff" else "#ffffff")
            look: dict[str, Any] = {"color": ink, "path_effects": [paper], "ha": "center", "va": "center"}
            look["size"] = min(6.0, MOST_LETTERS * cell_in / len(text))
            axes.text(x, y - 0.14 * (found is not None), text, **look)
        if found:
            axes.plot(x, y + 0.24 * written, zorder=5, **_pen(found[0], min(4.0, 14 * cell_in)))
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, lines - 0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for axis, names in ((axes.xaxis, across), (axes.yaxis, up)):
        step = -(-len(names) // MOST_TICKS)
        axis.set_ticks(range(0, len(names), step), names[::step])
    if max((len(tick.get_text()) for tick in axes.get_xticklabels()), default=0) * len(axes.get_xticks()) > 40:
        axes.tick_params(axis="x", labelrotation=90)


def _cell(axes: Axes, row: dict[str, Any], place: tuple[float, float], norm: Normalize | None) -> str:
    """Draw a point's cell; return the colour of ink that can be read on it."""
    corner, colour = (place[0] - 0.5, place[1] - 0.5), WHITE
    if norm is not None and pd.notna(row["decisive"]):
        colour = colormaps[COLOURS](norm(row["decisive"])) if row["coloured"] else PALE
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="#c8c8c8", linewidth=0.4))
    if is_oversubscribed(row):
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, linewidth=0, **OVERSUBSCRIBED))
    if row["wins"]:
        axes.add_patch(Rectangle((place[0] - 0.46, place[1] - 0.46), 0.92, 0.92, zorder=4, **WINNER))
    luminance = sum(part * weight for part, weight in zip(colour[:3], (0.299, 0.587, 0.114), strict=True))
    return "#ffffff" if luminance < 0.5 else "#000000"
