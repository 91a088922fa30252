"""Data frames with declared column types, which do not depend on which values are null."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddp_hpc.runs.schema import RUN

INT, FLOAT, TEXT, FLAG = "Int64", "float64", "string", "boolean"

_PANDAS = {pa.int32(): INT, pa.int64(): INT, pa.float64(): FLOAT, pa.string(): TEXT, pa.bool_(): FLAG}


def columns(*names: str) -> list[str]:
    """Return names that stand in texts of several: `columns("runs step_s", "reason")`."""
    return " ".join(names).split()


# a name has one type in all tables: that of the run record, else the one given here, else it is a number
_TYPES: dict[str, str] = (
    dict.fromkeys(
        columns(
            "runs pairs rounds repeats points step evaluations rank traced_steps global_batch_size from_world_size",
            "parameter_bytes settle_step settle_5_percent_step cannot_be_told_from_count eligible_points",
            "eligible_points_over_samples",
            "excluded_points excluded_runs batch nodes held_out_world_size worthwhile_world_size worthwhile_low",
            "worthwhile_high held_out_batch sampled_steps",
        ),
        INT,
    )
    | dict.fromkeys(
        columns(
            "id statement source unit expected verdict interval_from reference first second ratios kind from_exchange",
            "bar sentence host gpu core_set slow_phase slow_ranks point excluded winner cannot_be_told_from judged_by",
            "times_as_fast_from weak_efficiency_from over_none_from",
            "from to_run worth_it goal currency winner_over_samples only_by_luck",
            "excluded_because winner_runs doubt scheme computes moves_gradients moves_model gpu_data_path bandwidth_of",
        ),
        TEXT,
    )
    | dict.fromkeys(columns("on_front told_apart same_hosts straggler drifting last winner_changes"), FLAG)
    | {field.name: _PANDAS[field.type] for field in RUN}
)


def type_of(name: str) -> str:
    """Return the pandas type of a column."""
    return _TYPES.get(name, FLOAT)


def typed(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> pd.DataFrame:
    """Return `rows` as a frame with just the columns named; what a row lacks is null."""
    listed = list(rows)
    return pd.DataFrame(
        {
            name: pd.Series([None if row.get(name) is pd.NA else row.get(name) for row in listed], dtype=type_of(name))
            for name in names
        }
    )


def of_runs(runs: pd.DataFrame, series: Sequence[Mapping[str, Any]], names: Iterable[str]) -> pd.DataFrame:
    """Return the columns of each run, for each point of its series, and those of the series that are named, as arrays.

    They are put together by column: a dictionary for each point of 10,000 runs would not fit into memory.
    """
    counts = [len(next(iter(one.values()))) for one in series]
    places = np.repeat(np.arange(len(runs)), counts)
    found = {str(name): pd.Series(runs[name].take(places).array, dtype=type_of(str(name))) for name in runs}
    for name in names:
        parts = [one.get(name, np.full(count, np.nan)) for one, count in zip(series, counts, strict=True)]
        found[name] = pd.Series(np.concatenate(parts) if parts else [], dtype=type_of(name))
    return pd.DataFrame(found)


def known(values: Iterable[Any]) -> list[float]:
    """Return those values that are not null."""
    return [float(value) for value in values if not pd.isna(value)]


def median(values: Iterable[Any]) -> float | None:
    """Return the median of what is known; None if nothing is."""
    found = known(values)
    return float(np.median(found)) if found else None


def largest(values: Iterable[Any]) -> float | None:
    """Return the largest of what is known; None if nothing is."""
    return max(known(values), default=None)
