"""The results of a sweep over message sizes: its Parquet files, and its text for the terminal."""

import json
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import pandas as pd
import pyarrow as pa

from ddp_hpc.bench import timing
from ddp_hpc.bench.timing import Row
from ddp_hpc.config.spec import shown
from ddp_hpc.perfmodel import bus_bandwidth
from ddp_hpc.runs.schema import BOOL, FLOAT, INTEGER, TEXT, field

YARDSTICK = "mpi_allreduce"  # what the library does by itself
COPY_ALONE, COPY_TOGETHER = "memory copy, one rank", "memory copy, all ranks at once"
COPIES = (COPY_ALONE, COPY_TOGETHER)
MARKED = "more ranks than cores: means nothing"

_WHAT = [
    field("world_size", INTEGER, "ranks", "ranks that exchange"),
    field("exchange", TEXT, "", f"file in exchange/; or {COPY_ALONE!r}, {COPY_TOGETHER!r}: the machine's limit"),
    field("exchange_options", TEXT, "JSON", "its options that differ from their defaults"),
]
_WHERE = [
    field("cores", INTEGER, "cores", "usable on the busiest node"),
    field("hosts", INTEGER, "", "nodes"),
    field("oversubscribed", BOOL, "", "more ranks than cores on a node: its times mean nothing"),
]
SAME = [one.name for one in (*_WHAT, *_WHERE)]  # columns that all sizes of an exchange share
SWEEP = pa.schema(
    [
        *_WHAT,
        field("bytes", INTEGER, "B", "of the buffer that is exchanged, or copied"),
        field("median_s", FLOAT, "s", "of one exchange, slowest rank, over the rounds; null: below what is subtracted"),
        field("least_s", FLOAT, "s", "the least of the rounds"),
        field("largest_s", FLOAT, "s", "the largest of the rounds"),
        field("backward_s", FLOAT, "s", "median; the step without exchange that was subtracted; null: nothing was"),
        field("rounds", INTEGER, "", "samples, each the mean of some exchanges after one another"),
        field("repeats", INTEGER, "", "exchanges of a sample, the fewest of the rounds"),
        field("algorithm_bandwidth", FLOAT, "B/s", "bytes / median_s; of copies, what was copied"),
        field("bus_bandwidth", FLOAT, "B/s", "algorithm_bandwidth x 2(n-1)/n; null for one rank and for copies"),
        field("times_as_fast", FLOAT, "", f"time of {YARDSTICK} in the same round over this one; median"),
        field("times_as_fast_least", FLOAT, "", "the least of the rounds"),
        field("times_as_fast_largest", FLOAT, "", "the largest of the rounds"),
        *_WHERE,
    ]
)
FITS = pa.schema(
    [
        *_WHAT,
        field("latency_s", FLOAT, "s", "alpha of perfmodel.Link: per message, or barrier of shared memory"),
        field("latency_error_s", FLOAT, "s", "its standard error"),
        field("bandwidth", FLOAT, "B/s", "beta of perfmodel.Link; null: the sizes do not tell"),
        field("bandwidth_error", FLOAT, "B/s", "its standard error"),
        field("relative_spread", FLOAT, "", "root mean square of (fit - measured) / measured"),
        field("relative_worst", FLOAT, "", "the largest of their absolute values"),
        field("points", INTEGER, "", "sizes that were fitted"),
        *_WHERE,
    ]
)


def rows_of(samples: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the sweep from its samples, in the order in which they come.

    A sample has `round`, `seconds`, `backward_s`, `repeats` and those columns of the sweep that say what and where.
    """
    if not samples:
        return []
    table = pd.DataFrame(samples).astype({"backward_s": float})
    together = ["world_size", "bytes", "round"]
    yardstick = table[(table["exchange"] == YARDSTICK) & (table["exchange_options"] == "{}")]
    other = table.merge(yardstick[[*together, "seconds"]], "left", together)["seconds_y"]
    table["ratio"] = (other / table["seconds"]).where((table["seconds"] > 0) & ~table["exchange"].isin(COPIES))
    rows = timing.over_rounds(table, ["bytes", *SAME], backward_s=("backward_s", "median"))
    rows.loc[rows["median_s"] <= 0, list(timing.MEASURED)] = nan  # a difference may be below what its two times scatter
    rows["algorithm_bandwidth"] = rows["bytes"] / rows["median_s"]
    rows["bus_bandwidth"] = [
        None if row["exchange"] in COPIES else bus_bandwidth(row["bytes"], row["median_s"], row["world_size"])
        for row in rows.to_dict("records")
    ]
    return timing.rows_of(rows, SWEEP)


def in_words(size: int) -> str:
    """Return e.g. `4 B`, `16.4 kB`, `268 MB`."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def by_size(rows: Sequence[Row]) -> list[Row]:
    """Return for the screen a row per ranks and size: the median microseconds of each exchange, and of the copies."""
    lines: dict[tuple[int, int], Row] = {}
    for row in rows:
        ranks, size = row["world_size"], row["bytes"]
        line = lines.setdefault((ranks, size), {"ranks": ranks, "size": in_words(size)})
        line[name_of(row)] = _short(row["median_s"], 1e6, digits=4)
    if marked := {row["world_size"] for row in rows if row["oversubscribed"]}:
        for (ranks, _), line in lines.items():
            line["note"] = MARKED if ranks in marked else None
    return list(lines.values())


def by_exchange(rows: Sequence[Row], fitted: Sequence[Row]) -> list[Row]:
    """Return for the screen a row per ranks and exchange: its fit, and its ratio to MPI's own from 4 to 64 MB."""
    lines = []
    for row in fitted:
        ratios = [
            f"{one['times_as_fast']:.2f} ({one['times_as_fast_least']:.2f}-{one['times_as_fast_largest']:.2f})"
            for one in rows
            if all(one[column.name] == row[column.name] for column in _WHAT)
            and 4e6 <= one["bytes"] <= 70e6
            and one["times_as_fast"] is not None
        ]
        lines.append(
            {
                "ranks": row["world_size"],
                "exchange": name_of(row),
                "latency_us": _short(row["latency_s"], 1e6),
                "+-": _short(row["latency_error_s"], 1e6),
                "bandwidth_GB/s": _short(row["bandwidth"], 1e-9),
                "+- ": _short(row["bandwidth_error"], 1e-9),
                "spread": _short(row["relative_spread"], 1),
                f"times as fast as {YARDSTICK}, 4 to 64 MB": "; ".join(ratios) or None,
            }
        )
    return lines


def name_of(row: Row) -> str:
    """Return an exchange with its options, as people read it."""
    return shown(row["exchange"], json.loads(row["exchange_options"]))


def _short(value: float | None, factor: float, digits: int = 3) -> float | None:
    return None if value is None else float(f"{value * factor:.{digits}g}")
