"""The axes of a study: which columns of a spec vary, which are searched, and which runs may be compared."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddp_hpc.config.catalog import BUILT_IN_METRICS
from ddp_hpc.config.comparability import OFF_THE_CLOCK, SAME_WORK
from ddp_hpc.config.spec import COMPONENTS, SPEC_COLUMNS, shown
from ddp_hpc.config.study import Rules, Study

ALWAYS_GROUPED = ("exchange", "world_size")  # what is compared is how a training scales, so these never compete


# the columns that can decide who wins, each with that of its standard error
ERRORS = {"loss_area_loss_s": "standard_error_loss_s", "test_metric": "standard_error", "time_to_s": "standard_error_s"}


def decisive(rules: Rules) -> str:
    """Return the column that decides who wins (`winner_by`)."""
    return {"loss_area": "loss_area_loss_s", "test_metric": "test_metric"}.get(str(rules.winner_by), "time_to_s")


def higher_is_better(run: Mapping[str, Any]) -> bool:
    """Return whether a larger test metric is the better one, for a row of run records; no where they do not say."""
    name, own = run.get("test_metric_name"), run.get("own_metrics")
    if name in BUILT_IN_METRICS:
        return BUILT_IN_METRICS[str(name)] == "higher"
    return isinstance(own, str) and json.loads(own).get(name, {}).get("better") == "higher"


def varying(frame: pd.DataFrame) -> list[str]:
    """Return the spec columns with more than one value in `frame`; null is a value like any other."""
    return [name for name in SPEC_COLUMNS if name in frame and frame[name].nunique(dropna=False) > 1]


def search_columns(study: Study) -> list[str]:
    """Return the columns over which a winner is searched; a searched choice is searched with its options."""
    searched = {*study.search} - {*ALWAYS_GROUPED}
    return [name for name in SPEC_COLUMNS if name.removesuffix("_options") in searched]


def group_columns(runs: pd.DataFrame, study: Study) -> list[str]:
    """Return the columns that say what competes with what: all that vary, but for the search and the seed.

    What is off the clock keeps nobody from competing where the other columns decide it.
    """
    search = search_columns(study)
    names = {*varying(runs), *ALWAYS_GROUPED} - {"seed", *search} - OFF_THE_CLOCK
    beside = axes_off_the_clock(runs, ordered({*names, *search}))
    return ordered({*names, *beside} - {*search})


def run_columns(runs: pd.DataFrame, study: Study) -> list[str]:
    """Return the columns that tell the planned runs of a study apart."""
    return [*group_columns(runs, study), *search_columns(study), "seed"]


def step_columns(runs: pd.DataFrame, free: Collection[str] = ()) -> list[str]:
    """Return the columns in which steps are told apart: all that vary, but for those of runs that are taken together.

    Runs are taken together that differ in learning rate, seed and budget alone, but for those in `free`. What is off
    the clock tells steps apart only where it is an axis of its own, not where the others decide it, as where each batch
    size is evaluated after an epoch of its own steps.
    """
    changing = {name for name in varying(runs) if name in free or name not in SAME_WORK}
    names = ordered({*changing, "exchange", "world_size", "batch_size"})
    return ordered({*names, *axes_off_the_clock(runs, names)})


def axes_off_the_clock(runs: pd.DataFrame, names: list[str]) -> list[str]:
    """Return what is off the clock and has several values in runs that agree in the columns named; null is a value."""
    if not names:
        return []
    groups = runs.groupby(names, dropna=False)
    asked = [name for name in OFF_THE_CLOCK if name not in names and name in runs]
    return [name for name in asked if (groups[name].nunique(dropna=False) > 1).any()]


def ordered(names: Collection[str]) -> list[str]:
    """Return spec columns in the order of the record; with the options of a choice comes its name."""
    return [name for name in SPEC_COLUMNS if name in names or f"{name}_options" in names]


def split(frame: pd.DataFrame, by: list[str]) -> Iterable[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield each group of rows with its values of `by`, sorted, nulls last and kept.

    An empty `by` is one group of everything; an empty frame has none.
    """
    if frame.empty:
        return
    if not by:
        yield {}, frame
        return
    ordered = frame.sort_values(by, kind="stable", na_position="last")
    for key, rows in ordered.groupby(by, dropna=False, sort=False):
        yield dict(zip(by, key, strict=True)), rows


_PLACE = " place"  # no column of a record has such a name


def split_rows(frame: pd.DataFrame, by: list[str]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each group of `split`, its rows as `rows_of`: all are read off the frame at once, which is far quicker."""
    rows = rows_of(frame)
    for key, part in split(frame[by].assign(**{_PLACE: range(len(frame))}), by):
        yield key, [rows[place] for place in part[_PLACE]]


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame, each by the names of its columns; null is None, but NaN in columns of floats."""
    if not len(frame.columns):
        return [{} for _ in range(len(frame))]
    names, values = [str(name) for name in frame], [_plain(column) for _, column in frame.items()]
    return [
        dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)
    ]  # to_dict takes three times as long


