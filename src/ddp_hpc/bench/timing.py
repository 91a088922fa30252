"""Helpers of timings in rounds: medians, ranges, ratios to a reference, and Parquet files of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from ddp_hpc.runs import records

SCHEMA_VERSION = 1

Row = dict[str, Any]


def spread(seconds: Sequence[float], ratios: Sequence[float]) -> Row:
    """Return median and range of times, and of how many times as fast that is as the yardstick in the same round."""
    return {
        "median_s": median(seconds),
        "least_s": min(seconds),
        "largest_s": max(seconds),
        "times_as_fast": median(ratios) if ratios else None,
        "times_as_fast_least": min(ratios, default=None),
        "times_as_fast_largest": max(ratios, default=None),
    }


def write(kind: str, schema: pa.Schema, rows: Sequence[Row], file: Path, provenance: Mapping[str, Any]) -> None:
    """Write rows as Parquet, units in the columns' metadata, provenance in the file's."""
    notes = {"ddp_hpc.schema": f"bench-{kind}/{SCHEMA_VERSION}", "ddp_hpc.provenance": json.dumps(provenance)}
    records.write_table(pa.Table.from_pylist(list(rows), schema=schema.with_metadata(notes)), file)
