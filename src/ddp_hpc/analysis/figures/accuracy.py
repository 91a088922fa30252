"""Accuracy (or error) and loss on the test set, over epochs and over training time, a line per setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import key_of, rows_of, split, varying
from ddp_hpc.analysis.figures._panels import group_columns, matching, title
from ddp_hpc.analysis.figures._style import (
    COLOURS,
    LINES,
    OVERSUBSCRIBED,
    PAGE_IN,
    legend_above,
    nothing,
    plain_numbers,
    small_print,
)
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study

INPUTS = ("evaluations", "winners")
CAPTION = (
    "Metric and loss on the whole test set over epochs and over training time, without the time of the evaluations: "
    "medians over the runs of a setting, the band spans them."
)
ON_REQUEST = True

MOST_LINES = len(COLOURS)
PANEL_IN = 1.75
WIDE = 30  # ratio of the largest to the least loss from which on its axis is logarithmic
FEW = 30  # ratio from which on only decades are named
# not said where the rest tells lines apart
RARELY_SAID = ("evaluate_every_steps", "base_batch_size", "learning_rate_warm_up_steps", "ranks_per_node", "placement")
BEYOND = 4  # times the median time of the lines, which a panel shows at most


@dataclass(frozen=True)
class Line:
    """A setting, and the medians of its runs at each evaluation."""

    words: str
    points: pd.DataFrame  # epoch or samples, seconds, metric, loss, and the least and largest of the last two
    scaling: str | None = None  # of the learning rate


def draw(tables: Mapping[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return four panels: metric and loss over epochs and over seconds; again for more than eight settings.

    Args:
        tables: `evaluations`, and `winners`, which alone are drawn where more settings were searched than lines fit.
        study: says what is searched.
        coverage: how many of the planned runs there are.
    """
    evaluations = tables["evaluations"]
    ended = evaluations[evaluations["status"] == "ok"]
    if ended.empty:
        return nothing("no eligible runs: none has ended well", coverage)
    counts = ended.groupby("run")["step"].transform("size")
    if (counts < 2).all():
        return nothing("no run was evaluated on its way: `evaluate_every_steps` in the study", coverage)
    watched = ended[counts > 1]
    settings = [name for name in SPEC_COLUMNS if name in watched and name != "seed"]
    chosen = watched
    if len(list(split(watched, settings))) > MOST_LINES:
        chosen = _winners(watched, tables["winners"], group_columns(watched, study))
    lines = _lines(chosen, settings)
    chunks = _chunks(lines)
    figure = Figure((PAGE_IN, 2 * PANEL_IN * len(chunks)), layout="constrained")
    axes = figure.subplots(2 * len(chunks), 2, squeeze=False, sharex="col", sharey="row")
    progress, along = ("epoch", "epochs") if chosen["epoch"].notna().all() else ("samples_seen", "samples seen")
    metric = ", ".join(sorted(chosen["test_metric_name"].dropna().unique()))
    handles: list[Line2D] = []
    for number, part in enumerate(chunks):
        rows = axes[2 * number : 2 * number + 2]
        handles += _chunk(rows, part, progress, number)
        for one, words in zip(rows[:, 0], (f"test {metric}", "test loss"), strict=True):
            one.set_ylabel(words)
    _scale(axes, lines)
    for one, words in zip(axes[-1], (along, "training time (s)"), strict=True):
        one.set_xlabel(words)
    legend_above(figure, handles)
    small_print(figure, coverage, _notes(watched, chosen, lines))
    return figure


def _winners(watched: pd.DataFrame, winners: pd.DataFrame, groups: list[str]) -> pd.DataFrame:
    """Return the runs that won their group; of a group without a winner all runs."""
    kept = []
    for key, rows in split(watched, groups):
        won = [
            str(row["winner_runs"]).split() for row in rows_of(matching(winners, key)) if pd.notna(row["winner_runs"])
        ]
        best = rows[rows["run"].isin([run for runs in won for run in runs])]
        kept.append(best if len(best) else rows)
    return pd.concat(kept)


def _lines(evaluations: pd.DataFrame, settings: list[str]) -> list[Line]:
    """Return a line per setting, in the words that tell it from the others; fewest ranks first."""
    groups = [(key, _points(rows)) for key, rows in split(evaluations, settings)]
    groups.sort(key=lambda one: (key_of(one[0], ["world_size"]), one[0].get("exchange") != "none"))
    keys = [{name: key[name] for name in settings} for key, _ in groups]
    differ = set(varying(evaluations))
    for name in RARELY_SAID:
        if len({title(key, differ - {name}) for key in keys}) == len(keys):
            differ -= {name}
    short = [title(key, differ - {"learning_rate_scaling"}) for key in keys]
    whole = [title(key, differ) for key in keys]
    words = [one if short.count(one) == 1 else other for one, other in zip(short, whole, strict=True)]
    scalings = [key.get("learning_rate_scaling") for key in keys]
    return [Line(text, points, scaling) for text, (_, points), scaling in zip(words, groups, scalings, strict=True)]


