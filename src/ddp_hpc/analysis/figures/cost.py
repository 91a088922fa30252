"""Time against cost to the end of the budget, to the loss threshold and to a test metric, with the Pareto front."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import key_of, paid, rows_of, split
from ddp_hpc.analysis.figures._curves import Look, by_line, colour_and_name, handles, numbered
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, nothing
from ddp_hpc.analysis.figures._panels import columns_but, title
from ddp_hpc.analysis.figures._style import GREY, INK, UNITS, plain_numbers, time_unit
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study
from ddp_hpc.system.terminal import counted

INPUTS = ("cost",)
CAPTION = (
    "Time against cost of a training to the end of its budget and to what else it is to reach, both logarithmic: left "
    "is sooner, low is cheaper."
)

MOST_LINES = 6
ROOM = 1.25  # times: from what is drawn to the ends of an axis
MOST_BEYOND = 2.5  # times: so far beyond the points an axis makes room for intervals
FRONT: dict[str, Any] = {"color": GREY, "linewidth": 3.2, "alpha": 0.4, "zorder": 0.5, "drawstyle": "steps-post"}
GUIDE: dict[str, Any] = {"color": "#d8d8d8", "linewidth": 0.5, "zorder": 0.2}
BATCHES = {"strong": "global batch {}", "weak": "batch {} per rank"}
OF_RANKS = {
    "us": "rank-microseconds",
    "ms": "rank-milliseconds",
    "s": "rank-seconds",
    "min": "rank-minutes",
    "h": "rank-hours",
}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each goal and whatever else differs but the exchange and the ranks."""
    table = tables["cost"]
    known = table[table["time_s"] > 0].reset_index(drop=True)
    if known.empty:
        return nothing(coverage, "none has several ranks", table)
    of_a_line = ["exchange", "exchange_options", "kind", "batch"]
    apart = columns_but(known, "world_size", "batch_size", *of_a_line[:2])
    every = known.assign(batch=known["batch"].astype(str))
    kept, left_out = _few(numbered(every, [*of_a_line, *apart], study)[0])
    lined, looks = numbered(kept, [*of_a_line, *apart], study, "exchange")
    looks = _named(lined, looks)
    by = paid(known)
    rank_s = UNITS["h"] * lined["rank_hours"]
    (unit, size), (of_cost, of_one) = time_unit(lined["time_s"]), time_unit(rank_s)
    lined = lined.assign(x=lined["time_s"] / size, y=lined["money"] if by == "money" else rank_s / of_one)
    shown = list(split(lined, [*apart, "goal"]))
    figure, axes = grid(len(shown), 2.1, most_columns=2)
    for one, (key, rows) in zip(axes, shown, strict=True):
        _panel(one, rows, looks, "nodes" if by == "money" else "world_size")
        words = title({name: key[name] for name in apart}, set(apart))
        to = "to the end of the budget" if key["goal"] == "budget" else f"to {key['goal']}"
        head(one, to, words, [""])  # beneath it room for the numbers of ranks
    currency = next(iter(known["currency"].dropna()), by)
    label_outer(axes, f"training time ({unit})", f"cost ({currency if by == 'money' else OF_RANKS[of_cost]})")
    notes = _notes(lined, by)
    if left_out:
        notes.append(f"{counted(left_out, 'line')} of the table left out: what was measured on them is on those shown.")
    return finished(figure, coverage, notes + _unsaid(table), _legend(lined, looks))


def _legend(lined: pd.DataFrame, looks: list[Look]) -> list[Line2D]:
    """Return the lines, and the marks that the panels have."""
    predicted = Line2D([], [], label="predicted", color=GREY, linestyle="none", marker="o", markerfacecolor="#ffffff")
    front = Line2D([], [], label="Pareto front", **{name: FRONT[name] for name in ("color", "linewidth", "alpha")})
    return [*handles(looks), *([predicted] if _predicted(lined).any() else []), front]


def _notes(lined: pd.DataFrame, by: str) -> list[str]:
    """Return what a caption says of front, intervals and hollow points."""
    along = "nodes" if by == "money" else "ranks"
    notes = [f"On the thick grey line nothing else is both sooner there and cheaper; thin grey lines: as many {along}."]
    if lined["time_low_s"].notna().any():
        notes.append("Shades along them: 95 % intervals, of time and cost together.")
    return [*notes, *(["Hollow: predicted."] if _predicted(lined).any() else [])]


