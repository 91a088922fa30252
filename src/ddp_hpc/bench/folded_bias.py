"""What it costs to fold a layer's bias into its weights, against addmm, forward and backward: `ddp-hpc bench realign`.

A layer of weights W, outputs x inputs, maps rows of inputs A to A W' + b. Four ways, which all give the same:

- `addmm`: as torch does it, the bias beside the weights.
- `shifts`: as SHM-Learn-Dist did it. Ones are moved in front of the inputs, which the layer before has left there
  without; one product with [b|W]. The gradient of the inputs needs W alone: the bias is moved out, and in again.
- `cat`: the same product, the ones and the inputs copied into new memory by torch.cat.
- `strides`: nothing is moved, for matrix products take matrices with a leading dimension: the layer before writes
  behind a column of ones that stays, and W is read where it lies, behind the bias.

A sample is the mean of some calls after one another, by torch's own timer, which waits for a GPU; each round takes
every way once, in another order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import torch
from pyarrow import csv
from torch import Tensor
from torch.utils.benchmark import Timer

from ddp_hpc.bench import timing
from ddp_hpc.bench.timing import Row
from ddp_hpc.models._shift_kernels import shift_left, shift_right
from ddp_hpc.profiling import provenance
from ddp_hpc.runs.schema import FLOAT, INTEGER, TEXT, field

LEAST_S = 0.05  # a sample takes about that long
MOST_REPEATS = 1000
YARDSTICKS = {"forward": "addmm", "backward": "addmm", "move": "cat"}

REALIGN = pa.schema(
    [
        field("rows", INTEGER, "samples", "of the layer's inputs"),
        field("inputs", INTEGER, "", "of the layer, without the one of its bias"),
        field("outputs", INTEGER, "", "of the layer"),
        field("part", TEXT, "", "forward, backward; or move: to put the ones in front, without any product"),
        field("way", TEXT, "", "see ddp_hpc/bench/folded_bias.py"),
        field("device", TEXT, "", "cpu or cuda"),
        field("dtype", TEXT, "", "of all numbers"),
        field("threads", INTEGER, "threads", "of torch, on a CPU"),
        field("median_s", FLOAT, "s", "of one call, over the rounds"),
        field("least_s", FLOAT, "s", "the least of the rounds"),
        field("largest_s", FLOAT, "s", "the largest of the rounds"),
        field("times_as_fast", FLOAT, "", "time of addmm (a move: of cat) in the same round over this one; median"),
        field("times_as_fast_least", FLOAT, "", "the least of the rounds"),
        field("times_as_fast_largest", FLOAT, "", "the largest of the rounds"),
        field("rounds", INTEGER, "", "samples, each the mean of some calls after one another"),
        field("repeats", INTEGER, "", "calls of a sample"),
    ]
)


class Shape(NamedTuple):
    """Of a layer: rows (samples), inputs and outputs."""

    rows: int
    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.inputs}x{self.outputs}"


SHAPES = (
    Shape(75, 600, 150),  # the first layer of the strain-stress network, and its batch
    Shape(1000, 600, 150),
    Shape(512, 1024, 1024),
    Shape(4096, 1024, 1024),
    Shape(16384, 64, 64),
)


def shape_of(text: str) -> Shape:
    """Return the shape that a command line gives as `rowsxinputsxoutputs`."""
    sizes = text.split("x")
    if len(sizes) != 3 or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise ValueError(f"--shapes: given {text!r}, expected: rowsxinputsxoutputs, integers > 0, e.g. 75x600x150")
    return Shape(*map(int, sizes))


class Layer:
    """What the ways have in common: inputs, weights with the bias in front, and the gradient of the outputs."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(0)

        def numbers(*size: int) -> Tensor:
            return torch.randn(*size, generator=draw).to(device, dtype)

        self.shape = shape
        self.inputs = numbers(shape.rows, shape.inputs)
        self.gradient = numbers(shape.rows, shape.outputs)
        self.folded = numbers(shape.outputs, shape.inputs + 1)
        self.bias, self.weights = self.folded[:, 0].clone(), self.folded[:, 1:].clone()
        self.ones = self.inputs.new_ones(shape.rows, 1)
        self.buffer = self.inputs.new_ones(shape.rows * (shape.inputs + 1))
        self.wide = self.buffer.view(shape.rows, shape.inputs + 1)
        self.both = self.wide  # of ones and inputs, where `cat` leaves them
        self.memory = self.folded.clone().flatten()  # of [b|W], where `shifts` moves the bias out and in


Gradients = tuple[Tensor, Tensor, Tensor]  # of inputs, weights and bias


def addmm(one: Layer) -> Tensor:
    return torch.addmm(one.bias, one.inputs, one.weights.T)


def addmm_backward(one: Layer) -> Gradients:
    return one.gradient @ one.weights, one.gradient.T @ one.inputs, one.gradient.sum(0)


def arrive_at_the_beginning(one: Layer) -> None:
    one.buffer[: one.inputs.numel()].copy_(one.inputs.flatten())


def shifts(one: Layer) -> Tensor:
    return shift_right(one.buffer, one.shape.rows, one.shape.inputs) @ one.memory.view_as(one.folded).T


def shifts_backward(one: Layer) -> Gradients:
    both, bias = one.gradient.T @ one.wide, one.memory.view_as(one.folded)[:, 0].clone()
    of_inputs = one.gradient @ shift_left(one.memory, one.shape.outputs, one.shape.inputs)
    shift_right(one.memory, one.shape.outputs, one.shape.inputs)[:, 0] = bias
    return of_inputs, both[:, 1:], both[:, 0]


