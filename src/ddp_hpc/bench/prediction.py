"""Whether predictions come true: `ddp-hpc bench prediction`.

Steps of strong scaling are measured on nodes of this machine whose links are shaped (`shaped_links`), a rank on each.
The model of `ddp-hpc predict` is fitted to few nodes and judged on more. A step is a sleep, the shorter the more ranks
share the work, and a real exchange over TCP. There may be more ranks than cores, so nothing is computed: a sleep needs
no core, as if a device computed, and links that are slow enough are what an exchange takes.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from ddp_hpc.analysis.intervals import Interval, over_runs
from ddp_hpc.analysis.prediction.measured import Place, Run
from ddp_hpc.analysis.prediction.step_model import ExchangeModel, Model
from ddp_hpc.analysis.prediction.trust import doubt
from ddp_hpc.bench import other_models, prediction_figure
from ddp_hpc.bench.exchange import component, runnable
from ddp_hpc.bench.launch import run_ranks
from ddp_hpc.bench.shaped_links import ShapedNodes, lacking
from ddp_hpc.bench.timing import Row, say, write
from ddp_hpc.config import catalog
from ddp_hpc.config.spec import Component, shown
from ddp_hpc.runs.schema import BOOL, FLOAT, INTEGER, TEXT, field
from ddp_hpc.system.files import read_json, text_of
from ddp_hpc.system.process import usable_cores

LEAST_S = 0.5  # a sample takes about that long

_WHAT = [
    field("exchange", TEXT, "", "file in exchange/"),
    field("exchange_options", TEXT, "JSON", "its options that differ from their defaults"),
    field("bytes", INTEGER, "B", "of the gradients"),
    field("world_size", INTEGER, "ranks", "nodes, with a rank each"),
]
SAMPLES = pa.schema(
    [
        *_WHAT,
        field("launch", INTEGER, "", "how often this was launched before"),
        field("round", INTEGER, "", "of the launch"),
        field("seconds", FLOAT, "s", "of a step on the slowest rank, mean of `repeats`"),
        field("repeats", INTEGER, "steps", "after one another"),
        field("work_s", FLOAT, "s", "of that, what each rank slept before its exchange"),
    ]
)
PREDICTIONS = pa.schema(
    [
        *_WHAT,
        field("fitted", BOOL, "", "whether the models were fitted to this; else they are judged by it"),
        field("launches", INTEGER, "", "each counts as one measurement"),
        field("work_s", FLOAT, "s", "what each rank slept before its exchange"),
        field("measured_s", FLOAT, "s", "the exchange: the step less the sleep, median over the launches"),
        field("measured_low_s", FLOAT, "s", "the low end of its 95 % interval"),
        field("measured_high_s", FLOAT, "s", "the high end"),
        field("predicted_s", FLOAT, "s", "the exchange, by the model of ddp-hpc predict"),
        field("predicted_low_s", FLOAT, "s", "the low end of its 95 % interval"),
        field("predicted_high_s", FLOAT, "s", "the high end"),
        field("error_percent", FLOAT, "%", "of the predicted exchange"),
        field("step_error_percent", FLOAT, "%", "of the predicted step"),
        field("amdahl_error_percent", FLOAT, "%", "of the step by Amdahl's law, fitted to the same steps"),
        field(
            "extrap_error_percent", FLOAT, "%", "of the step by Extra-P, fitted to the same steps; null: not installed"
        ),
        field("extrap_model", TEXT, "", "what Extra-P found, over the ranks p"),
        field("reason", TEXT, "", "why nothing is predicted"),
    ]
)


class Measurements(NamedTuple):
    """What is to be measured."""

    exchanges: Sequence[Component]
    counts: Sequence[int]  # of nodes
    sizes: Sequence[int]  # bytes
    work_s: float  # of one rank alone
    mbit_per_s: float
    launches: int
    rounds: int  # of each launch


def counts_of(fitted: Sequence[int], judged: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return both in order; raise a ValueError if a count is in both."""
    if both := sorted({*fitted} & {*judged}):
        raise ValueError(f"--fit and --judge: {', '.join(map(str, both))} given in both, expected: in one")
    return sorted({*fitted}), sorted({*judged})


