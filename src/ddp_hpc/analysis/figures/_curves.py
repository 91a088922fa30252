"""Curves through the points of a table: markers, intervals, offsets of neighbours, and the axis of ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._layout import Thinned, say, width_of
from ddp_hpc.analysis.figures._marks import face, ring
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import COLOURS, HEADROOM, LINES, MARKERS

Values = NDArray[np.float64]
OF_EXCHANGES = ("exchange", "exchange_options", "placement", "ranks_per_node")  # what is usually a line
MOST_INTERVAL = 1.6  # times the largest value: where intervals are cut
MOST_LINEAR = 8  # ranks; beyond, their axis is logarithmic
TICK_LETTER_IN, BESIDE_IN = 0.055, 0.6  # width of a letter of a tick, and of what stands beside a panel
APART_PT = 3.0  # between the curves of a panel, sideways, so that none hides another
SIDE_BY_SIDE = "Curves stand a little beside one another at each world size, so that none hides another."
ROOM = 0.7  # share of the distance between neighbours along x that all curves take together, at most


def look(number: int, **more: Any) -> dict[str, Any]:
    """Return colour, line and marker of a panel's n-th curve, and whatever else is said of its look.

    Colour and line, and colour and marker, are unique among 64 curves, the three among 512.
    """
    turn, place = divmod(number, len(COLOURS))
    line, marker = (place + turn) % len(LINES), (place + 3 * turn + turn // len(LINES)) % len(MARKERS)
    looks = {"color": COLOURS[place], "linestyle": LINES[line], "marker": MARKERS[marker]}
    return {"markersize": 4.0} | looks | more


def numbered(frame: pd.DataFrame, columns: Iterable[str], *named: str) -> tuple[pd.DataFrame, list[str]]:
    """Return a table with the number of each row's curve, `line`, and what sets the curves apart, in words.

    A curve is the rows that have `columns` in common, of which not all need to be there; those `named` are named also
    where all curves have the same value. The index has no duplicates.
    """
    differ, names, numbers = {*varying(frame), *named}, [], pd.Series(0, index=frame.index)
    for number, (key, rows) in enumerate(split(frame, [name for name in columns if name in frame])):
        numbers[rows.index] = number
        names.append(title(key, differ))
    return frame.assign(line=numbers), names


def by_line(rows: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield number and rows of each curve that `numbered` has told apart."""
    for _, part in rows.groupby("line"):
        yield int(part["line"].iloc[0]), part


def handles(names: Iterable[str]) -> list[Line2D]:
    """Return the curves of `look` for a legend; one that nothing sets apart is what was measured."""
    return [Line2D([], [], label=name or "measured", **look(number)) for number, name in enumerate(names)]


def curves(axes: Axes, rows: pd.DataFrame, x: str, y: str, factor: float = 1.0, apart: int = 0) -> None:
    """Draw the `numbered` curves of a panel: a line, its points with their marks, and intervals where there are any.

    The ends of the intervals are named as the column y is: of `sync_s`, `sync_low_s`. `factor` is of all that is drawn;
    so many curves as `apart` says stand a little beside one another, so that none hides another: then the ends of the
    axis are set.
    """
    for number, part in by_line(rows.sort_values(x, kind="stable")):
        across, (middle, low, high) = part[x].to_numpy(float), (factor * one for one in _values(part, y))
        if apart:
            across = _aside(axes, np.unique(rows[x].to_numpy(float)), number, apart)(across)
        looks = look(number)
        known = np.isfinite(low) & np.isfinite(high)
        axes.vlines(across[known], low[known], high[known], color=looks["color"], linewidth=0.8)
        axes.plot(across, middle, **looks | {"marker": ""})
        for one, other, row in zip(across, middle, rows_of(part), strict=True):
            axes.plot(one, other, **looks | {"linestyle": ""}, markerfacecolor=face(row, looks["color"]), clip_on=False)
            ring(axes, one, other, row)


