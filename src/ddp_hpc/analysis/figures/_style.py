"""How all figures look: sizes, colours that also read in grey and by the colour-blind, small print, empty figures."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

os.environ["MPLBACKEND"] = "Agg"  # a login node has no display, and a wrong value would stop the import

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLUMN_IN, PAGE_IN = 3.5, 7.0  # widths of one and two columns of a journal
LEGEND_LINE_IN, LEGEND_LETTER_IN, HANDLE_IN = 0.13, 0.047, 0.45  # of a legend: its lines, letters, what is beside
LINE_IN, FOOT_IN = 0.105, 0.04  # height of a line of small print, and of the space beneath and above
SMALL, TEXT = 5.5, 7.0  # points
NARROW = 3.0  # times: the ends of a logarithmic axis on which 1, 2 and 5 are too few
FEW_DECADES = 300  # ratio of the ends of a logarithmic axis up to which more than the decades is named
TITLE_LETTER_IN = 0.06  # width of a letter of 7 points

# Okabe and Ito, Color Universal Design (2008): the order alternates dark and light, so it also reads in grey
COLOURS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
GREY = "#8c8c8c"

OVERSUBSCRIBED = "ranks exceed the cores: times are not comparable"
SLOW = "more than a third of a run's training time went to steps slower than its median: not to be trusted"
RING: dict[str, Any] = {"color": "#D55E00", "markersize": 8.5, "markerfacecolor": "none", "markeredgewidth": 0.9}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save with our settings, whatever the user's matplotlibrc says."""
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": TEXT,
        "axes.titlesize": TEXT,
        "axes.labelsize": TEXT,
        "xtick.labelsize": 6.0,
        "ytick.labelsize": 6.0,
        "legend.fontsize": 6.0,
        "legend.frameon": True,
        "legend.facecolor": "#ffffff",
        "legend.edgecolor": "none",
        "legend.framealpha": 0.8,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.0,
        "hatch.linewidth": 0.5,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "svg.hashsalt": "ddp-hpc",
        "pdf.fonttype": 42,
        "savefig.dpi": 300,
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)  # type: ignore[arg-type]
        yield


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


def width_in(axes: Axes) -> float:
    """Return how wide a panel is, with what stands beside it."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "panels come from grid()"
    return figure.get_figwidth() / columns_of([axes])


def label_outer(axes: Sequence[Axes], x: str, y: str) -> None:
    """Name the axes where it is needed: x below the lowest panels, y beside the leftmost, in lines that fit."""
    columns, figure = columns_of(axes), axes[0].get_figure(root=True)
    assert figure is not None, "panels come from grid()"
    height_in = figure.get_figheight() / -(-len(axes) // columns) - 0.6
    lines = "\n".join(wrapped(y, max(10, int(height_in / TITLE_LETTER_IN))))
    for number, one in enumerate(axes):
        one.set_xlabel(x if number + columns >= len(axes) else "")
        one.set_ylabel(lines if number % columns == 0 else "")


def legend_above(figure: Figure, handles: Sequence[Artist]) -> None:
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


def plain_numbers(axis: Axis, few: float = FEW_DECADES) -> None:
    """Write the numbers of an axis in full, 0.2 and not 2 x 10^-1.

    Of a logarithmic axis the 1, 2 and 5 of each decade are named, or the decades alone where its ends are more than
    `few` times apart, or all marks where they are less than `NARROW` times apart.
    """

    def minor(value: float, _: int | None) -> str:
        low, high = sorted(axis.get_view_interval())
        named = high < NARROW * low or (high < few * low and f"{value:e}"[0] in "25")
        return f"{value:g}" if named else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(minor))


def small_print(figure: Figure, coverage: str, notes: Sequence[str] = ()) -> None:
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
    figure.text(
        0.01,
        FOOT_IN / figure.get_figheight(),
        "\n".join(lines),
        size=SMALL,
        color="#404040",
        va="bottom",
        linespacing=1.25,
    )


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` letters; a longer word has a line of its own."""
    lines = [""]
    for word in re.split(r"[ \t\n]+", text):  # a no-break space keeps words together
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def say(axes: Axes, text: str) -> None:
    """Write in the middle of a panel why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#d0d0d0")
    lines = "\n".join(wrapped(text, 36))
    axes.text(0.5, 0.5, lines, ha="center", va="center", size=TEXT, color="#404040", transform=axes.transAxes)


def nothing(text: str, coverage: str) -> Figure:
    """Return a figure that says why there is nothing to draw."""
    figure, (axes,) = grid(1, 1.6)
    say(axes, text)
    small_print(figure, coverage)
    return figure
