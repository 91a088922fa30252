"""What a sweep says on the screen."""

import json
from collections.abc import Sequence

from ddp_hpc.bench.results import YARDSTICK, Row
from ddp_hpc.config.component import Choice

MARKED = "more ranks than cores: means nothing"


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
    options = json.loads(row["exchange_options"])
    return str(Choice(name=row["exchange"], options=options))


def _short(value: float | None, factor: float) -> float | None:
    return None if value is None else float(f"{value * factor:.3g}")
