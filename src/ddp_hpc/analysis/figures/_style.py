"""The style of all figures: two widths, letters of 7 points, seaborn's theme and colours, numbers of an axis."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

if "IPython" not in sys.modules:  # a notebook shows figures in its own way
    os.environ["MPLBACKEND"] = "Agg"  # a login node has no display, and a wrong value would stop the import

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter

SIZES = {"column": 3.4, "page": 7.0}  # inches: a column of a journal, and both
COLUMN_IN, PAGE_IN = SIZES.values()
TEXT = 7.0  # points, of all letters
NARROW = 3.0  # times: the ends of a logarithmic axis on which 1, 2 and 5 are too few
FEW_DECADES = 100  # ratio of the ends of a logarithmic axis up to which more than the decades is named
HEADROOM = 1.1  # of an axis over what is drawn
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
ENOUGH = 2.0  # of a unit have most times on its axis

# a colour means one thing in all figures: vermilion a winner, crimson time that is lost, the others an exchange
_palette: list[str] = sns.color_palette("colorblind").as_hex()
_BLUE, _ORANGE, _GREEN, WINNER, _PURPLE, _BROWN, _PINK, GREY, _, _SKY = _palette
EXCHANGES = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _BROWN, _PINK)
LOST = "#b0174b"
INK = "#404040"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.4}  # of a bar
IDEAL: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 2))}

_asked_in: ContextVar[float | None] = ContextVar("width of figures that is asked for", default=None)


@contextmanager
def style(size: str | None = None) -> Iterator[None]:
    """Draw and save with our settings, whatever the user's matplotlibrc says; as wide as `size`, if it is given."""
    letters = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans",  # comes with matplotlib
        "legend.facecolor": "#ffffff",
        "legend.edgecolor": "none",
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.0,
        "lines.markersize": 4.0,
        "hatch.linewidth": 0.5,
        **{f"{axis}tick.{kind}": value for axis in "xy" for kind, value in (("major.width", 0.6), ("major.size", 3.0))},
        "svg.hashsalt": "ddp-hpc",
        "pdf.fonttype": 42,
        "savefig.dpi": 300,
    }
    asked = _asked_in.set(SIZES[size] if size else None)
    with mpl.rc_context():
        mpl.rcdefaults()
        theme = sns.axes_style("ticks") | sns.plotting_context("paper") | dict.fromkeys(letters, TEXT)
        mpl.rcParams.update(theme | settings)
        yield
    _asked_in.reset(asked)


def width_in(suits: float) -> float:
    """Return how wide a figure is: what was asked for, or what `suits` it."""
    return _asked_in.get() or suits


def plain_numbers(axis: Axis) -> None:
    """Write the numbers of an axis in full, 0.2 and not 2 x 10^-1, large ones in thousands: 20k.

    Of a logarithmic axis the 1, 2 and 5 of each decade are named, of a long one the decades alone, of a short one all.
    """

    def minor(value: float, _: int | None) -> str:
        low, high = sorted(axis.get_view_interval())
        named = high < NARROW * low or (high < FEW_DECADES * low and f"{value:e}"[0] in "25")
        return _plain(value) if named else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(FuncFormatter(minor))


def _plain(value: float) -> str:
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def three_digits(value: float) -> str:
    """Return a number in three digits, or whole: 0.0123, 1.23, 1234."""
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e5 else f"{value:.3g}"


def time_unit(seconds: "pd.Series[float]") -> tuple[str, float]:
    """Return the unit for an axis of times, and its seconds: the largest of which the middle one of them has enough."""
    middle = float(seconds.median())
    return next(
        ((unit, size) for unit, size in reversed(UNITS.items()) if middle >= ENOUGH * size), ("us", UNITS["us"])
    )


def name_bars(axis: Axis, names: Sequence[str], **look: Any) -> None:
    """Name the bars along an axis, which stand at 0, 1, 2 ..."""
    axis.set_ticks(range(len(names)), names, **look)
    axis.set_tick_params(length=0)
