"""Accuracy (or error) and loss on the test set, over epochs and over training time, a line per setting."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import key_of, split, varying
from ddp_hpc.analysis.figures._curves import Look, colour_and_name, handles, looks_of
from ddp_hpc.analysis.figures._layout import finished, nothing
from ddp_hpc.analysis.figures._marks import OVERSUBSCRIBED
from ddp_hpc.analysis.figures._panels import columns_but, group_columns, title
from ddp_hpc.analysis.figures._style import PAGE_IN, plain_numbers, width_in
from ddp_hpc.config.study import Study

INPUTS = ("evaluations", "winners")
CAPTION = (
    "Metric and loss on the whole test set over epochs and over training time, without the time of the evaluations: "
    "medians over the runs of a setting, the band spans them."
)

MOST_LINES = 8
PANEL_IN = 1.75
WIDE = 30  # ratio of the largest to the least loss from which on its axis is logarithmic
# not said where the rest tells lines apart
RARELY_SAID = ("evaluate_every_steps", "base_batch_size", "learning_rate_warm_up_steps", "ranks_per_node", "placement")
HOLLOW: dict[str, Any] = {"markerfacecolor": "#ffffff", "markersize": 3.5}
OVER_RUNS: dict[str, Any] = {
    "estimator": "median",
    "errorbar": ("pi", 100),
    "legend": False,
}
BAND = {"alpha": 0.18, "linewidth": 0}
BEYOND = 4  # times the median time of the lines, which a panel shows at most


Setting = tuple[Look, pd.DataFrame]  # a line: its look, and its evaluations, those of a step at the same time


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return four panels: metric and loss over epochs and over seconds; again for more than eight settings.

    Of more settings than lines fit only the winner of each group is drawn, or, without one, that of the least test loss
    at its end. What was evaluated at its end alone is a point.
    """
    evaluations = tables["evaluations"]
    ended = evaluations[evaluations["status"] == "ok"]
    if ended.empty:
        return nothing(coverage, "none has ended well")
    if not ended["run"].duplicated().any():
        return nothing(coverage, "none was evaluated on its way: `evaluate_every_steps` in the study")
    of_a_setting, chosen = columns_but(ended, "seed"), ended.assign(instead=False)
    several = ended.groupby(of_a_setting, dropna=False).ngroups > MOST_LINES
    if several:
        chosen = _best(ended, tables["winners"], of_a_setting, group_columns(ended, study))
    settings = _settings(chosen, of_a_setting, study)
    chunks = _chunks(settings)
    figure = Figure((width_in(PAGE_IN), 2 * PANEL_IN * len(chunks)), layout="constrained")
    axes = figure.subplots(2 * len(chunks), 2, squeeze=False, sharex="col", sharey="row")
    progress, along = ("epoch", "epochs") if chosen["epoch"].notna().all() else ("samples_seen", "samples seen")
    metric = ", ".join(sorted(chosen["test_metric_name"].dropna().unique()))
    legend: list[Line2D] = []
    for number, part in enumerate(chunks):
        rows = axes[2 * number : 2 * number + 2]
        legend += _chunk(rows, part, progress)
        rows[0, 0].set_ylabel(f"test {metric}")
        rows[1, 0].set_ylabel("test loss")
    last_s = _end(settings)
    _scale(axes, settings, last_s)
    for one, words in zip(axes[-1], (along, "training time (s)"), strict=True):
        one.set_xlabel(words)
    return finished(figure, coverage, _notes(settings, last_s, winners=several), legend)


def _best(ended: pd.DataFrame, winners: pd.DataFrame, of_a_setting: list[str], of_a_group: list[str]) -> pd.DataFrame:
    """Return the evaluations of each group's winner; of a group without, `instead` those with the least loss."""
    won = ended["run"].isin(winners["winner_runs"].dropna().str.split().explode())
    group, setting = (ended.groupby(names, dropna=False).ngroup() for names in (of_a_group, of_a_setting))
    at_end = ended["step"] == ended.groupby("run")["step"].transform("max")
    loss = ended["test_loss"][at_end].groupby(setting).median()
    settings = pd.DataFrame({"group": group, "setting": setting, "loss": setting.map(loss)})
    least = settings.sort_values(["loss", "setting"]).drop_duplicates("group")["setting"]
    instead = setting.isin(least) & ~won.groupby(group).transform("any")
    return ended.assign(instead=instead)[won | instead]


def _notes(settings: list[Setting], last_s: float, *, winners: bool) -> list[str]:
    """Return what the caption says of what is drawn: of all settings, or of the `winners` and what stands for them."""
    every = pd.concat([rows for _, rows in settings])
    notes = ["Training time is without evaluations."]
    most = max(int(rows["run"].nunique()) for _, rows in settings)
    if most > 1:
        notes.append(f"Lines: medians over up to {most} runs; bands: from the least to the largest.")
    if any(_once(rows) for _, rows in settings):
        notes.append("Points: evaluated at the end alone; upright lines: from the least to the largest.")
    instead = [str(look["label"]) for look, rows in settings if rows["instead"].any()]
    if winners and len(instead) < len(settings):
        notes.append("Of each group that has one the winner only.")
    if instead:
        notes.append(
            "No winner, as none may win or it has no evaluation, but the setting of the least test loss at its end: "
            f"{'; '.join(instead)}."
        )
    if any(rows["t_s"].max() > last_s for _, rows in settings):
        notes.append(f"The time axis ends at {BEYOND} x the median of the lines: some go on beyond.")
    if _oversubscribed(every):
        notes.append(f"Hollow: {OVERSUBSCRIBED}.")
    return notes


