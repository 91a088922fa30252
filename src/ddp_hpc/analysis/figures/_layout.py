"""The layout of a figure around its panels: grid, titles, labels, legend, small print, and empty figures."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_hpc.analysis.figures._style import COLUMN_IN, INK, PAGE_IN, SMALL, TEXT

LEGEND_LINE_IN, LEGEND_LETTER_IN, HANDLE_IN = 0.13, 0.047, 0.45  # of a legend: its lines, letters, what is beside
LINE_IN, FOOT_IN = 0.105, 0.04  # height of a line of small print, and of the space beneath and above
TITLE_LETTER_IN = 0.06  # width of a letter of 7 points


def grid(panels: int, panel_height_in: float, most_columns: int = 4) -> tuple[Figure, list[Axes]]:
    """Return a figure of `panels` panels, as wide as a column if it has one panel, else as a page."""
    columns = min(most_columns, panels)
    if panels > columns:  # 5 panels as 3 + 2 rather than 4 + 1
        columns = -(-panels // -(-panels // columns))
    rows = -(-panels // columns)
    figure = Figure((COLUMN_IN if panels == 1 else PAGE_IN, rows * panel_height_in), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def columns_of(axes: Sequence[Axes]) -> int:
    """Return beside how many others a panel of `grid` stands, itself counted."""
    place = axes[0].get_subplotspec()
    assert place is not None, "panels come from grid()"
    return int(place.get_gridspec().ncols)


def width_in(axes: Axes) -> float:
    """Return how wide a panel is, with what stands beside it."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "panels come from grid()"
    return figure.get_figwidth() / columns_of([axes])


def head(axes: Axes, text: str, more: str = "", small: Sequence[str] = ()) -> None:
    """Write the title of a panel, `text: more`, in two lines where one is too short; beneath it small print."""
    letters = int(0.85 * width_in(axes) / TITLE_LETTER_IN)
    text = text.replace(" rank", "\u00a0rank")
    whole = f"{text}: {more}" if more else text
    parts = [whole] if len(whole) <= letters else [f"{text}:" if more else text, more]
    lines = "\n".join(line for part in parts if part for line in wrapped(part, letters))
    axes.set_title(lines, pad=4 + 7.5 * len(small))
    offset = {"xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate("\n".join(small), (0.5, 1), **offset, xycoords="axes fraction", ha="center", size=SMALL)  # type: ignore[arg-type]


def label_outer(axes: Sequence[Axes], x: str, y: str) -> None:
    """Name the axes where it is needed: x below the lowest panels, y beside the leftmost, in lines that fit."""
    columns, figure = columns_of(axes), axes[0].get_figure(root=True)
    assert figure is not None, "panels come from grid()"
    height_in = figure.get_figheight() / -(-len(axes) // columns) - 0.6
    lines = "\n".join(wrapped(y, max(10, int(height_in / TITLE_LETTER_IN))))
    for number, one in enumerate(axes):
        one.set_xlabel(x if number + columns >= len(axes) else "")
        one.set_ylabel(lines if number % columns == 0 else "")


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` letters; a longer word has a line of its own."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)  # a no-break space is no space


def say(axes: Axes, text: str) -> None:
    """Write in the middle of a panel why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#d0d0d0")
    lines = "\n".join(wrapped(text, 36))
    axes.text(0.5, 0.5, lines, ha="center", va="center", size=TEXT, color=INK, transform=axes.transAxes)


def nothing(coverage: str, why: str, table: pd.DataFrame | None = None) -> Figure:
    """Return a figure that says why no run can be drawn: the first reason of a table, or `why` where it gives none."""
    figure, (axes,) = grid(1, 1.6)
    say(axes, f"no eligible runs: {why if table is None else first_reason(table, why)}")
    return finished(figure, coverage)


def first_reason(rows: pd.DataFrame, why: str) -> str:
    """Return the first reason that rows give for what they lack, or `why`."""
    return str(next(iter(rows["reason"].dropna()), why))


def finished(figure: Figure, coverage: str, notes: Sequence[str] = (), legend: Sequence[Artist] = ()) -> Figure:
    """Return a figure with its legend above the panels, if it has one, and its small print beneath them."""
    if legend:
        _legend_above(figure, legend)
    _small_print(figure, coverage, notes)
    return figure


def _legend_above(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put a legend above all panels, in as many columns as its words allow; the figure grows by it."""
    columns = _columns_that_fit([str(handle.get_label()) for handle in handles], figure.get_figwidth())
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE_IN * -(-len(handles) // columns))
    figure.legend(handles=list(handles), loc="outside upper left", ncols=columns, handlelength=2.4)


def _columns_that_fit(words: Sequence[str], width_in: float) -> int:
    for columns in range(len(words), 1, -1):
        parts = np.array_split(np.array([len(text) for text in words]), columns)  # as matplotlib fills them
        if sum(HANDLE_IN + LEGEND_LETTER_IN * int(part.max()) for part in parts) <= width_in:
            return columns
    return 1


def _small_print(figure: Figure, coverage: str, notes: Sequence[str] = ()) -> None:
    """Write at the foot of a figure what its reader must know: what is missing, and `notes`."""
    texts = [*notes, *([f"Coverage: {coverage}"] if "missing" in coverage else [])]
    width = int(figure.get_figwidth() * 24)  # letters of small print that fit
    lines = [line for text in texts for line in wrapped(text, width)]
    if not lines:
        return
    height_in = LINE_IN * len(lines) + 2 * FOOT_IN
    figure.set_figheight(figure.get_figheight() + height_in)
    share = height_in / figure.get_figheight()
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, share, 1, 1 - share))  # type: ignore[call-arg]
    looks: dict[str, Any] = {"size": SMALL, "color": INK, "va": "bottom", "linespacing": 1.25}
    figure.text(0.01, FOOT_IN / figure.get_figheight(), "\n".join(lines), **looks)
