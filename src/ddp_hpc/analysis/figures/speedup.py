"""Speedup and parallel efficiency over the ranks, with the ideal line and the spread."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_hpc.analysis.columns import DISTURBED, search_columns, show, split, varying
from ddp_hpc.analysis.figures._panels import title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    OVERSUBSCRIBED,
    PAGE_IN,
    RING,
    SLOW,
    legend_above,
    nothing,
    plain_numbers,
    small_print,
)
from ddp_hpc.config.comparability import SAME_WORK
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("scaling",)
CAPTION = (
    "Speedup and parallel efficiency against one rank without exchange: ratios of whole training times, medians; the "
    "band spans all complete runs."
)

MOST_LINES = 6
MOST_LINEAR = 8  # ranks; beyond, both axes are logarithmic
HEADROOM = 1.08  # of the axis over lines and ideal; bands may be cut
SAME = 1e-6  # relative difference of speedups that are the same number


@dataclass(frozen=True)
class Line:
    """A curve of a panel: medians over points and repeats, and their range, by world size."""

    words: str
    rows: pd.DataFrame


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return speedup above efficiency, a column of panels for each kind of scaling, and for each partition.

    Args:
        tables: `scaling`.
        study: says what is searched.
        coverage: how many of the planned runs there are.
    """
    scaling = tables["scaling"]
    known = scaling[scaling["speedup"].notna()]
    if known.empty:
        reasons = scaling["reason"].dropna().value_counts()
        return nothing(f"no eligible runs: {reasons.index[0] if len(reasons) else 'none is planned'}", coverage)
    several = known[known["world_size"] > 1]
    shown = several if len(several) else known  # a kind with one rank only shows no scaling
    kinds = [kind for kind in scaling["kind"].unique() if (shown["kind"] == kind).any()]
    notes = [
        "Ratios of whole training times, slow steps included. Lines: medians. Bands: all complete runs of a line, cut "
        "at the axes."
    ]
    if {"weak", "fixed samples"} <= set(kinds) and _same(known):
        kinds.remove("weak")
        notes.append("Weak scaling (ratio of rates) is the same as fixed samples: all runs saw the same samples.")
    if "weak" in kinds:
        notes.append("Weak: ratios of samples per second of training.")
    apart = [name for name in ("partition",) if name in varying(known)]  # other GPUs: panels of their own
    columns = [(kind, key, rows) for kind in kinds for key, rows in split(known[known["kind"] == kind], apart)]
    columns = [column for column in columns if (column[2]["world_size"] > 1).any()] or columns
    figure = Figure((PAGE_IN if len(columns) > 1 else 3.5, 3.4), layout="constrained")
    drawn: list[Line] = []
    axes = figure.subplots(2, len(columns), squeeze=False, sharex="col", sharey="row")
    most = int(known["world_size"].max())
    for (upper, lower), (kind, key, rows) in zip(axes.T, columns, strict=True):
        upper.set_title("\n".join([_title(kind) if len(columns) < 3 else kind, *map(show, key.values())]))
        drawn += _panel(upper, lower, rows, study, most)
    _limits(axes[0][0], axes[1][0], drawn, most)
    handles = {str(line.get_label()): line for upper in axes[0] for line in upper.lines}
    legend_above(figure, [line for words, line in handles.items() if not words.startswith("_")])
    axes[0][0].set_ylabel("speedup")
    axes[1][0].set_ylabel("parallel efficiency")
    for lower in axes[1]:
        lower.set_xlabel("world size (ranks)")
    bases = sorted(known.loc[known["speedup_low"].notna(), "interval_from"].unique())
    if any(line.rows["low"].notna().any() for line in drawn):
        notes.append(f"Vertical: 95 % intervals, where a marker is one point, cut at the axes: {'; '.join(bases)}.")
    if known["oversubscribed"].any():
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    if (known["slow_steps_share"] > DISTURBED).any():
        notes.append(f"Ringed: {SLOW}.")
    small_print(figure, coverage, notes)
    return figure


def _same(known: pd.DataFrame) -> bool:
    """Return whether the ratios of rates are those of times, as they are where all runs see the same samples."""
    weak, fixed = (known[known["kind"] == kind]["speedup"].to_numpy(float) for kind in ("weak", "fixed samples"))
    return len(weak) == len(fixed) and bool(np.allclose(weak, fixed, rtol=SAME))


def _title(kind: str) -> str:
    return {
        "fixed samples": "fixed samples: batch per rank constant",
        "strong": "strong: global batch constant",
        "weak": "weak: batch per rank constant, rates",
    }[kind]


