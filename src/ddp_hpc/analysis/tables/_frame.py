"""Frames whose column types are declared, so that no type depends on what happens to be null."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddp_hpc.runs.schema import RUN

INT, FLOAT, TEXT, FLAG = "Int64", "float64", "string", "boolean"

_PANDAS = {pa.int32(): INT, pa.int64(): INT, pa.float64(): FLOAT, pa.string(): TEXT, pa.bool_(): FLAG}


def types_of(columns: Iterable[str], schema: pa.Schema = RUN) -> dict[str, str]:
    """Return the pandas types of columns of a record."""
    return {name: _PANDAS[schema.field(name).type] for name in columns}


def typed(rows: Iterable[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """Return `rows` as a frame with just the columns and the types given; what a row lacks is null."""
    listed = list(rows)
    return pd.DataFrame(
        {
            name: pd.Series([_plain(row.get(name), kind) for row in listed], dtype=kind, name=name)
            for name, kind in types.items()
        }
    )


def _plain(value: Any, kind: str) -> Any:
    missing = value is None or value is pd.NA
    return float("nan") if missing and kind == FLOAT else pd.NA if missing else value


def median(values: Iterable[Any]) -> float | None:
    """Return the median of what is known; None if nothing is."""
    known = _known(values)
    return float(np.median(known)) if known else None


def largest(values: Iterable[Any]) -> float | None:
    """Return the largest of what is known; None if nothing is."""
    return max(_known(values), default=None)


def _known(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if not pd.isna(value)]
