"""Curves through the points of a table: markers, intervals, offsets of neighbours, and the axis of ranks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform, blended_transform_factory
from numpy.typing import NDArray

from ddp_hpc.analysis.columns import key_of, rows_of, split, varying
from ddp_hpc.analysis.figures._layout import LETTER_IN, SERIES, Thinned, say, width_of
from ddp_hpc.analysis.figures._marks import face, ring
from ddp_hpc.analysis.figures._panels import exchange_words, title
from ddp_hpc.analysis.figures._style import EXCHANGES, GREY, HEADROOM, LINES, MARKERS
from ddp_hpc.config.study import Study

Values = NDArray[np.float64]
Look = dict[str, Any]  # colour, line and marker of a curve, its label in a legend, and its name in an SVG file: `gid`
OF_EXCHANGES = ("exchange", "exchange_options", "placement", "ranks_per_node")  # what is usually a line
MOST_INTERVAL = 2.4  # times the largest value: where intervals are cut
BEYOND: Look = {"marker": "^", "markersize": 3.5, "linestyle": "", "clip_on": False}  # an interval goes on
MOST_LINEAR = 8  # ranks; beyond, their axis is logarithmic
BESIDE_IN = 0.6  # width of what stands beside a panel
APART_PT = 3.0  # between the curves of a panel, sideways, so that none hides another
SIDE_BY_SIDE = "Curves stand a little beside one another, so that none hides another."
ROOM = 0.7  # share of the distance between neighbours along x that all curves take together, at most


def colour_of(exchange: str, study: Study) -> str:
    """Return the colour of an exchange, which it has in all figures of a study; without exchange it is grey."""
    return GREY if exchange == "none" else EXCHANGES[[*study.exchanges, exchange].index(exchange) % len(EXCHANGES)]


def look(colour: str, number: int, of: int) -> Look:
    """Return the look of a curve of a colour, the n-th of so many: its shade, dash and marker.

    Shade and dash, and shade and marker, are unique in a colour, also where the shades look alike.
    """
    if of > 1:
        colour = sns.blend_palette(["#000000", colour, "#ffffff"], 2 * of + 1).as_hex()[of // 2 + number + 1]
    turn, place = divmod(number, len(LINES))
    return {"color": colour, "linestyle": LINES[(place + turn) % len(LINES)], "marker": MARKERS[place]}


def looks_of(keys: Sequence[Mapping[str, Any]], words: Sequence[str], study: Study) -> list[Look]:
    """Return the looks of curves: the colour says which exchange, shade, dash and marker say the rest.

    Where curves differ in their exchange alone, dash and marker say it, too. A curve that nothing sets apart is named
    by its exchange.
    """
    exchanges = [str(key.get("exchange", "measured")) for key in keys]
    parts = [tuple((name, key_of(key, [name])) for name in key if name != "exchange") for key in keys]
    # of more exchanges than colours those that have the same one differ in the rest
    rest = [(part, study.exchanges[len(EXCHANGES) :].count(one)) for part, one in zip(parts, exchanges, strict=True)]
    seen = list(dict.fromkeys(rest))
    alike, numbers = len(seen) == 1, list(dict.fromkeys(exchanges))
    return [
        look(colour_of(one, study), numbers.index(one) if alike else seen.index(part), len(seen))
        | {"label": said or exchange_words(one), "gid": SERIES + re.sub(r"\W+", "-", said or one)}
        for one, part, said in zip(exchanges, rest, words, strict=True)
    ]


def numbered(frame: pd.DataFrame, columns: Iterable[str], study: Study, *named: str) -> tuple[pd.DataFrame, list[Look]]:
    """Return a table with the number of each row's curve, `line`, and the looks of the curves.

    A curve is the rows that have `columns` in common, of which not all need to be there; those `named` are named also
    where all curves have the same value. The index has no duplicates.
    """
    differ, keys, numbers = {*varying(frame), *named}, [], pd.Series(0, index=frame.index)
    for number, (key, rows) in enumerate(split(frame, [name for name in columns if name in frame])):
        numbers[rows.index] = number
        keys.append(key)
    return frame.assign(line=numbers), looks_of(keys, [title(key, differ) for key in keys], study)


def by_line(rows: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield number and rows of each curve that `numbered` has told apart."""
    for _, part in rows.groupby("line"):
        yield int(part["line"].iloc[0]), part


