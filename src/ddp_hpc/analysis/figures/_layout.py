"""The layout of a figure around its panels: grid, titles, labels, legend, coverage, and empty figures."""

import itertools
import textwrap
from collections.abc import Sequence
from functools import cache

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedFormatter

from ddp_hpc.analysis.figures._marks import mark_notes
from ddp_hpc.analysis.figures._style import COLUMN_IN, INK, PAGE_IN, TEXT, width_in

LETTER_IN, LINE_IN = 0.057, 0.135  # width and height of a letter in a line
HANDLE_IN = 0.5  # beside a label of a legend
HINTED = 1.05  # width of letters as pixels to their outlines
FOOT_IN = 0.04  # beneath and above the coverage
PANELS_IN = 8.0  # of a page, without legend and coverage
LEAST_SQUEEZED = 0.75
SERIES, KEY = "series.", "key."  # how names in an SVG file begin, of what is drawn of a curve and of its legend


BESIDE = 0.85  # of a panel's width has a title room in, as the numbers of its axis push it to the right


class Thinned(FixedFormatter):
    """The names of ticks, of which some are empty, for want of room."""


def grid(
    panels: int, height_in: float | Sequence[float], most_columns: int = 4, suits_in: float | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `panels` panels of this height, or each of its own; a row is as high as its highest.

    Rows that are higher than a page together are lowered, to `LEAST_SQUEEZED` of what was asked for at least.
    One panel suits a column, more a page, unless `suits_in` says what does; side by side are at most `most_columns` on
    a page, half of them in a column.
    """
    width = width_in(suits_in or (COLUMN_IN if panels == 1 else PAGE_IN))
    most_columns = max(1, round(most_columns * width / PAGE_IN))
    heights = [height_in] * panels if isinstance(height_in, float) else height_in
    columns = -(-panels // -(-panels // most_columns))  # 5 panels as 3 + 2 rather than 4 + 1
    rows = [max(heights[at : at + columns]) for at in range(0, panels, columns)]
    squeeze = max(LEAST_SQUEEZED, min(1.0, PANELS_IN / sum(rows)))
    rows = [squeeze * row for row in rows]
    figure = Figure((width, sum(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=rows).ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def room_for(height_in: float, most_columns: int) -> int:
    """Return how many panels of this height a page has room for."""
    return most_columns * max(1, int(PANELS_IN / LEAST_SQUEEZED / height_in))


def columns_of(axes: Axes) -> int:
    """Return beside how many others a panel of `grid` stands, itself counted."""
    return int(axes.get_subplotspec().get_gridspec().ncols)  # type: ignore[union-attr]


def letters_in(axes: Axes, parts: int = 1) -> int:
    """Return how many letters fit into a line of one of so many parts of a panel."""
    return int(0.85 * width_of(axes) / parts / LETTER_IN)


def width_of(axes: Axes) -> float:
    """Return how many inches wide a panel is, with what stands beside it."""
    return axes.get_figure(root=True).get_figwidth() / columns_of(axes)  # type: ignore[union-attr]


def head(axes: Axes, text: str, more: str = "", small: Sequence[str] = (), letters: int = 0) -> None:
    """Write the title of a panel, `text: more`, in two lines if need be, of so many letters; beneath it `small`."""
    letters = letters or int(BESIDE * letters_in(axes))
    text = text.replace(" rank", "\u00a0rank") + (":" if more else "")
    whole = f"{text} {more}".rstrip()
    lines = [line for part in ([whole] if len(whole) <= letters else [text, more]) for line in wrapped(part, letters)]
    axes.set_title("\n".join(lines), pad=4 + 9 * len(small))
    axes.annotate("\n".join(small), (0.5, 1), (0, 3), "axes fraction", "offset points", ha="center")


def label_outer(axes: Sequence[Axes], x: str, y: str) -> None:
    """Name the axes where it is needed: x below the lowest panels, y beside the leftmost, in lines that fit."""
    columns, height_in = columns_of(axes[0]), axes[0].get_figure(root=True).get_figheight()  # type: ignore[union-attr]
    height_in = height_in / -(-len(axes) // columns) - 0.6
    lines = "\n".join(wrapped(y, max(10, int(height_in / LETTER_IN))))
    for number, one in enumerate(axes):
        one.set_xlabel(in_lines(x, one) if number + columns >= len(axes) else "")
        one.set_ylabel(lines if number % columns == 0 else "")


def in_lines(text: str, axes: Axes) -> str:
    """Return `text` in lines that are no wider than a panel."""
    return "\n".join(wrapped(text, letters_in(axes)))


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` letters; a longer word has a line of its own."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)  # a no-break space is no space


def say(axes: Axes, text: str) -> None:
    """Write in the middle of a panel why it is empty."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#d0d0d0")
    axes.text(0.5, 0.5, in_lines(text, axes), ha="center", va="center", color=INK, transform=axes.transAxes)


