"""What a parameter server does in a step over the ranks: SHM-Learn-Dist (Biswas, 2017), figures 6.4 to 6.6, and more.

The source's time to gather holds what rank 0 waits for the slowest rank; here waiting and moving have a panel each.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from ddp_hpc.analysis.columns import rows_of, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    SMALL,
    grid,
    head,
    label_outer,
    legend_above,
    nothing,
    plain_numbers,
    say,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("server_times",)
CAPTION = "Times at a parameter server per step, at rank 0, over the ranks: means and their 95 % intervals."
ON_REQUEST = True

PANELS = {
    "gather_wait": "gather: waiting",
    "gather_move": "gather: moving",
    "average": "average",
    "distribute": "distribute",
}
HEADROOM = 1.12  # of the axis over what is drawn
MOST = 1.6  # times the highest mean, where intervals are cut
ASIDE_IN = 0.035  # between lines, at the same ranks
MOST_LINEAR = 8  # ranks, up to which their axis is linear


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each time in milliseconds, a line for each setting that differs in more than the ranks.

    Args:
        tables: `server_times`.
        study: the study.
        coverage: how many of the planned runs there are.
    """
    times = tables["server_times"]
    known = times[times["runs"] > 0]
    if known.empty:
        return nothing("no eligible runs: none of a parameter server has ended well", coverage)
    line_columns = [name for name in SPEC_COLUMNS if name in known and name != "world_size"]
    lines = list(split(known, line_columns))
    figure, axes = grid(len(PANELS), 1.75, most_columns=4)
    for one, (name, words) in zip(axes, PANELS.items(), strict=True):
        head(one, words)
        _panel(one, name, [rows for _, rows in lines], known)
    label_outer(axes, "world size (ranks)", "rank 0: ms per step")
    differ = set(varying(known))
    if len(lines) > 1:
        names = [title(key, differ) for key, _ in lines]
        legend_above(figure, [Line2D([], [], label=words, **_look(at)) for at, words in enumerate(names)])
    notes = [
        "Gathering is waiting, until the slowest rank has its gradients, and moving them; distributing is of weights."
    ]
    notes += [f"Bars: 95 % intervals, cut at the axes: {'; '.join(sorted(known['interval_from'].dropna().unique()))}."]
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    small_print(figure, coverage, notes)
    return figure


def _look(number: int) -> dict[str, Any]:
    looks = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {"markersize": 4} | {name: values[number % len(values)] for name, values in looks.items()}


def _panel(axes: Axes, name: str, lines: list[pd.DataFrame], known: pd.DataFrame) -> None:
    shown = known[known[f"{name}_s"].notna()]
    if shown.empty:
        say(axes, str(known["reason"].dropna().iloc[0]) if known["reason"].notna().any() else "not known")
        return
    top = MOST * 1e3 * float(shown[f"{name}_s"].max()) or 1.0
    highest = 0.0
    for number, line in enumerate(lines):
        rows, look = rows_of(line.sort_values("world_size")), _look(number)
        aside = ScaledTranslation(ASIDE_IN * (number - (len(lines) - 1) / 2), 0, axes.figure.dpi_scale_trans)
        look["transform"] = axes.transData + aside  # else intervals of several lines hide one another
        ranks, means = [row["world_size"] for row in rows], [1e3 * row[f"{name}_s"] for row in rows]
        axes.plot(ranks, means, **look | {"marker": ""})
        for row, mean in zip(rows, means, strict=True):
            hollow = pd.notna(row["oversubscribed"]) and row["oversubscribed"]
            face = "#ffffff" if hollow else look["color"]
            axes.plot(row["world_size"], mean, **look | {"linestyle": ""}, markerfacecolor=face, clip_on=False)
            ends = [1e3 * row[f"{name}_{end}_s"] for end in ("low", "high")]
            if pd.notna(ends).all():
                low, high = ends[0], min(ends[1], top)
                axes.vlines(
                    row["world_size"], low, high, color=look["color"], linewidth=0.8, transform=look["transform"]
                )
                highest = max(highest, high)
            highest = max(highest, mean)
    axes.set_ylim(0, HEADROOM * highest or 1.0)
    ranks_all = sorted(map(int, known["world_size"].unique()))
    first, last = ranks_all[0], ranks_all[-1]
    if last > MOST_LINEAR:
        axes.set_xscale("log", base=2)
        axes.set_xlim(first / 1.3, 1.3 * last)
    else:
        beside = 0.15 * (last - first) or 0.5
        axes.set_xlim(first - beside, last + beside)
    axes.set_xticks(ranks_all, minor=False)
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize=SMALL)
    plain_numbers(axes.xaxis)