def _aside(axes: Axes, values: Values, number: int, apart: int) -> Callable[[Values], Values]:
    """Return what moves values along x, each by so little that it stays nearer to itself than to its neighbours."""
    places = _inches(axes, values)
    gaps = np.diff(places, prepend=-np.inf, append=np.inf)
    steps = np.minimum(APART_PT / 72, ROOM * np.minimum(gaps[:-1], gaps[1:]) / apart)
    low, per_inch = _along(axes)
    moved = low + per_inch * (places + (number - (apart - 1) / 2) * steps)
    found = axes.transScale.inverted().transform([(place, 1.0) for place in moved])[:, 0]
    return lambda those: found[np.searchsorted(values, those)]


def _values(rows: pd.DataFrame, y: str) -> tuple[Values, ...]:
    """Return a column and the ends of its intervals, NaN where there are none."""
    unit = "_s" if y.endswith("_s") else ""
    names = (y, *(f"{y.removesuffix(unit)}_{end}{unit}" for end in ("low", "high")))
    return tuple(rows[name].to_numpy(float) if name in rows else np.full(len(rows), np.nan) for name in names)


def top_of(rows: pd.DataFrame, y: str, factor: float = 1.0) -> float:
    """Return where an axis from 0 ends: above all values, and above intervals that do not reach far beyond them."""
    middle, _, high = _values(rows, y)
    largest = float(np.nanmax([0.0, *middle]))
    return HEADROOM * factor * min(float(np.nanmax([largest, *high])), MOST_INTERVAL * largest) if largest > 0 else 1.0


def over_ranks(
    axes: Axes, rows: pd.DataFrame, y: str, why: str, factor: float = 1.0, *, apart: int = 0, top: float | None = None
) -> None:
    """Draw the curves of a panel over the ranks, from 0 to their `top`; where y is never known, say `why`."""
    shown = rows[rows[y].notna()]
    if shown.empty:
        say(axes, why)
        return
    world_size_axis(axes, rows["world_size"])
    curves(axes, shown, "world_size", y, factor, apart)
    axes.set_ylim(0, top or top_of(shown, y, factor))


def interval_note(rows: pd.DataFrame, words: str = "Bars: 95 % intervals, cut at the axes") -> str:
    """Return the small print about intervals: of what they are."""
    return f"{words}: {'; '.join(sorted(rows['interval_from'].dropna().unique()))}."


def world_size_axis(axes: Axes, world_sizes: Iterable[int]) -> bool:
    """Name each world size, on a logarithmic axis where there are large ones; return whether it is."""
    ranks = sorted(set(map(int, world_sizes)))
    wide, around = ranks[-1] > MOST_LINEAR, 0.1 * (ranks[-1] - ranks[0]) or 0.5
    if wide:
        axes.set_xscale("log", base=2)
    axes.set_xlim(*(ranks[0] / 1.3, 1.3 * ranks[-1]) if wide else (ranks[0] - around, ranks[-1] + around))
    named_ticks(axes, ranks)
    return wide


def named_ticks(axes: Axes, values: Iterable[int]) -> None:
    """Put a tick at each value along x, and nowhere else; numbers stand where they fit, the last one always."""
    ticks = sorted(values)
    inches = _inches(axes, ticks)
    halves = [TICK_LETTER_IN * (len(f"{tick:g}") + 1) / 2 for tick in ticks]
    free, end, names = -np.inf, inches[-1] - halves[-1], []
    for tick, place, half in zip(ticks, inches, halves, strict=True):
        fits = place - half >= free and (place + half <= end or tick == ticks[-1])
        free = place + half if fits else free
        names.append(f"{tick:g}" if fits else "")
    axes.set_xticks(ticks)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(Thinned(names))


def _inches(axes: Axes, values: Sequence[float] | Values) -> Values:
    """Return where values stand along the axis of x, from its end."""
    low, per_inch = _along(axes)
    found: Values = (axes.transScale.transform([(value, 1.0) for value in values])[:, 0] - low) / per_inch
    return found


def _along(axes: Axes) -> tuple[float, float]:
    """Return where the axis of x begins on its scale, and how much of that is an inch."""
    low, high = axes.transScale.transform([(end, 1.0) for end in axes.get_xlim()])[:, 0]
    return float(low), float((high - low) / (width_of(axes) - BESIDE_IN))