def nothing(coverage: str, why: str, table: pd.DataFrame | None = None) -> Figure:
    """Return a figure that says why no run can be drawn: the first reason of a table, or `why` where it gives none."""
    figure, (axes,) = grid(1, 1.6)
    say(axes, f"no eligible runs: {why if table is None else first_reason(table, why)}")
    return finished(figure, coverage)


def first_reason(rows: pd.DataFrame, why: str) -> str:
    """Return the first reason that rows give for what they lack, or `why`."""
    return str(next(iter(rows["reason"].dropna()), why))


def finished(
    figure: Figure,
    coverage: str,
    notes: Sequence[str] = (),
    legend: Sequence[Artist] = (),
    marked: pd.DataFrame | None = None,
) -> Figure:
    """Return a figure, grown by its legend above the panels, if it has one, and by what is missing beneath them.

    What its reader must know else is the label of the figure, which `save` adds to the caption: `notes`, and the marks
    of the rows `marked`.
    """
    width, lines = figure.get_figwidth(), []
    if legend:
        _add_legend(figure, legend)
    texts = [*notes, *([] if marked is None else mark_notes(marked))]
    scales = [one.xaxis.get_major_formatter() for one in figure.axes]
    if any(isinstance(names, Thinned) and "" in names.seq for names in scales):
        texts.append("Each world size has a tick; numbers stand where there is room.")
    if "missing" in coverage:
        texts.append(f"Coverage: {coverage.rstrip('.')}.")
        lines = wrapped(f"Coverage: {coverage}", int(width / LETTER_IN))
    figure.set_label(" ".join(texts))
    foot_in = LINE_IN * len(lines) + 2 * FOOT_IN if lines else 0.0
    whole_in = figure.get_figheight() + foot_in
    figure.set_figheight(whole_in)
    share = foot_in / whole_in
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))  # type: ignore[union-attr, call-arg]
    if lines:
        figure.text(0.01, FOOT_IN / whole_in, "\n".join(lines), color=INK, va="bottom", linespacing=1.25)
    return figure


def _add_legend(figure: Figure, legend: Sequence[Artist]) -> None:
    """Grow a figure by a legend above its panels, in as many columns as fit; wide labels have more lines."""
    width, labels = figure.get_figwidth(), []
    for one in legend:
        text = str(one.get_label())
        labels.append([text] if _fits(text, width) else wrapped(text, int((width - HANDLE_IN) / LETTER_IN)))
        one.set_label("\n".join(labels[-1]))
    every = list(itertools.chain(*labels))
    fitting = (number for number in range(len(labels), 1, -1) if all(_fits(line, width / number) for line in every))
    columns = next(fitting, 1)
    rows = -(-len(labels) // columns)
    lines = max(sum(map(len, labels[at : at + rows])) for at in range(0, len(labels), rows))
    figure.set_figheight(figure.get_figheight() + LINE_IN * lines)
    drawn = figure.legend(handles=list(legend), loc="outside upper left", ncols=columns, handlelength=2.4)
    for one, *parts in zip(legend, drawn.legend_handles, drawn.get_texts(), strict=True):
        if name := one.get_gid():
            for part in filter(None, parts):
                part.set_gid(name.replace(SERIES, KEY, 1))


def _fits(label: str, width_in: float) -> bool:
    """Return whether a line of a legend, with its handle, fits."""
    return HINTED * _outline_in(label) + HANDLE_IN <= width_in


@cache
def _outline_in(label: str) -> float:
    """Return how wide the outlines of a line's letters are, in inches."""
    return float(TextPath((0, 0), label, size=TEXT).get_extents().width) / 72
