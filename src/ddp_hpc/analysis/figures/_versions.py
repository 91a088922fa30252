"""How the points of a study developed over versions of the code: the figure of `ddp-hpc history`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.figures._layout import LETTER_IN, finished, grid, nothing, width_of
from ddp_hpc.analysis.figures._style import EXCHANGES, GREY, HEADROOM, INK, PAGE_IN

CAPTION = "Step time of each point over the versions, against the first version in which it was trained."
MOST_NAMED = 5
EACH: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "alpha": 0.8, "zorder": 1}
MIDDLE: dict[str, Any] = {"color": INK, "linewidth": 1.8, "zorder": 2}
SLOWER, FASTER = "^", "v"
BESIDE_IN = 0.7
LEAST_SHOWN = 0.05  # of the step time: a change for which the axis has room at least, in both directions


def draw(points: pd.DataFrame, versions: Sequence[str]) -> Figure:
    """Return the figure of rows with `point`, `version` (its number), `value`, `low`, `high` and `verdict`.

    Points that have changed by more than the noise are named and coloured, those that changed most first; the verdicts
    `worse` and `better` have a mark.
    """
    several = points.groupby("point").filter(lambda rows: len(rows) > 1)
    if several.empty:
        return nothing("", "no point was trained in several versions")
    figure, (axes,) = grid(1, 2.4, suits_in=PAGE_IN)
    lines = {str(name): _against_first(rows) for name, rows in several.groupby("point", sort=False)}
    changed = {name: rows for name, rows in lines.items() if rows["verdict"].isin(("worse", "better")).any()}
    most = sorted(changed, key=lambda name: -float((changed[name]["value"] - 1).abs().max()))[:MOST_NAMED]
    for name, rows in lines.items():
        if name not in most:
            axes.plot(rows["version"], rows["value"], **EACH)
    middle = pd.concat(lines.values()).groupby("version")["value"].median()
    axes.plot(middle.index, middle, **MIDDLE)
    looks: dict[str, dict[str, Any]] = {name: {"color": EXCHANGES[number]} for number, name in enumerate(most)}
    for number, name in enumerate(most):
        _changed(axes, lines[name], looks[name], (number - (len(most) - 1) / 2) * 0.03)
    _around(axes, versions, lines)
    legend = [
        Line2D([], [], label="median of all points", **MIDDLE),
        *([Line2D([], [], label="a point", **EACH)] if len(most) < len(lines) else []),
        *(Line2D([], [], label=name, **look) for name, look in looks.items()),
        *(
            Line2D([], [], label=words, color=INK, marker=mark, linestyle="none")
            for verdict, mark, words in (("worse", SLOWER, "slower"), ("better", FASTER, "faster"))
            if any((rows["verdict"] == verdict).any() for rows in changed.values())
        ),
    ]
    notes = ["Triangles: another step time than in the version before by more than the noise."] if changed else []
    notes += ["Bars: 95 % intervals, cut at the axes."] if most else []
    not_judged = int((points["verdict"] == "not judged").sum())
    notes += [f"Not judged: {not_judged} of the values; the page says why."] if not_judged else []
    rest = len(changed) - len(most)
    notes += [f"{rest} more that changed {'is' if rest == 1 else 'are'} not named."] if rest else []
    return finished(figure, "", notes, legend)


def _against_first(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values("version")
    first = float(rows["value"].iloc[0])
    return rows.assign(**{name: rows[name] / first for name in ("value", "low", "high")})


def _changed(axes: Axes, rows: pd.DataFrame, look: Mapping[str, Any], aside: float) -> None:
    x = rows["version"].to_numpy(float) + aside
    axes.vlines(x, rows["low"], rows["high"], linewidth=0.8, zorder=3, **look)
    axes.plot(x, rows["value"], zorder=3, **look)
    for verdict, mark in (("worse", SLOWER), ("better", FASTER)):
        those = (rows["verdict"] == verdict).to_numpy(bool)
        axes.plot(x[those], rows["value"][those], marker=mark, markersize=6, linestyle="none", zorder=4, **look)


def _around(axes: Axes, versions: Sequence[str], lines: Mapping[str, pd.DataFrame]) -> None:
    """Name the axes: each version where there is room, step times in percent."""
    axes.axhline(1, color=GREY, linewidth=0.6, zorder=0)
    values = pd.concat(lines.values())["value"]
    least, most = min(float(values.min()), 1 - LEAST_SHOWN), max(float(values.max()), 1 + LEAST_SHOWN)
    axes.set_ylim(1 - HEADROOM * (1 - least), 1 + HEADROOM * (most - 1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * (value - 1):+.0f} %" if abs(value - 1) > 1e-9 else "0")
    axes.set_ylabel("step time against the first version")
    letters = max(map(len, versions)) + 2
    fit = max(1, int((width_of(axes) - BESIDE_IN) / (letters * LETTER_IN)))
    named = np.unique(np.linspace(0, len(versions) - 1, min(fit, len(versions))).round().astype(int))
    axes.set_xticks(range(len(versions)), [name if at in named else "" for at, name in enumerate(versions)])
    axes.set_xlim(-0.3, len(versions) - 0.7)
    axes.set_xlabel("version of the code (commit), in the order of time")
