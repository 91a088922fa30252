"""The results of a sweep over message sizes: its Parquet files, and its text for the terminal."""

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import pyarrow as pa

from ddp_hpc.bench.timing import Row, spread
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
    ratios = [
        yardstick[sample["round"]] / sample["seconds"]
        for sample in taken
        if sample["round"] in yardstick and sample["seconds"] > 0
    ]
    times = spread([sample["seconds"] for sample in taken], ratios)
    seconds = times["median_s"]
    if seconds <= 0:  # the difference of two times may be below what they scatter
        times, seconds = dict.fromkeys(times), None
    copied = first["exchange"] in COPIES
    subtracted = [sample["backward_s"] for sample in taken if sample["backward_s"] is not None]
    same = ("world_size", "exchange", "exchange_options", "bytes", "cores", "hosts", "oversubscribed")
    return {name: first[name] for name in same} | {
        **times,
        "backward_s": median(subtracted) if subtracted else None,
        "rounds": len(taken),
        "repeats": min(sample["repeats"] for sample in taken),
        "algorithm_bandwidth": first["bytes"] / seconds if seconds else None,
        "bus_bandwidth": bus_bandwidth(first["bytes"], seconds, first["world_size"])
        if seconds and not copied
        else None,
    }


def in_words(size: int) -> str:
    """Return e.g. `4 B`, `16.4 kB`, `268 MB`."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def by_size(rows: Sequence[Row]) -> list[Row]:
    """Return for the screen a row per ranks and size: the median microseconds of each exchange, and of the copies."""
    shown: dict[tuple[int, int], Row] = {}
    for row in rows:
        line = shown.setdefault(
            (row["world_size"], row["bytes"]), {"ranks": row["world_size"], "size": in_words(row["bytes"])}
        )
        line[_name(row)] = None if row["median_s"] is None else float(f"{1e6 * row['median_s']:.4g}")
    if any(row["oversubscribed"] for row in rows):
        marked = {row["world_size"] for row in rows if row["oversubscribed"]}
        for (world_size, _), line in shown.items():
            line["note"] = MARKED if world_size in marked else None
    return list(shown.values())


def by_exchange(rows: Sequence[Row], fitted: Sequence[Row]) -> list[Row]:
    """Return for the screen a row per ranks and exchange: its fit, and its ratio to MPI's own from 4 to 64 MB."""
    lines = []
    for row in fitted:
        key = ("world_size", "exchange", "exchange_options")
        large = [
            one
            for one in rows
            if all(one[name] == row[name] for name in key)
            and 4e6 <= one["bytes"] <= 70e6
            and one["times_as_fast"] is not None
        ]
        lines.append(
            {
                "ranks": row["world_size"],
                "exchange": _name(row),
                "latency_us": _short(row["latency_s"], 1e6),
                "+-": _short(row["latency_error_s"], 1e6),
                "bandwidth_GB/s": _short(row["bandwidth"], 1e-9),
                "+- ": _short(row["bandwidth_error"], 1e-9),
                "spread": _short(row["relative_spread"], 1),
                f"times as fast as {YARDSTICK}, 4 to 64 MB": "; ".join(
                    f"{one['times_as_fast']:.2f} ({one['times_as_fast_least']:.2f}-{one['times_as_fast_largest']:.2f})"
                    for one in large
                )
                or None,
            }
        )
    return lines


def _name(row: Row) -> str:
    return shown(row["exchange"], json.loads(row["exchange_options"]))


def _short(value: float | None, factor: float) -> float | None:
    return None if value is None else float(f"{value * factor:.3g}")