def _plain(column: "pd.Series[Any]") -> list[Any]:
    """Return the values of a column as those of Python."""
    if not isinstance(column.dtype, np.dtype):  # of pandas: in half the time by way of Arrow
        values: list[Any] = pa.array(column.array).to_pylist()
        return values
    values = column.tolist()
    if column.dtype != np.dtype(object):
        return values
    plain = (one.item() if isinstance(one, np.generic) else one for one in values)
    return [None if one is pd.NA else one for one in plain]


def key_of(row: Mapping[str, Any], columns: Iterable[str]) -> tuple[Any, ...]:
    """Return the values of `columns` as a dictionary key in which nulls are equal."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in columns)


def show(value: Any) -> str:
    """Return one value as people read it: `0.1`, `128`, `null`."""
    if pd.isna(value):
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def show_component(name: Any, options: Any) -> str:
    """Return a component with its options: `mlp (widths 64-32)`, `torch_ddp (tuned)`."""
    return shown(show(name), {} if pd.isna(options) else json.loads(options))


def counted_reasons(reasons: Iterable[str]) -> str:
    """Return why points are out, and how many: `2 diverged, 1 with 1 of 3 repeats diverged`."""
    counts = Counter(reasons).most_common()
    return ", ".join(f"{count} {'with ' if ' repeats ' in reason else ''}{reason}" for reason, count in counts)


def told(row: Mapping[str, Any], name: str) -> str:
    """Return a field of a spec as people read it, a choice with its options."""
    return show_component(row[name], row.get(f"{name}_options")) if name in COMPONENTS else show(row[name])


def told_apart_by(frame: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return those fields of specs that differ in `frame`, a choice also if its options do."""
    differ = varying(frame)
    return [name for name in names if not name.endswith("_options") and {name, f"{name}_options"} & {*differ}]


def label(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """Return the values of `columns` in short: `128/0.5`; a choice stands with its options."""
    parts = []
    for name in columns:
        if name.endswith("_options"):
            if name.removesuffix("_options") not in columns:
                parts.append(show_component(name.removesuffix("_options"), row[name]))
        elif name in COMPONENTS and f"{name}_options" in columns:
            parts.append(show_component(row[name], row[f"{name}_options"]))
        else:
            parts.append(show(row[name]))
    return "/".join(parts)


def paid(costs: pd.DataFrame) -> str:
    """Return the column in which costs are compared: money, where it is known of all, else rank-hours."""
    return "money" if len(costs) and costs["money"].notna().all() else "rank_hours"


MISPLACED = "placed otherwise than asked"


def standing(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return for each run its status; of one that ended well, but not where it was asked to, `MISPLACED`.

    Its losses are right, its times are those of another placement: it belongs in no comparison.
    """
    misplaced = ~runs["placement_verified"].astype("boolean").fillna(True)
    return runs["status"].mask((runs["status"] == "ok") & misplaced, MISPLACED)


CROWDED = 0.05  # from this `core_wait_share` and `others_core_share` on, others are taken to have slowed the steps
DRIFTED = 0.1  # of the training time: from this cost of a drift on, half its trend; less is noise as repeats show it
DISTURBED = 1 / 3  # of the training time: from this `slow_steps_share` on, times are not to be trusted


def slow_steps_share(runs: pd.DataFrame) -> "pd.Series[float]":
    """Return for each run the share of its training time beyond steps x median step; NaN where that is not known.

    Near 0 on a quiet machine. Medians do not show what a disturbance cost, the training time does.
    """
    steady_s = runs["steps"].astype("Float64") * runs["step_s"].astype("Float64")
    share = 1 - steady_s / runs["train_s"].astype("Float64")
    return share.clip(lower=0).astype("float64")


def drift_cost(table_of_runs: pd.DataFrame) -> "pd.Series[float]":
    """Return for each row of the table of runs the share of its training that a drift cost: half its trend, or 0."""
    certain = table_of_runs["drifting"].astype("boolean").fillna(False).astype(bool)
    return (table_of_runs["drift_percent"].astype("float64").abs() / 200).where(certain, 0.0).clip(upper=1)


def crowded(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each run whether threads had to wait for cores while others used them; not where it is not known.

    Either alone is no reason: threads of a library wait for the ranks', and others may use cores that are free.
    """
    waited, taken = (runs[name].astype("float64") for name in ("core_wait_share", "others_core_share"))
    return (waited > CROWDED) & (taken > CROWDED)


def with_standing(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with their standing as status, and their `slow_steps_share`: what a comparison has to heed."""
    return runs.assign(status=standing(runs), slow_steps_share=slow_steps_share(runs))