def _predicted(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows["from"] == "predicted"


def _few(lined: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows of the lines with the most points that were measured or are on the front, and how many others.

    A point can be on a line of equal batches per rank and on one of equal global batches. Lines that add no such point
    are left out, and a point of several lines is drawn with the first one of them: elsewhere it is `again` there.
    """
    place = [name for name in lined if name in SPEC_COLUMNS]
    counting = lined[~_predicted(lined) | lined["on_front"].fillna(False).astype(bool)].groupby("line")
    points = {line: {key_of(row, place) for row in rows_of(rows)} for line, rows in counting}
    kept: list[Any] = []
    for line in sorted(points, key=lambda line: (-len(points[line]), line)):
        if not points[line] <= set().union(*(points[other] for other in kept)) and len(kept) < MOST_LINES:
            kept.append(line)
    rows = lined[lined["line"].isin(kept)].sort_values("line", kind="stable")
    return rows.assign(again=rows.duplicated([*place, "goal"])).sort_index(), lined["line"].nunique() - len(kept)


def _named(lined: pd.DataFrame, looks: list[Look]) -> list[Look]:
    """Return the looks of the lines, named also by which batch is constant along them."""
    kinds = lined.drop_duplicates("line").set_index("line")
    return [
        one | {"label": f"{one['label']}, {BATCHES[str(kinds['kind'][line])].format(kinds['batch'][line])}"}
        for line, one in enumerate(looks)
    ]


def _panel(axes: Axes, rows: pd.DataFrame, looks: list[Look], along: str) -> None:
    """Draw the lines over the ranks, what was predicted hollow, and the front."""
    axes.set(xscale="log", yscale="log")
    for number, part in by_line(rows.sort_values("world_size")):
        colour, name = colour_and_name(looks[number])
        x, y = part["x"].to_numpy(float), part["y"].to_numpy(float)
        axes.plot(x, y, **looks[number] | {"marker": ""})
        new = part[~part["again"]]
        ratios = [(new[f"time_{end}_s"] / new["time_s"]).to_numpy(float) for end in ("low", "high")]
        ends = [[ratio * new[name].to_numpy(float) for ratio in ratios] for name in ("x", "y")]
        axes.plot(*ends, color=colour, gid=name, linewidth=3.0, alpha=0.3, solid_capstyle="butt", zorder=1.5)
        for some, inside in ((~_predicted(new), colour), (_predicted(new), "#ffffff")):
            if some.any():
                axes.plot(
                    new["x"][some], new["y"][some], **looks[number] | {"linestyle": "", "markerfacecolor": inside}
                )
    front = rows[rows["on_front"].fillna(False).astype(bool)].sort_values("x").drop_duplicates(["x", "y"])
    axes.plot(front["x"].to_numpy(float), front["y"].to_numpy(float), **FRONT)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        getattr(axes, f"set_{name}lim")(_ends(rows, name))
        plain_numbers(axis)
    _guides(axes, rows, along)


def _ends(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """Return the ends of an axis: around all points, and intervals that do not reach far beyond them."""
    low, high = float(rows[name].min()), float(rows[name].max())
    lows, highs = ((rows[name] * rows[f"time_{end}_s"] / rows["time_s"]).dropna() for end in ("low", "high"))
    low = min([low, max(low / MOST_BEYOND, min(lows, default=low))])
    high = max([high, min(high * MOST_BEYOND, max(highs, default=high))])
    return low / ROOM, high * ROOM


def _guides(axes: Axes, rows: pd.DataFrame, along: str) -> None:
    """Draw the line of equal ranks, or nodes, through their points, and name it where it leaves the panel."""
    (left, right), (_, top) = axes.get_xlim(), axes.get_ylim()
    for number, (_, part) in enumerate(rows.groupby(along)):
        slopes, n = part["y"] / part["x"], int(part[along].iloc[0])
        if slopes.max() > 1.01 * slopes.min():
            continue  # of several prices
        slope = float(slopes.median())
        axes.plot([left, right], [slope * left, slope * right], **GUIDE)
        word = f"{n}" if number else counted(n, "node" if along == "nodes" else "rank")
        look: dict[str, Any] = {"xy": (right, slope * right), "xytext": (2, 0), "va": "center"}
        if slope * right > top:
            look = {"xy": (top / slope, top), "xytext": (0, 1), "ha": "center"}
        axes.annotate(word, textcoords="offset points", color=INK, annotation_clip=False, **look)


def _unsaid(table: pd.DataFrame) -> list[str]:
    """Return why some goals have no cost at some world sizes: the most common reason."""
    lacking = table[table["time_s"].isna() & table["reason"].notna()]
    if lacking.empty:
        return []
    reason = lacking["reason"].value_counts().index[0]
    return [f"{counted(len(lacking), 'row')} of the table without a cost: {reason}."]