def _settings(evaluations: pd.DataFrame, of_a_setting: list[str], study: Study) -> list[Setting]:
    """Return the settings in the words that tell each from the others; fewest ranks first."""
    groups = list(split(evaluations, of_a_setting))
    groups.sort(key=lambda one: (key_of(one[0], ["world_size"]), one[0].get("exchange") != "none"))
    keys, differ = [key for key, _ in groups], set(varying(evaluations))
    for name in RARELY_SAID:
        if len({title(key, differ - {name}) for key in keys}) == len(keys):
            differ -= {name}
    short = [title(key, differ - {"learning_rate_scaling"}) for key in keys]
    words = [one if short.count(one) == 1 else title(key, differ) for one, key in zip(short, keys, strict=True)]
    return [
        (
            look | {"linestyle" if _once(rows) else "marker": ""},
            rows.assign(t_s=rows.groupby("step")["t_s"].transform("median")),
        )
        for look, (_, rows) in zip(looks_of(keys, words, study), groups, strict=True)
    ]


def _chunks(settings: list[Setting]) -> list[list[Setting]]:
    """Return what shares panels: all if they are few, else those with one scaling of the rate, by eights."""
    if len(settings) <= MOST_LINES:
        return [settings]
    alike: dict[Any, list[Setting]] = {}
    for setting in settings:
        scaling = setting[1]["learning_rate_scaling"].iloc[0] if "learning_rate_scaling" in setting[1] else None
        alike.setdefault(scaling, []).append(setting)
    return [part[at : at + MOST_LINES] for part in alike.values() for at in range(0, len(part), MOST_LINES)]


def _chunk(axes: Any, settings: Sequence[Setting], progress: str) -> list[Line2D]:
    """Draw up to eight settings into two rows of two panels; return them for the legend."""
    legend = []
    for look, points in settings:
        colour, line = colour_and_name(look)
        last, marked, once = points[points["step"] == points["step"].max()], _oversubscribed(points), _once(points)
        for row, name in zip(axes, ("test_metric", "test_loss"), strict=True):
            for one, x in zip(row, (progress, "t_s"), strict=True):
                if once:
                    _points(one, points, x, name, look | (HOLLOW if marked and x == "t_s" else {}))
                else:
                    sns.lineplot(points, x=x, y=name, ax=one, **look, **OVER_RUNS, err_kws=BAND | {"gid": line})
                one.set(xlabel="", ylabel="")
            if marked and not once:
                row[1].plot(last["t_s"].iloc[0], last[name].median(), "o", color=colour, gid=line, **HOLLOW)
        legend.append(look | (HOLLOW if marked else {}) | ({} if once else {"marker": "o" if marked else ""}))
    return handles(legend)


def _points(axes: Axes, rows: pd.DataFrame, x: str, y: str, look: Look) -> None:
    """Draw a setting that was evaluated at its end alone: the median of its runs, and from the least to the largest."""
    colour, name = colour_and_name(look)
    for _, part in rows.groupby(x):
        place, values = float(part[x].iloc[0]), part[y]
        axes.vlines(place, values.min(), values.max(), color=colour, linewidth=0.8, gid=name)
        axes.plot(place, values.median(), **look)


def _once(rows: pd.DataFrame) -> bool:
    """Whether no run of a setting was evaluated but at its end."""
    return not rows["run"].duplicated().any()


def _oversubscribed(points: pd.DataFrame) -> bool:
    return bool(points["oversubscribed"].fillna(False).any())


def _end(settings: list[Setting]) -> float:
    """Return where the axis of time ends: a slow line does not stretch it, a point would be beyond it altogether."""
    ends_s = [float(rows["t_s"].max()) for _, rows in settings]
    points_s = (end for end, (_, rows) in zip(ends_s, settings, strict=True) if _once(rows))
    return min(max(ends_s), max(BEYOND * float(np.median(ends_s)), *points_s, 0.0))


def _scale(axes: Any, settings: Sequence[Setting], last_s: float) -> None:
    """Begin the axes at 0, that of a metric which is a share at 1 too; losses of many sizes on a logarithmic one."""
    points = pd.concat([rows for _, rows in settings])
    losses = points["test_loss"][np.isfinite(points["test_loss"])]
    for number, row in enumerate(axes):
        for one in row:
            one.set_xlim(left=0)
        row[1].set_xlim(0, 1.02 * last_s)
        values = losses if number % 2 else points["test_metric"]
        if number % 2 and values.min() > 0 and values.max() > WIDE * values.min():
            row[0].set_yscale("log")
            plain_numbers(row[0].yaxis)
        elif values.min() >= 0:
            row[0].set_ylim(0, 1.04 * max(values.max(), 1e-9))
