"""Time against cost to the end of the budget, to the loss threshold and to a test metric, with the Pareto front."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import paid, rows_of, split
from ddp_hpc.analysis.figures._curves import Look, by_line, handles, numbered
from ddp_hpc.analysis.figures._layout import finished, grid, head, label_outer, nothing
from ddp_hpc.analysis.figures._panels import columns_but, title
from ddp_hpc.analysis.figures._style import GREY, HEADROOM, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("cost",)
CAPTION = (
    "Time against cost of a training to the end of its budget and to what else it is to reach; numbers are ranks, and "
    "on the grey line nothing is both sooner there and cheaper."
)

MOST_LINES = 6
WIDE = 8.0  # times: the ends of an axis that is logarithmic
FRONT: dict[str, Any] = {"color": GREY, "linewidth": 2.4, "alpha": 0.5, "zorder": 0.5, "drawstyle": "steps-post"}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each goal and whatever else differs but the exchange and the ranks."""
    table = tables["cost"]
    known = table[table["time_s"].notna()].reset_index(drop=True)
    if known.empty:
        return nothing(coverage, "none has several ranks", table)
    of_a_line = ["exchange", "exchange_options", "kind", "batch"]
    apart = columns_but(known, "world_size", "batch_size", *of_a_line[:2])
    lined, looks = numbered(known.assign(batch=known["batch"].astype(str)), [*of_a_line, *apart], study, "exchange")
    lined, looks, left_out = _most_measured(lined, looks)
    shown = list(split(lined, [*apart, "goal"]))
    figure, axes = grid(len(shown), 2.4, most_columns=2)
    by, currency = paid(known), next(iter(known["currency"].dropna()), "")
    for one, (key, rows) in zip(axes, shown, strict=True):
        _panel(one, rows, looks, by)
        words = title({name: key[name] for name in apart}, set(apart))
        head(one, f"to the end of the {key['goal']}" if key["goal"] == "budget" else f"to {key['goal']}", words)
    label_outer(axes, "training time (s)", f"cost ({currency or by})" if by == "money" else "rank-hours")
    legend = [
        *handles(looks),
        Line2D([], [], label="predicted", color=GREY, marker="o", markerfacecolor="#ffffff", linestyle="none"),
        Line2D([], [], label="Pareto front", **{name: FRONT[name] for name in ("color", "linewidth", "alpha")}),
    ]
    notes = ["Slanting strokes: 95 % intervals of the time, and of the cost with it."]
    notes += [f"{left_out} lines of the table left out, which have fewer runs."] if left_out else []
    return finished(figure, coverage, notes + _unsaid(table), legend)


def _most_measured(lined: pd.DataFrame, looks: list[Look]) -> tuple[pd.DataFrame, list[Look], int]:
    """Return the lines with the most runs, with their looks, and how many are left out."""
    runs = lined.groupby("line")["runs"].sum().sort_values(ascending=False, kind="stable")
    kept = sorted(runs.index[:MOST_LINES])
    rows = lined[lined["line"].isin(kept)]
    kinds = rows.drop_duplicates("line").set_index("line")
    named = [
        looks[line] | {"label": f"{looks[line]['label']}, {kinds['kind'][line]} {kinds['batch'][line]}"}
        for line in kept
    ]
    return rows.assign(line=rows["line"].map(kept.index)), named, len(runs) - len(kept)


def _panel(axes: Axes, rows: pd.DataFrame, looks: list[Look], by: str) -> None:
    """Draw the lines over the ranks, what was predicted hollow, and the front with its ranks in numbers."""
    for number, part in by_line(rows.sort_values("world_size")):
        x, y, colour = part["time_s"].to_numpy(float), part[by].to_numpy(float), looks[number]["color"]
        ends = [part[f"time_{end}_s"].to_numpy(float) for end in ("low", "high")]
        axes.plot(ends, [y * end / x for end in ends], color=colour, linewidth=0.8)
        axes.plot(x, y, **looks[number] | {"marker": ""})
        hollow = (part["from"] == "predicted").to_numpy(bool)
        for some, face in ((~hollow, colour), (hollow, "#ffffff")):
            if some.any():
                axes.plot(x[some], y[some], **looks[number] | {"linestyle": "", "markerfacecolor": face})
    front = rows[rows["on_front"].fillna(False).astype(bool)].sort_values("time_s").drop_duplicates(["time_s", by])
    axes.plot(front["time_s"].to_numpy(float), front[by].to_numpy(float), **FRONT)
    for row in rows_of(front):
        axes.annotate(f"{row['world_size']}", (row["time_s"], row[by]), (3, 3), textcoords="offset points")
    for axis, values in ((axes.xaxis, rows["time_s"]), (axes.yaxis, rows[by])):
        _scale(axes, axis.axis_name, values.to_numpy(float))
        plain_numbers(axis)


def _scale(axes: Axes, name: str, values: "np.ndarray[Any, np.dtype[np.float64]]") -> None:
    """End an axis by what is drawn; it is logarithmic where that differs much."""
    low, high = float(values.min()), float(values.max())
    if high > WIDE * low > 0:
        getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"set_{name}lim")(low / 1.4, high * 1.4)
    else:
        getattr(axes, f"set_{name}lim")(0, 1.1 * HEADROOM * high)


def _unsaid(table: pd.DataFrame) -> list[str]:
    """Return why some goals have no cost at some world sizes: the most common reason."""
    lacking = table[table["time_s"].isna() & table["reason"].notna()]
    if lacking.empty:
        return []
    reason = lacking["reason"].value_counts().index[0]
    return [f"{len(lacking)} rows of the table have no cost: {reason}." if len(lacking) > 1 else f"No cost: {reason}."]
