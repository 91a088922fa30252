"""Where parallel efficiency is lost: from one rank to the most, bar by bar, a panel per exchange and batch size."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddp_hpc.analysis.columns import key_of, rows_of, split, varying
from ddp_hpc.analysis.figures._layout import columns_of, finished, grid, head, label_outer, nothing, room_for
from ddp_hpc.analysis.figures._marks import DAGGER, DOUBLE_DAGGER, OVERSUBSCRIBED, daggers, mark_notes
from ddp_hpc.analysis.figures._panels import columns_but, title
from ddp_hpc.analysis.figures._style import EDGE, GREY, INK, LOST, name_bars
from ddp_hpc.config.study import Study

INPUTS = ("waterfall",)
CAPTION = (
    "Efficiency waterfall: from one rank without exchange to the largest world size, and what is lost on the way; "
    "the bars add up to the loss."
)
GENERAL = True

PANEL_IN, MOST_COLUMNS = 2.2, 3
END: dict[str, Any] = EDGE | {"facecolor": GREY}
LOSS: dict[str, Any] = EDGE | {"facecolor": LOST}
GAIN: dict[str, Any] = EDGE | {"facecolor": "#ffffff", "hatch": "////"}
ROOM = 0.14  # of the axis, beside the bars, for numbers
LEAST = 0.05  # of an efficiency, in percent: smaller bars are nothing


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return horizontal bars of percent of parallel efficiency, from the top down."""
    table = tables["waterfall"]
    known = table[table["bar"].notna() & (table["from_world_size"] == 1)]
    if known.empty:
        return nothing(coverage, "none has several ranks", table)
    columns = columns_but(known, "world_size")
    every = [_largest(rows) for _, rows in split(known, [*columns, "kind"])]
    shown, left_out = _few(every, [name for name in columns if name != "batch_size"])
    differ = {*varying(known), "batch_size"}
    figure, axes = grid(len(shown), PANEL_IN, MOST_COLUMNS)
    for number, (one, rows) in enumerate(zip(axes, shown, strict=True)):
        first = rows_of(rows)[0]
        head(one, title({name: first[name] for name in [*columns, "world_size"]}, differ), f"{first['kind']} scaling")
        _bars(one, rows_of(rows))
        names = ["one rank, no exchange", *rows["bar"], "all ranks"]
        leftmost = number % columns_of(one) == 0
        name_bars(one.yaxis, names if leftmost else [""] * len(names))
    label_outer(axes, "parallel efficiency (%)", "")
    legend = [Patch(label="efficiency", **END), Patch(label="lost", **LOSS)]
    if (known["lost_efficiency"] < -LEAST / 100).any():
        legend.append(Patch(label="gained", **GAIN))
    drawn = pd.concat(shown)
    notes = [
        "Bars add up from the efficiency of the one rank, 100 %, to that of all. ?: not known, and part of another bar."
    ]
    if known["oversubscribed"].any() and not drawn["oversubscribed"].any():
        notes.append(f"Left out are world sizes at which {OVERSUBSCRIBED}.")
    return finished(figure, coverage, [*notes, *left_out, *mark_notes(drawn, DAGGER, DOUBLE_DAGGER)], legend)


def _few(every: list[pd.DataFrame], columns: list[str]) -> tuple[list[pd.DataFrame], list[str]]:
    """Return the panels for which a figure has room, of too many those of the best batch size; and what that leaves."""
    most = room_for(PANEL_IN, MOST_COLUMNS)
    if len(every) <= most:
        return every, []
    best: dict[tuple[Any, ...], tuple[float, pd.DataFrame]] = {}
    for rows in every:
        first = rows_of(rows)[0]
        key = key_of(first, [*columns, "kind"])
        if key not in best or first["efficiency"] > best[key][0]:
            best[key] = (first["efficiency"], rows)
    kept = sorted(best.values(), key=lambda one: -one[0])[:most]
    places = {id(rows) for _, rows in kept}
    shown = [rows for rows in every if id(rows) in places]
    words = "the batch size with the best efficiency for each exchange and kind of scaling"
    return shown, [f"Shown are {len(shown)} of {len(every)} panels: {words}; all are in the table."]


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the largest world size, of one that has a core for every thread if there is any."""
    fit = rows[~rows["oversubscribed"].astype(bool)]
    counted = fit if len(fit) else rows
    largest: pd.DataFrame = counted[counted["world_size"] == counted["world_size"].max()]
    return largest


def _bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw one waterfall: 100 % at the top, each bar from where the one before it ended, the efficiency below."""
    at, least, most = 100.0, 100.0, 100.0
    axes.barh(0, 100.0, 0.7, **END)
    labels = [(0, 100.0, "100")]
    for place, row in enumerate(rows, 1):
        if pd.isna(row["lost_efficiency"]):
            labels.append((place, at, "?"))
            continue
        lost = 100 * row["lost_efficiency"]
        axes.plot([at, at], [place - 1.35, place + 0.35], color=INK, linewidth=0.5)
        axes.barh(place, -lost, 0.7, left=at, **(LOSS if lost >= 0 else GAIN))
        labels.append((place, max(at, at - lost), f"{-lost:+.1f}" if abs(lost) >= LEAST else "0"))
        at -= lost
        least, most = min(least, at), max(most, at)
    efficiency = 100 * rows[0]["efficiency"]
    axes.barh(len(rows) + 1, efficiency, 0.7, **END)
    labels.append((len(rows) + 1, efficiency, f"{efficiency:.0f} {daggers(rows[0])}".rstrip()))
    width = most - min(0.0, least)
    for place, x, text in labels:
        axes.annotate(text, (x, place), (2, 0), textcoords="offset points", va="center")
    axes.set_xlim(min(0.0, least) * 1.05, most + ROOM * width)
    axes.set_ylim(len(rows) + 1.6, -0.6)
    axes.axvline(0, color=INK, linewidth=0.6)