def asked_of(names: Sequence[str], counts: Sequence[int], sizes: Sequence[int], *others: Any) -> Measurements:
    """Return what a command line asks for; raise a ValueError for what cannot be measured."""
    exchanges = [component(name) for name in names]
    for one in exchanges:
        flags = catalog.constants("exchange", one.name)
        if flags.get("OVERLAPS") or catalog.cost_model(one.name, one.options) is None:
            why = "goes on beside the backward pass, which is not there" if flags.get("OVERLAPS") else "has no model"
            raise ValueError(f"--exchanges: given {one}: it {why}; expected: e.g. ring, parameter_server")
    if bad := [size for size in sizes if size % 4]:
        raise ValueError(f"--sizes: given {', '.join(map(str, bad))}, expected: multiples of 4")
    return Measurements(exchanges, sorted(set(counts)), sorted(set(sizes)), *others)


def measure(asked: Measurements, folder: Path) -> list[Row]:
    """Measure steps on shaped links, write samples.parquet into `folder`, and return its rows.

    Raises:
        ValueError: something lacks on this machine, or an exchange cannot run on it.
        RuntimeError: a launch failed; what was measured before is written.
    """
    if why := lacking():
        raise ValueError(f"no shaped links here: {why}")
    samples: list[Row] = []
    about = {"cores": usable_cores(), "mbit_per_s": asked.mbit_per_s, "load_before": os.getloadavg()}
    try:
        with ShapedNodes(max(asked.counts), asked.mbit_per_s) as nodes:
            for launch in range(asked.launches):
                for count in asked.counts:
                    say(f"launch {launch + 1} of {asked.launches}: {count} nodes")
                    samples += _launched(asked, count, launch, nodes, about)
            about |= {"dropped_packets": nodes.dropped, "load_after": os.getloadavg()}
    finally:
        if samples:
            write("prediction-samples", SAMPLES, samples, folder / "samples.parquet", about)
    return samples


def _launched(asked: Measurements, count: int, launch: int, nodes: ShapedNodes, about: dict[str, Any]) -> Iterator[Row]:
    specs, out = runnable(asked.exchanges, count)
    if out:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in out.items()))
    work_s = asked.work_s / count
    wanted = {"sizes": asked.sizes, "rounds": asked.rounds, "least_s": LEAST_S, "work_s": work_s}
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as scratch:
        run_ranks("sweep", Path(scratch), wanted | {"specs": [spec.canonical for spec in specs]}, count, nodes.launcher)
        about |= {"ranks": read_json(Path(scratch) / "provenance.json")}
        lines = text_of(Path(scratch) / "samples.jsonl").splitlines()
    for line in lines:
        row = json.loads(line) | {"launch": launch, "work_s": work_s}
        yield {name: row[name] for name in SAMPLES.names}


def predictions(samples: Sequence[Row], fitted: Sequence[int], judged: Sequence[int]) -> list[Row]:
    """Return a row per exchange, size and count: measured, and predicted from the `fitted` counts alone."""
    rows = []
    for (exchange, options, size), by_count in _series(samples).items():
        if missing := sorted({*fitted, *judged} - by_count.keys()):
            raise ValueError(f"not measured with {', '.join(map(str, missing))} nodes; there are {sorted(by_count)}")
        model = _model(exchange, json.loads(options), size, [one for n in fitted for one in by_count[n]])
        steps = {n: median(one["seconds"] for one in by_count[n]) for n in by_count}
        others = other_models.predicted({n: steps[n] for n in fitted}, judged)
        for n in (*fitted, *judged):
            what = {"exchange": exchange, "exchange_options": options, "bytes": size, "world_size": n}
            what |= {"fitted": n in fitted, "launches": len(by_count[n]), "work_s": by_count[n][0]["work_s"]}
            errors = {name: _error(value, steps[n]) for name, value in others.errors_of(n).items()}
            found = _judged(model, by_count[n]) | errors | {"extrap_model": others.formula}
            rows.append(dict.fromkeys(PREDICTIONS.names) | what | found)
    return rows


