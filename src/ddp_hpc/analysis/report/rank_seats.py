"""What each rank had, as a table: host, cores, GPU and the links between them; one table for each world size."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

MOST = 64  # ranks that are listed
Rank = Mapping[str, Any]


@dataclass(frozen=True)
class Seats:
    """The ranks of runs with one world size: of most of these runs, if not all are alike."""

    world_size: int
    alike: int  # of the runs
    runs: int
    columns: list[str]
    rows: list[list[str]]


def seats(provenances: Iterable[Mapping[str, Any]]) -> list[Seats]:
    """Return the tables of all runs whose provenance has its ranks, by world size."""
    by_size: dict[int, Counter[tuple[tuple[str, ...], ...]]] = {}
    for provenance in provenances:
        if ranks := provenance.get("ranks"):
            rows = tuple(tuple(cell(rank) for cell in _CELLS.values()) for rank in ranks[:MOST])
            by_size.setdefault(len(ranks), Counter())[rows] += 1
    return [_table(world_size, counts) for world_size, counts in sorted(by_size.items())]


def _table(world_size: int, counts: Counter[tuple[tuple[str, ...], ...]]) -> Seats:
    (rows, alike), *_ = counts.most_common(1)
    shown = [place for place in range(len(_CELLS)) if any(row[place] for row in rows)]
    names = list(_CELLS)
    return Seats(
        world_size=world_size,
        alike=alike,
        runs=counts.total(),
        columns=[names[place] for place in shown],
        rows=[[row[place] for place in shown] for row in rows],
    )


def _of_gpu(text: Callable[[Rank], str]) -> Callable[[Rank], str]:
    return lambda rank: text(rank["gpu"]) if rank.get("gpu") else ""


def _pcie(gpu: Rank) -> str:
    generation, width = (gpu.get(f"pcie_{what}_max") or gpu.get(f"pcie_{what}") for what in ("generation", "width"))
    return f"{generation}.0 x{width}" if generation and width else ""


def _adapters(rank: Rank) -> str:
    found = []
    for one in rank.get("adapters") or ():
        speed = f" {one['gbit_per_s']:g} Gbit/s" if one.get("gbit_per_s") else ""
        node = f", NUMA {one['numa_node']}" if one.get("numa_node") is not None else ""
        found.append(f"{one['name']} ({one['kind']}{speed}{node})")
    return "; ".join(found)


def _ranges(numbers: Iterable[int]) -> str:
    """Return e.g. `0-3, 8`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(sorted(numbers)), lambda it: it[1] - it[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


_CELLS: dict[str, Callable[[Rank], str]] = {
    "rank": lambda rank: _text(rank.get("rank")),
    "host": lambda rank: _text(rank.get("host")),
    "cores": lambda rank: _ranges(rank.get("core_set") or ()),
    "NUMA of cores": lambda rank: _ranges(rank.get("numa_nodes") or ()),
    "GPU": _of_gpu(lambda gpu: _text(gpu.get("name"))),
    "PCI bus": _of_gpu(lambda gpu: _text(gpu.get("pci_bus"))),
    "NUMA of GPU": _of_gpu(lambda gpu: _text(gpu.get("numa_node"))),
    "PCIe": _of_gpu(_pcie),
    "NVLinks": _of_gpu(lambda gpu: _text(gpu.get("nvlinks"))),
    "network": _adapters,
}