def cat(one: Layer) -> Tensor:
    one.both = torch.cat([one.ones, one.inputs], 1)
    return one.both @ one.folded.T


def cat_backward(one: Layer) -> Gradients:
    both = one.gradient.T @ one.both
    return one.gradient @ one.folded[:, 1:].contiguous(), both[:, 1:], both[:, 0]


def arrive_behind_ones(one: Layer) -> None:
    one.buffer.fill_(1)
    one.wide[:, 1:].copy_(one.inputs)


def strides(one: Layer) -> Tensor:
    return one.wide @ one.folded.T


def strides_backward(one: Layer) -> Gradients:
    both = one.gradient.T @ one.wide
    return one.gradient @ one.folded[:, 1:], both[:, 1:], both[:, 0]


class Way(NamedTuple):
    """Of a layer: how the layer before leaves its outputs, which is not timed, and the two passes, which are."""

    arrive: Callable[[Layer], None]
    forward: Callable[[Layer], Tensor]
    backward: Callable[[Layer], Gradients]


WAYS = {
    "addmm": Way(lambda one: None, addmm, addmm_backward),
    "shifts": Way(arrive_at_the_beginning, shifts, shifts_backward),
    "cat": Way(lambda one: None, cat, cat_backward),
    "strides": Way(arrive_behind_ones, strides, strides_backward),
}


def moves(layer: Layer) -> dict[str, Callable[[], object]]:
    """Return what puts the ones in front of the inputs, without any product: in place, and by torch.cat."""
    shape = layer.shape
    found: dict[str, Callable[[], object]] = {
        "cat": lambda: torch.cat([layer.ones, layer.inputs], 1),
        "shift_right": lambda: shift_right(layer.buffer, shape.rows, shape.inputs),
    }
    if layer.buffer.is_cuda:  # what the kernel is worth
        found["shift_right in pieces"] = lambda: shift_right(layer.buffer, shape.rows, shape.inputs, False)
    return found


def measure(shapes: Sequence[Shape], device: str, dtype: str, rounds: int, folder: Path) -> list[Row]:
    """Measure, and write realign.parquet and realign.csv into `folder`, which is made; return the rows.

    Raises:
        ValueError: no such device, or numbers that cannot be.
    """
    if rounds < 1:
        raise ValueError(f"--rounds: given {rounds}, expected: an integer > 0")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: given cuda, but torch finds no GPU here; expected: cpu")
    place = torch.device(device)
    tables = []
    for shape in shapes:
        timing.say(f"{shape}, {rounds} rounds")
        samples = pd.DataFrame(_samples(Layer(shape, place, getattr(torch, dtype)), rounds))
        tables.append(timing.over_rounds(samples, ["part", "way"]).assign(**shape._asdict()))
    table = pd.concat(tables).assign(device=device, dtype=dtype, threads=torch.get_num_threads())
    rows = timing.rows_of(table, REALIGN)
    facts = provenance.of_rank(place)
    notes = {"source": provenance.source(), "torch": torch.__version__, "cpu": facts["cpu"], "gpu": facts["gpu"]}
    timing.write("realign", REALIGN, rows, folder / "realign.parquet", notes)
    csv.write_csv(pa.Table.from_pylist(rows, schema=REALIGN), folder / "realign.csv")
    return rows


def _samples(layer: Layer, rounds: int) -> Iterator[Row]:
    """Yield the samples of all ways of all parts."""
    for part in ("forward", "backward"):
        for way in WAYS.values():
            way.arrive(layer)
        yield from _in_turns(part, {name: partial(getattr(way, part), layer) for name, way in WAYS.items()}, rounds)
    yield from _in_turns("move", moves(layer), rounds)


def _in_turns(part: str, calls: Mapping[str, Callable[[], object]], rounds: int) -> Iterator[Row]:
    """Yield a sample of each call in each round, with its ratio to the yardstick in the same round."""
    threads = torch.get_num_threads()
    timers = {name: Timer("call()", globals={"call": call}, num_threads=threads) for name, call in calls.items()}
    repeats = {
        name: max(1, min(MOST_REPEATS, round(LEAST_S / max(timer.timeit(2).mean, 1e-9))))
        for name, timer in timers.items()
    }
    names = list(calls)
    for turn in range(rounds):
        shift = turn % len(names)
        seconds = {name: timers[name].timeit(repeats[name]).mean for name in names[shift:] + names[:shift]}
        for name in names:
            ratio = seconds[YARDSTICKS[part]] / seconds[name]
            yield {"part": part, "way": name, "seconds": seconds[name], "ratio": ratio, "repeats": repeats[name]}


def on_screen(rows: Sequence[Row]) -> list[Row]:
    """Return for the screen a row per layer and part: microseconds, and times as fast as the yardstick, with range."""
    shown: dict[tuple[str, str], Row] = {}
    for row in rows:
        layer = "{rows}x{inputs}x{outputs}".format(**row)
        line = shown.setdefault((layer, row["part"]), {"layer": layer, "part": row["part"]})
        ends = f"{row['times_as_fast_least']:.2f}-{row['times_as_fast_largest']:.2f}"
        ratio = "" if row["way"] == YARDSTICKS[row["part"]] else f"  {row['times_as_fast']:.2f}x ({ends})"
        line[row["way"]] = f"{1e6 * row['median_s']:.4g}{ratio}"
    return list(shown.values())
