"""What the parts share: progress on the screen; medians and ranges over rounds; Parquet files of them."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ddp_hpc.runs import records

SCHEMA_VERSION = 1
MEASURED = {
    "median_s": ("seconds", "median"),
    "least_s": ("seconds", "min"),
    "largest_s": ("seconds", "max"),
    "times_as_fast": ("ratio", "median"),
    "times_as_fast_least": ("ratio", "min"),
    "times_as_fast_largest": ("ratio", "max"),
}

Row = dict[str, Any]


def say(text: str) -> None:
    """Show what is being timed."""
    print(f"timing {text}", file=sys.stderr, flush=True)


def over_rounds(samples: pd.DataFrame, same: list[str], **more: tuple[str, str]) -> pd.DataFrame:
    """Return a row for all samples that have the `same`, with `MEASURED`, `rounds`, `repeats` and what `more` says.

    The ratio of a sample says how many times as fast it is as the yardstick in the same round.
    """
    columns: dict[str, Any] = MEASURED | {"rounds": ("seconds", "size"), "repeats": ("repeats", "min")} | more
    rows: pd.DataFrame = samples.groupby(same, sort=False, as_index=False).agg(**columns)
    return rows


def rows_of(table: pd.DataFrame, schema: pa.Schema) -> list[Row]:
    """Return the rows of a table as the schema has them; nan is null."""
    rows: list[Row] = pa.Table.from_pandas(table, schema, preserve_index=False).to_pylist()
    return rows


def write(kind: str, schema: pa.Schema, rows: Sequence[Row], file: Path, provenance: Mapping[str, Any]) -> None:
    """Write rows as Parquet, units in the columns' metadata, provenance in the file's."""
    notes = {"ddp_hpc.schema": f"bench-{kind}/{SCHEMA_VERSION}", "ddp_hpc.provenance": json.dumps(provenance)}
    records.write_table(pa.Table.from_pylist(list(rows), schema=schema.with_metadata(notes)), file)