def lines(known: pd.DataFrame, study: Study) -> list[Line]:
    """Return the curves of a panel: one per exchange and whatever else varies, one per batch if these are few.

    Values that are searched are no curves of their own but the spread of one, batches too where there are many.
    """
    batch = "global_batch_size" if (known["kind"] == "strong").all() else "batch_size"
    measured = known[known["exchange"] != "none"]
    rows = measured if len(measured) else known
    left_out = {"world_size", "batch_size", *search_columns(study), *(SAME_WORK - {"learning_rate"})}
    columns = [name for name in SPEC_COLUMNS if name in rows and name not in left_out]
    by_batch = list(split(rows, [*columns, batch]))
    few = len(by_batch) <= MOST_LINES
    differ = {*varying(rows), *([batch] if rows[batch].nunique() > 1 else [])}
    found = []
    for key, part in by_batch if few else split(rows, columns):
        words = title({name: key[name] for name in key if name != "world_size"}, differ)
        found.append(Line(words if words != "all" else "", _over_ranks(part)))
    several = [line for line in found if len(line.rows) > 1]
    return several or found


def _over_ranks(part: pd.DataFrame) -> pd.DataFrame:
    grouped = part.groupby("world_size", sort=True)
    rows = pd.DataFrame(
        {
            "speedup": grouped["speedup"].median(),
            "least": grouped["speedup_least"].min(),
            "largest": grouped["speedup_largest"].max(),
            "low": grouped["speedup_low"].first().where(grouped.size() == 1),  # of points taken together none is known
            "high": grouped["speedup_high"].first().where(grouped.size() == 1),
            "oversubscribed": grouped["oversubscribed"].any(),
            "slow": grouped["slow_steps_share"].max() > DISTURBED,
        }
    ).reset_index()
    if 1 not in set(rows["world_size"]):  # then it starts at the baseline, whose speedup is 1
        start = {"world_size": 1, "speedup": 1.0, "least": 1.0, "largest": 1.0, "oversubscribed": False, "slow": False}
        rows = pd.concat([pd.DataFrame([start | {"low": np.nan, "high": np.nan}]), rows], ignore_index=True)
    return rows.astype(float)


def _panel(upper: Axes, lower: Axes, known: pd.DataFrame, study: Study, most: int) -> list[Line]:
    drawn = lines(known, study)
    ranks = sorted({int(rank) for line in drawn for rank in line.rows["world_size"]} | {1})
    ideal = np.linspace(1, ranks[-1], 200)
    upper.plot(ideal, ideal, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), label="ideal")
    lower.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
    for number, line in enumerate(drawn):
        for axes, over in ((upper, 1.0), (lower, line.rows["world_size"].to_numpy())):
            _curve(axes, line, over, number)
    for axes in (upper, lower):
        if most > MOST_LINEAR:
            axes.set_xscale("log", base=2)
        axes.set_xticks(ranks if most > MOST_LINEAR or len(ranks) < 9 else ranks[::2])
        axes.set_xticks([], minor=True)
        plain_numbers(axes.xaxis)
    if most > MOST_LINEAR:
        upper.set_yscale("log", base=2)
        plain_numbers(upper.yaxis)
    return drawn


def _limits(upper: Axes, lower: Axes, drawn: list[Line], most: int) -> None:
    """End the axes, which all panels of a row share, by the lines and the ideal: a band may be cut."""
    fastest = max(float(line.rows["speedup"].max()) for line in drawn)
    slowest = min(float(line.rows["speedup"].min()) for line in drawn)
    best = max(float((line.rows["speedup"] / line.rows["world_size"]).max()) for line in drawn)
    upper.set_ylim(0 if most <= MOST_LINEAR else min(1.0, slowest) / HEADROOM, HEADROOM * max(fastest, most))
    lower.set_ylim(0, HEADROOM * max(1.0, best))


def _curve(axes: Axes, line: Line, over: "float | np.ndarray[tuple[int], np.dtype[np.float64]]", number: int) -> None:
    """Draw a curve and its band, divided by `over`: 1 for the speedup, the ranks for the efficiency."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    ranks, middle = line.rows["world_size"].to_numpy(), line.rows["speedup"].to_numpy() / over
    axes.fill_between(
        ranks, line.rows["least"] / over, line.rows["largest"] / over, color=colour, alpha=0.15, linewidth=0
    )
    known = line.rows["low"].notna().to_numpy()
    ends = [(middle - line.rows["low"] / over)[known], (line.rows["high"] / over - middle)[known]]
    axes.errorbar(ranks[known], middle[known], ends, fmt="none", ecolor=colour, elinewidth=0.7, capsize=1.5)
    axes.plot(ranks, middle, color=colour, linestyle=LINES[number % len(LINES)], linewidth=1.0)
    for rank, value, hollow in zip(ranks, middle, line.rows["oversubscribed"], strict=True):
        axes.plot(rank, value, marker, color=colour, markersize=4.5, markerfacecolor="#ffffff" if hollow else colour)
    slow = line.rows["slow"].to_numpy(bool)
    axes.plot(ranks[slow], middle[slow], "o", linestyle="none", **RING)
    axes.plot(
        [], [], marker, color=colour, linestyle=LINES[number % len(LINES)], markersize=4, label=line.words or "measured"
    )