def _series(samples: Sequence[Row]) -> dict[tuple[Any, ...], dict[int, list[Row]]]:
    """Return the means over each launch, by exchange, options and size, then by count: a launch is a run."""
    table = pd.DataFrame(samples)
    found: dict[tuple[Any, ...], dict[int, list[Row]]] = {}
    same = ["exchange", "exchange_options", "bytes", "world_size", "launch"]
    for row in table.groupby(same, sort=False, as_index=False).mean().to_dict("records"):
        launches = found.setdefault((row["exchange"], row["exchange_options"], row["bytes"]), {})
        launches.setdefault(row["world_size"], []).append({str(name): value for name, value in row.items()})
    return found


def _place(launch: Row) -> Place:
    n = launch["world_size"]
    return Place(world_size=n, batch_size=1 / n, nodes=n)  # a step's work, shared by n


def _model(exchange: str, options: Mapping[str, Any], size: int, launches: Sequence[Row]) -> Model:
    formula, given = catalog.cost_model(exchange, options) or ("nothing", {})
    runs = []
    for one in launches:
        moved = one["seconds"] - one["work_s"]
        runs.append(Run(place=_place(one), work_s=one["work_s"], exchange_s=moved, exposed_s=moved))
    return Model(runs, ExchangeModel(formula=formula, size=size, options=given), shares_memory=False)


def _judged(model: Model, launches: Sequence[Row]) -> Row:
    """Return what was measured at a count, and what the model says of it."""
    place, work_s = _place(launches[0]), launches[0]["work_s"]
    exchange = over_runs([one["seconds"] - one["work_s"] for one in launches])
    row = _spread("measured", exchange)
    if why := doubt(model, place):
        return row | {"reason": why.reason}
    found = model.predict(place)
    moved = found.interval(found.replicates.exchange_s, float(found.middle.exchange_s))
    row |= _spread("predicted", moved) | {"error_percent": _error(moved.middle, exchange.middle)}
    return row | {"step_error_percent": _error(float(found.middle.step_s), exchange.middle + work_s)}


def _spread(name: str, one: Interval) -> Row:
    return {f"{name}_s": one.middle, f"{name}_low_s": one.low, f"{name}_high_s": one.high}


def _error(predicted: float | None, measured: float) -> float | None:
    return None if predicted is None else 100 * (predicted / measured - 1)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row per exchange: the errors of what was not fitted, the median and the largest of their sizes."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not row["fitted"]:
            found.setdefault(shown(row["exchange"], json.loads(row["exchange_options"])), []).append(row)
    lines = []
    for name, judged in found.items():
        line: Row = {"exchange": name, "predictions": len(judged)}
        for what in ("error", "step_error", "amdahl_error", "extrap_error"):
            sizes = [abs(row[f"{what}_percent"]) for row in judged if row[f"{what}_percent"] is not None]
            line[f"{what}_%"] = f"{median(sizes):.1f} (worst {max(sizes):.1f})" if sizes else None
        held = [
            row["predicted_low_s"] <= row["measured_s"] <= row["predicted_high_s"]
            for row in judged
            if row["predicted_s"]
        ]
        lines.append(line | {"in interval": f"{sum(held)} of {len(held)}"})
    return lines


def written(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Write predictions as Parquet, CSV and a figure into `folder`, and return their summary."""
    about = {"fitted": sorted({row["world_size"] for row in rows if row["fitted"]})}
    write("predictions", PREDICTIONS, rows, folder / "predictions.parquet", about)
    csv.write_csv(pq.read_table(folder / "predictions.parquet"), folder / "predictions.csv")
    prediction_figure.make(rows, folder)
    return summary(rows)


def read_samples(file: Path) -> list[Row]:
    """Return the rows of samples.parquet."""
    rows: list[Row] = pq.read_table(file).to_pylist()
    return rows
