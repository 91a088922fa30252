"""What it costs to fold a layer's bias into its weights, against addmm, forward and backward: `ddp-hpc bench realign`.

`folded` has the ways. A sample is the mean of some calls after one another, by the clock of the host, to the end of
what they have begun; each round takes every way once, in another order.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import torch
from pyarrow import csv

from ddp_hpc.bench import results
from ddp_hpc.bench import shifts as realign
from ddp_hpc.bench.folded import WAYS, Layer, Shape
from ddp_hpc.bench.results import Row
from ddp_hpc.profiling import provenance

LEAST_S = 0.05  # a sample takes about that long
MOST_REPEATS = 1000
YARDSTICKS = {"forward": "addmm", "backward": "addmm", "move": "cat"}
SHAPES = (
    Shape(75, 600, 150),  # the first layer of the strain-stress network, and its batch
    Shape(1000, 600, 150),
    Shape(512, 1024, 1024),
    Shape(4096, 1024, 1024),
    Shape(16384, 64, 64),
)


def shape_of(text: str) -> Shape:
    """Return the shape that a command line gives as `rowsxinputsxoutputs`.

    Raises:
        ValueError: it is none.
    """
    sizes = text.split("x")
    if len(sizes) != 3 or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise ValueError(f"--shapes: given {text!r}, expected: rowsxinputsxoutputs, integers > 0, e.g. 75x600x150")
    return Shape(*map(int, sizes))


def moves(layer: Layer) -> dict[str, Callable[[], object]]:
    """Return what puts the ones in front of the inputs, without any product: in place, and by torch.cat."""
    shape = layer.shape
    found: dict[str, Callable[[], object]] = {
        "cat": lambda: torch.cat([layer.ones, layer.inputs], 1),
        "shift_right": lambda: realign.shift_right(layer.buffer, shape.rows, shape.inputs),
    }
    if layer.buffer.is_cuda:  # what the kernel is worth
        found["shift_right in pieces"] = lambda: realign.shift_right(layer.buffer, shape.rows, shape.inputs, False)
    return found


def measure(
    shapes: Sequence[Shape], device: str, dtype: str, rounds: int, folder: Path, say: Callable[[str], None]
) -> list[Row]:
    """Measure, and write realign.parquet and realign.csv into `folder`; return its rows.

    Args:
        shapes: of the layers.
        device: `cpu` or `cuda`.
        dtype: of torch, by its name.
        rounds: how often each is measured, in turns.
        folder: is made.
        say: called with each line of progress.

    Raises:
        ValueError: no such device, or numbers that cannot be.
    """
    if rounds < 1:
        raise ValueError(f"--rounds: given {rounds}, expected: an integer > 0")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: given cuda, but torch finds no GPU here; expected: cpu")
    place = torch.device(device)
    rows: list[Row] = []
    for shape in shapes:
        say(f"{shape}, {rounds} rounds")
        rows += _rows(Layer(shape, place, getattr(torch, dtype)), rounds)
    what = {"device": device, "dtype": dtype, "threads": torch.get_num_threads()}
    rows = [what | row for row in rows]
    facts = provenance.of_rank(place)
    notes = {"source": provenance.source(), "torch": torch.__version__, "cpu": facts["cpu"], "gpu": facts["gpu"]}
    results.write("realign", rows, folder / "realign.parquet", notes)
    csv.write_csv(pa.Table.from_pylist(rows, schema=results.REALIGN), folder / "realign.csv")
    return rows


def _rows(layer: Layer, rounds: int) -> list[Row]:
    ways = {name: make(layer) for name, make in WAYS.items()}
    found = []
    for part in ("forward", "backward"):
        for way in ways.values():
            way.arrive()
        found += _compared(layer, part, {name: getattr(way, part) for name, way in ways.items()}, rounds)
    return found + _compared(layer, "move", moves(layer), rounds)


def _compared(layer: Layer, part: str, calls: Mapping[str, Callable[[], object]], rounds: int) -> list[Row]:
    """Time calls in turns; return a row for each, with its ratio to the yardstick in the same round."""
    repeats = {name: _repeats(call, layer) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(_seconds(calls[name], repeats[name], layer) / repeats[name])
    yardstick = taken[YARDSTICKS[part]]
    rows = []
    for name, seconds in taken.items():
        ratios = [other / own for own, other in zip(seconds, yardstick, strict=True)]
        rows.append(
            vars(layer.shape)
            | {"part": part, "way": name, "rounds": rounds, "repeats": repeats[name]}
            | {"median_s": median(seconds), "least_s": min(seconds), "largest_s": max(seconds)}
            | {"times_as_fast": median(ratios), "times_as_fast_least": min(ratios)}
            | {"times_as_fast_largest": max(ratios)}
        )
    return rows


def _repeats(call: Callable[[], object], layer: Layer) -> int:
    """Return how many calls take about `LEAST_S`; what is done for the first time is done."""
    call()
    return max(1, min(MOST_REPEATS, round(LEAST_S / max(_seconds(call, 2, layer) / 2, 1e-9))))


def _seconds(call: Callable[[], object], repeats: int, layer: Layer) -> float:
    """Return the seconds of so many calls, to the end of what they have begun."""
    wait = _wait(layer)
    wait()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return time.perf_counter() - began


def _wait(layer: Layer) -> Callable[[], None]:
    return torch.cuda.synchronize if layer.buffer.is_cuda else lambda: None


def on_screen(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return for the screen a row per layer and part: microseconds, and times as fast as the yardstick, with range."""
    shown: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        layer = str(Shape(row["rows"], row["inputs"], row["outputs"]))
        line = shown.setdefault((layer, row["part"]), {"layer": layer, "part": row["part"]})
        ends = f"{row['times_as_fast_least']:.2f}-{row['times_as_fast_largest']:.2f}"
        ratio = "" if row["way"] == YARDSTICKS[row["part"]] else f"  {row['times_as_fast']:.2f}x ({ends})"
        line[row["way"]] = f"{1e6 * row['median_s']:.4g}{ratio}"
    return list(shown.values())