def colour_and_name(one: Look) -> tuple[str, str | None]:
    """Return what else is drawn of a curve has in common with it: its colour, its name in an SVG file, if any."""
    return one["color"], one.get("gid")


def handles(looks: Iterable[Look]) -> list[Line2D]:
    """Return curves for a legend."""
    return [Line2D([], [], **one) for one in looks]


def curves(
    axes: Axes,
    rows: pd.DataFrame,
    looks: Sequence[Look],
    x: str,
    y: str,
    factor: float = 1.0,
    *,
    apart: bool = False,
    top: float = np.inf,
) -> None:
    """Draw the `numbered` curves of a panel: a line, its points with their marks, and intervals where there are any.

    The ends of the intervals are named as the column y is: of `sync_s`, `sync_low_s`. `factor` is of all that is drawn;
    with `apart` curves stand a little beside one another, so that none hides another; then the axis has its ends. Where
    the axis ends at `top`, an arrow shows which intervals go on beyond.
    """
    for number, part in by_line(rows.sort_values(x, kind="stable")):
        across, (middle, low, high) = part[x].to_numpy(float), (factor * one for one in _values(part, y))
        (colour, name), where = colour_and_name(looks[number]), axes.transData
        if apart:
            where = _aside(axes, np.unique(rows[x].to_numpy(float)), number, len(looks))
        known = np.isfinite(low) & np.isfinite(high)
        axes.vlines(across[known], low[known], high[known], color=colour, linewidth=0.8, transform=where, gid=name)
        above = blended_transform_factory(where, axes.transAxes)
        for one in across[known & (high > top)]:
            axes.plot(one, 1.0, **BEYOND, color=colour, transform=above, gid=name)
        axes.plot(across, middle, transform=where, **looks[number] | {"marker": ""})
        points = looks[number] | {"linestyle": "", "transform": where, "clip_on": False}
        for one, other, row in zip(across, middle, rows_of(part), strict=True):
            axes.plot(one, other, **points, markerfacecolor=face(row, colour))
            ring(axes, one, other, row, transform=where, gid=name)


def _aside(axes: Axes, values: Values, number: int, of: int) -> Transform:
    """Return what moves the n-th of so many curves along x, so little that points stay nearest to their place."""
    gap_in = float(np.diff(_inches(axes, values)).min(initial=np.inf))
    step_in = min(APART_PT / 72, ROOM * gap_in / of)
    inches = axes.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]
    return axes.transData + ScaledTranslation((number - (of - 1) / 2) * step_in, 0, inches)


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
    axes: Axes, rows: pd.DataFrame, looks: Sequence[Look], y: str, why: str, factor: float = 1.0, **more: Any
) -> None:
    """Draw the curves of a panel over the ranks, from 0 to their `top`; where y is never known, say `why`."""
    shown = rows[rows[y].notna()]
    if shown.empty:
        say(axes, why)
        return
    world_size_axis(axes, rows["world_size"])
    top = more.pop("top", None) or top_of(shown, y, factor)
    curves(axes, shown, looks, "world_size", y, factor, top=top, **more)
    axes.set_ylim(0, top)


def interval_note(rows: pd.DataFrame, words: str = "Bars: 95 % intervals, an arrow where one leaves the axis") -> str:
    """Return what a caption says about intervals: of what they are."""
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
    halves = [LETTER_IN * (len(f"{tick:g}") + 1) / 2 for tick in ticks]
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
    ends, places = (axes.transScale.transform([(x, 1.0) for x in these])[:, 0] for these in (axes.get_xlim(), values))
    found: Values = (places - ends[0]) / (ends[1] - ends[0]) * (width_of(axes) - BESIDE_IN)
    return found