def _chunks(lines: list[Line]) -> list[list[Line]]:
    """Return what shares panels: all lines if they are few, else those with one scaling of the rate, by eights."""
    if len(lines) <= MOST_LINES:
        return [lines]
    alike: dict[Any, list[Line]] = {}
    for line in lines:
        alike.setdefault(line.scaling, []).append(line)
    return [part[at : at + MOST_LINES] for part in alike.values() for at in range(0, len(part), MOST_LINES)]


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is drawn of a setting, by step."""
    by_step = rows.groupby("step", sort=True)
    columns: dict[str, Any] = {name: by_step[name].median() for name in ("epoch", "samples_seen", "t_s")}
    for name in ("test_metric", "test_loss"):
        columns |= {name: by_step[name].median(), f"{name}_least": by_step[name].min()}
        columns[f"{name}_largest"] = by_step[name].max()
    points = pd.DataFrame(columns).astype("float64").reset_index()
    return points.assign(oversubscribed=bool(rows["oversubscribed"].fillna(False).any()))


def _chunk(axes: "np.ndarray[Any, np.dtype[Any]]", lines: Sequence[Line], progress: str, before: int) -> list[Line2D]:
    """Draw up to eight lines into two rows of two panels; return them for the legend."""
    handles = []
    for number, line in enumerate(lines):
        look: dict[str, Any] = {
            "color": COLOURS[number],
            "linestyle": LINES[(number + before) % len(LINES)],
        }
        hollow = bool(line.points["oversubscribed"].any())
        for row, name in zip(axes, ("test_metric", "test_loss"), strict=True):
            for one, x in zip(row, (progress, "t_s"), strict=True):
                _curve(one, line.points, x, name, look, hollow and x == "t_s")
        handles.append(
            Line2D(
                [], [], label=line.words, marker="o" if hollow else "", markerfacecolor="#ffffff", markersize=3, **look
            )
        )
    return handles


def _curve(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Mapping[str, Any], hollow: bool) -> None:
    across = points[x].to_numpy(float)
    least, largest = (points[f"{y}_{end}"].to_numpy(float) for end in ("least", "largest"))
    axes.fill_between(across, least, largest, color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(across, points[y].to_numpy(float), linewidth=1.1, **look)
    if hollow:
        axes.plot(
            across[-1:],
            points[y].to_numpy(float)[-1:],
            "o",
            color=look["color"],
            markerfacecolor="#ffffff",
            markersize=3.5,
        )


def _scale(axes: "np.ndarray[Any, np.dtype[Any]]", lines: Sequence[Line]) -> None:
    """Begin the axes at 0, that of a metric which is a share at 1 too; losses of many sizes on a logarithmic one."""
    metrics = np.concatenate([line.points["test_metric"].to_numpy(float) for line in lines])
    losses = np.concatenate([line.points["test_loss"].to_numpy(float) for line in lines])
    losses = losses[np.isfinite(losses)]
    last = 1.02 * _last(lines)
    for number, row in enumerate(axes):
        for one in row:
            one.set_xlim(left=0)
            one.grid(True, color="#e4e4e4", linewidth=0.5)
            one.set_axisbelow(True)
        row[1].set_xlim(0, last)
        values = losses if number % 2 else metrics
        if number % 2 and values.min() > 0 and values.max() > WIDE * values.min():
            row[0].set_yscale("log")
            plain_numbers(row[0].yaxis, FEW)
        elif values.min() >= 0:
            row[0].set_ylim(0, 1.04 * max(values.max(), 1e-9))


def _last(lines: Sequence[Line]) -> float:
    """Return the seconds to show: up to the end of the longest line, unless it takes several times the median."""
    ends = [float(line.points["t_s"].max()) for line in lines]
    return min(max(ends), BEYOND * float(np.median(ends)))


def _notes(watched: pd.DataFrame, chosen: pd.DataFrame, lines: Sequence[Line]) -> list[str]:
    runs = chosen.groupby([name for name in SPEC_COLUMNS if name in chosen and name != "seed"], dropna=False)["run"]
    most = int(runs.nunique().max())
    notes = ["Training time is without evaluations."]
    if most > 1:
        notes.append(f"Lines: medians over up to {most} runs; bands: from the least to the largest.")
    if len(chosen) < len(watched):
        notes.append("Of each group the winner only, if it has one: there are too many settings for lines.")
    if any(float(line.points["t_s"].max()) > _last(lines) for line in lines):
        notes.append(f"The time axis ends at {BEYOND} x the median of the lines: some go on beyond.")
    if any(line.points["oversubscribed"].any() for line in lines):
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    return notes
