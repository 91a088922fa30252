"""Speedup and parallel efficiency over the ranks, with the ideal line and the spread."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_hpc.analysis.columns import search_columns, show, split, varying
from ddp_hpc.analysis.figures._curves import (
    MOST_LINEAR,
    SIDE_BY_SIDE,
    Look,
    by_line,
    colour_and_name,
    curves,
    handles,
    interval_note,
    looks_of,
    world_size_axis,
)
from ddp_hpc.analysis.figures._layout import finished, letters_in, nothing, wrapped
from ddp_hpc.analysis.figures._panels import columns_but, title
from ddp_hpc.analysis.figures._style import COLUMN_IN, IDEAL, PAGE_IN, plain_numbers, width_in
from ddp_hpc.config.comparability import SAME_WORK
from ddp_hpc.config.study import Study

INPUTS = ("scaling",)
CAPTION = (
    "Speedup and parallel efficiency against one rank without exchange: ratios of whole training times, medians; the "
    "band spans all complete runs."
)
GENERAL = True

MOST_LINES = 6
HEADROOM = 1.08  # of the axis over lines and ideal; bands may be cut
SAME = 1e-6  # relative difference of speedups that are the same number
TITLES = {
    "fixed samples": "fixed samples: batch per rank constant",
    "strong": "strong: global batch constant",
    "weak": "weak: batch per rank constant, rates",
}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return speedup above efficiency, a column of panels for each kind of scaling, and for each partition."""
    scaling = tables["scaling"]
    known = scaling[scaling["speedup"].notna()]
    if known.empty:
        return nothing(coverage, "none is planned", scaling)
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
    figure = Figure((width_in(PAGE_IN if len(columns) > 2 else COLUMN_IN), 3.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex="col", sharey="row")
    drawn = [lines(rows, study) for *_, rows in columns]
    every = pd.concat([rows.assign(kind=number) for number, (*_, rows) in enumerate(drawn)])
    looks = looks_of(
        [key for keys, *_ in drawn for key in keys], [word for _, words, _ in drawn for word in words], study
    )
    left = iter(looks)
    _scale(axes, every, int(known["world_size"].max()))
    for (upper, lower), (kind, key, _), (keys, _, rows) in zip(axes.T, columns, drawn, strict=True):
        upper.set_title("\n".join([*wrapped(TITLES[kind], letters_in(upper)), *map(show, key.values())]))
        these = [next(left) for _ in keys]
        _panel(upper, rows, "speedup", these)
        _panel(lower, rows, "efficiency", these)
    axes[0][0].set_ylabel("speedup")
    axes[1][0].set_ylabel("parallel efficiency")
    if left_out := int(every.drop_duplicates(["kind", "line"])["left_out"].sum()):
        notes.append(f"{left_out} rows of the table left out: points that have no speedup at some world size.")
    notes += [SIDE_BY_SIDE] if any(len(keys) > 1 for keys, *_ in drawn) else []
    if every["speedup_low"].notna().any():
        of = known[known["speedup_low"].notna()]
        notes.append(interval_note(of, "Vertical: 95 % intervals of single points, an arrow where one leaves the axis"))
    legend = {line.get_label(): line for line in handles(looks)}
    ideal = axes[0][0].lines[0]
    return finished(figure, coverage, notes, [ideal, *legend.values()], known)


def _same(known: pd.DataFrame) -> bool:
    """Return whether the ratios of rates are those of times, as they are where all runs see the same samples."""
    weak, fixed = (known[known["kind"] == kind]["speedup"].to_numpy(float) for kind in ("weak", "fixed samples"))
    return len(weak) == len(fixed) and bool(np.allclose(weak, fixed, rtol=SAME))


def lines(known: pd.DataFrame, study: Study) -> tuple[list[dict[str, Any]], list[str], pd.DataFrame]:
    """Return a panel's curves, also in words, and their points: one curve per exchange and whatever else varies.

    Each batch size has its own, where they are few.
    Values that are searched are no curves of their own but the spread of one, batches too where there are many; of
    these, points that have no speedup at some world size of a curve are left out.
    """
    batch = "global_batch_size" if (known["kind"] == "strong").all() else "batch_size"
    measured = known[known["exchange"] != "none"]
    rows = measured if len(measured) else known
    searched = {*search_columns(study), *(SAME_WORK - {"learning_rate"})}
    columns = columns_but(rows, "world_size", "batch_size", *searched)
    by_batch = list(split(rows, [*columns, batch]))
    differ = {*varying(rows), batch}
    groups = by_batch if len(by_batch) <= MOST_LINES else split(rows, columns)
    competing = [name for name in (*searched, batch) if name in rows]
    found = []
    for key, part in groups:
        whole = _throughout(part, competing)
        found.append((key, title(key, differ), _over_ranks(whole).assign(left_out=len(part) - len(whole))))
    found = [line for line in found if len(line[2]) > 1] or found
    rows = pd.concat([points.assign(line=number) for number, (*_, points) in enumerate(found)])
    for end in ("", "_least", "_largest", "_low", "_high"):
        rows[f"efficiency{end}"] = rows[f"speedup{end}"] / rows["world_size"]
    return [key for key, *_ in found], [words for _, words, _ in found], rows


def _throughout(part: pd.DataFrame, competing: list[str]) -> pd.DataFrame:
    """Return the points of a line that have a speedup at each of its world sizes, all if there are none.

    A median over other points at each world size would show how these differ, not how a training scales.
    """
    sizes = part.groupby(competing, dropna=False)["world_size"].transform("nunique")
    whole = part[sizes == part["world_size"].nunique()]
    return whole if len(whole) else part


def _over_ranks(part: pd.DataFrame) -> pd.DataFrame:
    """Return medians over points and repeats, and their range, by world size."""
    grouped = part.groupby("world_size", sort=True)
    how = {"speedup": "median", "speedup_least": "min", "speedup_largest": "max", "slow_steps_share": "max"}
    rows = grouped.agg(how).assign(oversubscribed=grouped["oversubscribed"].any())
    for end in ("speedup_low", "speedup_high"):  # of points taken together no interval is known
        rows[end] = grouped[end].first().where(grouped.size() == 1)
    rows = rows.reset_index()
    if 1 not in set(rows["world_size"]):  # then it starts at the baseline, whose speedup is 1
        start = dict.fromkeys(("world_size", "speedup", "speedup_least", "speedup_largest"), 1.0)
        rows = pd.concat([pd.DataFrame([dict.fromkeys(rows, np.nan) | start]), rows], ignore_index=True)
    return rows.astype(float)


def _panel(axes: Axes, rows: pd.DataFrame, column: str, looks: list[Look]) -> None:
    """Draw curves and their bands beside the ideal: as fast as the ranks are many, an efficiency of 1."""
    ranks = np.linspace(1, rows["world_size"].max(), 200)
    axes.plot(ranks, ranks if column == "speedup" else np.ones_like(ranks), label="ideal", **IDEAL)
    for number, part in by_line(rows):
        band = part[f"{column}_least"], part[f"{column}_largest"]
        colour, name = colour_and_name(looks[number])
        axes.fill_between(part["world_size"], *band, color=colour, gid=name, alpha=0.15, linewidth=0)
    curves(axes, rows, looks, "world_size", column, apart=True, top=axes.get_ylim()[1])


def _scale(axes: "np.ndarray[tuple[int, int], np.dtype[np.object_]]", every: pd.DataFrame, most: int) -> None:
    """End the axes, which all panels of a row share, by the lines and the ideal: a band may be cut."""
    wide = most > MOST_LINEAR
    ranks = sorted({1, most, *map(int, every["world_size"])})
    for upper, lower in axes.T:
        world_size_axis(upper, ranks)
        if wide:
            upper.set_yscale("log", base=2)
        plain_numbers(upper.yaxis)
        lower.set_xlabel("world size (ranks)")
    slowest = min(1.0, every["speedup"].min()) / HEADROOM if wide else 0
    axes[0][0].set_ylim(slowest, HEADROOM * max(every["speedup"].max(), most))
    axes[1][0].set_ylim(0, HEADROOM * max(1.0, every["efficiency"].max()))
