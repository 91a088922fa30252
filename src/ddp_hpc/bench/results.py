"""What benchmarks leave behind: their Parquet schemas, and the numbers of a sweep over message sizes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from ddp_hpc.perfmodel import bus_bandwidth
from ddp_hpc.runs import records

SCHEMA_VERSION = 1
YARDSTICK = "mpi_allreduce"  # what the library does by itself
COPY_ALONE, COPY_TOGETHER = "memory copy, one rank", "memory copy, all ranks at once"
COPIES = (COPY_ALONE, COPY_TOGETHER)
LEFT_OUT = "left out: "  # so begins the line in which rank 0 says what it measures no more

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _field(name: str, kind: pa.DataType, unit: str, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={"unit": unit, "meaning": meaning})


_WHAT = [
    _field("world_size", _INT, "ranks", "ranks that exchange"),
    _field("exchange", _TEXT, "", f"file in exchange/; or {COPY_ALONE!r}, {COPY_TOGETHER!r}: the machine's limit"),
    _field("exchange_options", _TEXT, "JSON", "its options that differ from their defaults"),
]
_WHERE = [
    _field("cores", _INT, "cores", "usable on the busiest node"),
    _field("hosts", _INT, "", "nodes"),
    _field("oversubscribed", _BOOL, "", "more ranks than cores on a node: its times mean nothing"),
]
SWEEP = pa.schema(
    [
        *_WHAT,
        _field("bytes", _INT, "B", "of the buffer that is exchanged, or copied"),
        _field(
            "median_s", _FLOAT, "s", "of one exchange, slowest rank, over the rounds; null: below what is subtracted"
        ),
        _field("least_s", _FLOAT, "s", "the least of the rounds"),
        _field("largest_s", _FLOAT, "s", "the largest of the rounds"),
        _field("backward_s", _FLOAT, "s", "median; the step without exchange that was subtracted; null: nothing was"),
        _field("rounds", _INT, "", "samples, each the mean of some exchanges after one another"),
        _field("repeats", _INT, "", "exchanges of a sample, the fewest of the rounds"),
        _field("algorithm_bandwidth", _FLOAT, "B/s", "bytes / median_s; of copies, what was copied"),
        _field("bus_bandwidth", _FLOAT, "B/s", "algorithm_bandwidth x 2(n-1)/n; null for one rank and for copies"),
        _field("times_as_fast", _FLOAT, "", f"time of {YARDSTICK} in the same round over this one; median"),
        _field("times_as_fast_least", _FLOAT, "", "the least of the rounds"),
        _field("times_as_fast_largest", _FLOAT, "", "the largest of the rounds"),
        *_WHERE,
    ]
)
FITS = pa.schema(
    [
        *_WHAT,
        _field("latency_s", _FLOAT, "s", "alpha of perfmodel.Link: per message, or barrier of shared memory"),
        _field("latency_error_s", _FLOAT, "s", "its standard error"),
        _field("bandwidth", _FLOAT, "B/s", "beta of perfmodel.Link; null: the sizes do not tell"),
        _field("bandwidth_error", _FLOAT, "B/s", "its standard error"),
        _field("relative_spread", _FLOAT, "", "root mean square of (fit - measured) / measured"),
        _field("relative_worst", _FLOAT, "", "the largest of their absolute values"),
        _field("points", _INT, "", "sizes that were fitted"),
        *_WHERE,
    ]
)
REALIGN = pa.schema(
    [
        _field("rows", _INT, "samples", "of the layer's inputs"),
        _field("inputs", _INT, "", "of the layer, without the one of its bias"),
        _field("outputs", _INT, "", "of the layer"),
        _field("part", _TEXT, "", "forward, backward; or move: to put the ones in front, without any product"),
        _field("way", _TEXT, "", "see ddp_hpc/bench/realign.py"),
        _field("device", _TEXT, "", "cpu or cuda"),
        _field("dtype", _TEXT, "", "of all numbers"),
        _field("threads", _INT, "threads", "of torch, on a CPU"),
        _field("median_s", _FLOAT, "s", "of one call, over the rounds"),
        _field("least_s", _FLOAT, "s", "the least of the rounds"),
        _field("largest_s", _FLOAT, "s", "the largest of the rounds"),
        _field("times_as_fast", _FLOAT, "", "time of addmm (a move: of cat) in the same round over this one; median"),
        _field("times_as_fast_least", _FLOAT, "", "the least of the rounds"),
        _field("times_as_fast_largest", _FLOAT, "", "the largest of the rounds"),
        _field("rounds", _INT, "", "samples, each the mean of some calls after one another"),
        _field("repeats", _INT, "", "calls of a sample"),
    ]
)
SCHEMAS = {"sweep": SWEEP, "fits": FITS, "realign": REALIGN}

Row = dict[str, Any]


def rows_of(samples: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the sweep from its samples, in the order of ranks, exchanges and sizes.

    Args:
        samples: `world_size`, `exchange`, `exchange_options`, `bytes`, `round`, `seconds`, `backward_s`, `repeats` and
            the columns that say where.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for sample in samples:
        key = (sample["world_size"], sample["exchange"], sample["exchange_options"], sample["bytes"])
        groups.setdefault(key, []).append(sample)
    return [_row(taken, _yardstick(groups, key)) for key, taken in groups.items()]


def _yardstick(groups: Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]], key: tuple[Any, ...]) -> dict[int, float]:
    world_size, exchange, _, size = key
    taken = [] if exchange in COPIES else groups.get((world_size, YARDSTICK, "{}", size), [])
    return {sample["round"]: sample["seconds"] for sample in taken}


def _row(taken: Sequence[Mapping[str, Any]], yardstick: Mapping[int, float]) -> Row:
    first = taken[0]
    seconds = [sample["seconds"] for sample in taken]
    middle = median(seconds)
    known = middle > 0  # the difference of two times may be below what they scatter
    copied = first["exchange"] in COPIES
    ratios = [
        yardstick[sample["round"]] / sample["seconds"]
        for sample in taken
        if sample["round"] in yardstick and sample["seconds"] > 0
    ]
    subtracted = [sample["backward_s"] for sample in taken if sample["backward_s"] is not None]
    same = ("world_size", "exchange", "exchange_options", "bytes", "cores", "hosts", "oversubscribed")
    return {name: first[name] for name in same} | {
        "median_s": middle if known else None,
        "least_s": min(seconds) if known else None,
        "largest_s": max(seconds) if known else None,
        "backward_s": median(subtracted) if subtracted else None,
        "rounds": len(taken),
        "repeats": min(sample["repeats"] for sample in taken),
        "algorithm_bandwidth": first["bytes"] / middle if known else None,
        "bus_bandwidth": bus_bandwidth(first["bytes"], middle, first["world_size"]) if known and not copied else None,
        "times_as_fast": median(ratios) if ratios and known else None,
        "times_as_fast_least": min(ratios) if ratios and known else None,
        "times_as_fast_largest": max(ratios) if ratios and known else None,
    }


def write(kind: str, rows: Sequence[Row], file: Path, provenance: Mapping[str, Any]) -> None:
    """Write `sweep`, `fits` or `realign` as Parquet, units in the columns' metadata, provenance in the file's."""
    notes = {"ddp_hpc.schema": f"bench-{kind}/{SCHEMA_VERSION}", "ddp_hpc.provenance": json.dumps(provenance)}
    records.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMAS[kind].with_metadata(notes)), file)
