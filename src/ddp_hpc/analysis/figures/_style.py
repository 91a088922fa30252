"""The style of all figures: sizes, colours that are legible in grey and for the colour-blind, numbers of an axis."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

os.environ["MPLBACKEND"] = "Agg"  # a login node has no display, and a wrong value would stop the import

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter

COLUMN_IN, PAGE_IN = 3.5, 7.0  # widths of one and two columns of a journal
SMALL, TEXT = 5.5, 7.0  # points
NARROW = 3.0  # times: the ends of a logarithmic axis on which 1, 2 and 5 are too few
FEW_DECADES = 300  # ratio of the ends of a logarithmic axis up to which more than the decades is named
HEADROOM = 1.1  # of an axis over what is drawn

# Okabe and Ito, Color Universal Design (2008): the order alternates dark and light, so it also reads in grey
COLOURS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
GREY, INK = "#8c8c8c", "#404040"
EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.4}  # of a bar
IDEAL: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 2))}


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


def rule(axes: Axes) -> None:
    """Draw light lines behind a panel, at the numbers of its axes."""
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)


def name_bars(axis: Axis, names: Sequence[str], **look: Any) -> None:
    """Name the bars along an axis, which stand at 0, 1, 2 ..."""
    axis.set_ticks(range(len(names)), names, **look)
    axis.set_tick_params(length=0)
