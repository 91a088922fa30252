"""The answer of `ddp-hpc predict`: steps, what they cost, how far to trust that, and what to run to know more."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ddp_hpc.analysis import node_hours
from ddp_hpc.analysis.columns import key_of, rows_of, show_component, split
from ddp_hpc.analysis.prediction.step_model import BETWEEN, WITHIN
from ddp_hpc.analysis.tables import cost, prediction
from ddp_hpc.analysis.tables._scaling_lines import Elsewhere, Price, batch_key
from ddp_hpc.config import catalog
from ddp_hpc.config.machine import KnownLink, Machine
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study
from ddp_hpc.perfmodel import Link
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.files import replaced
from ddp_hpc.system.terminal import table_lines

_NUMBER = re.compile(r"-?[0-9.]+([eE][-+]?[0-9]+)?|true|false|null")

_SHOWN = {  # of the terminal: a column of the table and its heading
    "world_size": "ranks",
    "batch_size": "batch",
    "nodes": "nodes",
    "measured": "measured step",
    "step": "predicted step",
    "work": "work",
    "waiting": "waiting",
    "exchange": "exchange",
    "epoch": "epoch",
    "speedup": "speedup",
    "efficiency": "efficiency",
    "time": "training",
    "node_hours": "node-hours",
    "money": "money",
}


@dataclass(frozen=True)
class WhatIf:
    """What is to be other than it was measured: a link, how many ranks a node has, an exchange with its options."""

    latency_s: float | None = None
    gb_per_s: float | None = None
    ranks_per_node: int | None = None
    exchange: str | None = None  # its name, then options: `sharded_server servers=4`

    def __str__(self) -> str:
        link = "" if self.latency_s is None else f"a link of {1e6 * self.latency_s:g} us and {self.gb_per_s:g} GB/s"
        placed = f"{self.ranks_per_node} ranks per node" if self.ranks_per_node else ""
        return ", ".join(filter(None, (self.exchange and f"exchange {self.exchange}", link, placed)))

    @property
    def choice(self) -> tuple[str, dict[str, Any]] | None:
        """The exchange, and its options; raise a ValueError if there is none such."""
        if self.exchange is None:
            return None
        name, *words = self.exchange.split()
        pairs = dict(word.partition("=")[::2] for word in words)
        catalog.check("exchange", name)
        given = {option: json.loads(value) if _NUMBER.fullmatch(value) else value for option, value in pairs.items()}
        return name, catalog.check_options("exchange", name, given)


def elsewhere(machine: Machine | None, by_hand: WhatIf) -> Elsewhere:
    """Return what is known beside the runs, from a machine file and by hand, which counts more."""
    latency_s, gb_per_s, ranks_per_node = by_hand.latency_s, by_hand.gb_per_s, by_hand.ranks_per_node
    if (latency_s is None) != (gb_per_s is None):
        raise ValueError("given one of --latency and --bandwidth, expected: both, e.g. --latency 2e-6 --bandwidth 12.5")
    if ranks_per_node is not None and ranks_per_node < 1:
        raise ValueError(f"given --ranks-per-node {ranks_per_node}, expected: 1 or more")
    given = None
    if latency_s is not None and gb_per_s is not None:
        given = Link(latency=latency_s, bandwidth=1e9 * gb_per_s)
    if machine is None:
        return Elsewhere(link=given, ranks_per_node=ranks_per_node, exchange=by_hand.choice)
    _, partition = machine.partition(None)
    both = {WITHIN: machine.links.within, BETWEEN: machine.links.between}
    return Elsewhere(
        links={where: _link(link) for where, link in both.items() if link},
        link=given,
        exchange=by_hand.choice,
        ranks_per_node=ranks_per_node or partition.gpus_per_node or None,
        price=Price(price, machine.currency) if (price := machine.price_per_node_hour) else None,
    )


def _link(link: KnownLink) -> Link:
    return Link(latency=1e-6 * link.latency_us, bandwidth=1e9 * link.gb_per_s)


@dataclass(frozen=True)
class Wanted:
    """What is asked: at which world sizes and batches, and for how many node-hours."""

    world_sizes: Sequence[int] | None = None  # None: 2, 4 and 8 times the largest measured one
    batches: tuple[int, ...] = ()  # empty: those that were measured; else as `batch_key` of the study has them
    node_hours: float | None = None
    epochs: float | None = None  # a goal for the node-hours, beside those of the study


def answer(study_runs: StudyRuns, asked: Wanted, machine: Machine | None, what_if: WhatIf) -> dict[str, Any]:
    """Return the rows of the tables `prediction` and `cost` as asked, by the names of their columns.

    `batch_sizes` says what was meant by batches, `node_hours` what these buy. Where something is to be other than it
    was measured, the same follows for that, in `what_if`.
    """
    if asked.epochs is not None and asked.node_hours is None:
        raise ValueError("given --epochs alone, expected: with --node-hours, which are to suffice for them")
    other = elsewhere(machine, what_if)  # first, as it says what is wrong
    found: dict[str, Any] = {"study": study_runs.study.name}
    if asked.batches:
        kind, key = batch_key(study_runs.study)
        found["batch_sizes"] = {"given": list(asked.batches), "key": key, "of": _OF_BATCH[kind]}
    found |= _tables(study_runs, asked, elsewhere(machine, WhatIf()))
    if what_if != WhatIf():
        found["what_if"] = {"what_if": str(what_if)} | _tables(study_runs, asked, other)
    return found


_OF_BATCH = {"weak": "each rank", "strong": "all ranks together"}


def _tables(study_runs: StudyRuns, asked: Wanted, known: Elsewhere) -> dict[str, Any]:
    known = replace(known, batches=asked.batches)
    tables = {
        "prediction": prediction.predicted(study_runs, asked.world_sizes, known),
        "cost": cost.costs(study_runs, asked.world_sizes, known),
    }
    found: dict[str, Any] = {name: list(map(_plain, rows_of(rows))) for name, rows in tables.items()}
    if asked.node_hours is not None:
        rows = found["prediction"], found["cost"]
        found["node_hours"] = node_hours.bought(asked.node_hours, *rows, asked.epochs)
    return found


def drawn(found: Mapping[str, Any], study: Study, coverage: str, file: Path) -> Path:
    """Draw the figure `prediction` of an answer into a file, what-if over what was measured, and return the file."""
    from ddp_hpc.analysis.figures import prediction as figure
    from ddp_hpc.analysis.figures._style import style

    other = found.get("what_if", {"what_if": None, "prediction": []})
    rows = [row | {"what_if": None} for row in found["prediction"]]
    frame = pd.DataFrame(rows + [row | {"what_if": other["what_if"]} for row in other["prediction"]])
    with style(), replaced(file) as temporary:
        figure.draw({"prediction": frame}, study, coverage).savefig(temporary, format=file.suffix.lstrip(".") or "svg")
    return file


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if pd.isna(value) else value for name, value in row.items()}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield an answer as people read it: a block for each line over the ranks, then the same for what-if.

    What node-hours buy comes first.
    """
    if batches := found.get("batch_sizes"):
        yield from (f"--batch-size is the batch of {batches['of']}, as the study has `{batches['key']}`", "")
    yield from _blocks(found)
    if other := found.get("what_if"):
        yield from ("", f"What if: {other['what_if']}. All else is as measured.", "")
        yield from _blocks(other)


def _blocks(found: Mapping[str, Any]) -> Iterator[str]:
    if buys := found.get("node_hours"):
        yield from (*node_hours.lines(buys), "")
    rows, costs = (pd.DataFrame(found[name]) for name in ("prediction", "cost"))
    ways = costs[costs["goal"] != cost.BUDGET] if len(costs) else costs
    costs = costs[costs["goal"] == cost.BUDGET] if len(costs) else costs
    if rows.empty:
        yield "nothing to predict: no run of this study has an exchange"
        return
    axes = [name for name in SPEC_COLUMNS if name in rows and name not in ("world_size", "batch_size")]
    rows = (
        rows.merge(
            costs[[name for name in (*axes, "kind", "batch", "world_size", *_OF_COST) if name in costs]], how="left"
        )
        if len(costs)
        else rows
    )
    for number, (key, block) in enumerate(split(rows, [*axes, "kind", "batch"])):
        listed = rows_of(block)
        yield from [""] * bool(number)
        yield f"{_title(key)}{_checked(listed)}"
        yield from (f"  {line}" for line in table_lines([_cells(row) for row in listed]))
        yield from _why_not(listed)
        yield from {f"  {row['worth_it']}" for row in listed if isinstance(row.get("worth_it"), str)}
        names = [name for name in key if name in ways]
        here = [row for row in rows_of(ways) if key_of(row, names) == key_of(key, names)]
        yield from (_way(row) for row in here if row["from"] == "predicted" and pd.notna(row["time_s"]))
        yield from _no_way(here)


def _no_way(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why it is not known how long a goal takes, the world sizes with a common reason together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if pd.isna(row["time_s"]) and isinstance(row["reason"], str):
            reasons.setdefault((row["goal"], row["reason"]), []).append(str(row["world_size"]))
    for (goal, reason), sizes in reasons.items():
        yield f"  to {goal}, {', '.join(sizes)} ranks: {reason}"


def _way(row: Mapping[str, Any]) -> str:
    """Return how long a goal takes at a world size that was not measured, and how far to trust that."""
    if pd.isna(row["steps_low"]):
        steps = f"{row['steps']:.0f} steps, as measured with the same global batch"
        return f"  to {row['goal']}, {row['world_size']} ranks take {_between(row, 'time')}: {steps}"
    batch = round(row["world_size"] * (row["batch_size"] or 0))
    steps = f"{row['steps']:.0f} steps ({row['steps_low']:.0f} to {row['steps_high']:.0f}) of a global batch of {batch}"
    text = f"  to {row['goal']}, {row['world_size']} ranks take {_between(row, 'time')}: {steps}, by the noise scale"
    error, checked = row["steps_held_out_error_percent"], row["steps_held_out_batch"]
    return text if pd.isna(error) else f"{text}; predicted from the others, {checked:.0f} are {error:+.1f} % off"


_OF_COST = ("time_s", "node_hours", "money", "currency", "worth_it")


def _title(key: Mapping[str, Any]) -> str:
    words = [show_component(key["exchange"], key.get("exchange_options", "{}"))]
    words += [f"{name} {value}" for name, value in key.items() if name not in _OWN and not name.endswith("_options")]
    batch = "per rank" if key["kind"] == "weak" else "in all"
    return f"{', '.join(words)}: {key['kind']} scaling, {key['batch']} samples {batch}"


_OWN = ("exchange", "exchange_options", "kind", "batch")


def _checked(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if pd.notna(row["held_out_error_percent"])]
    if not known:
        return ""
    row = known[0]
    error, world_size = row["held_out_error_percent"], row["held_out_world_size"]
    return f"; predicted from the smaller ones, {world_size:.0f} ranks are {error:+.1f} % off what was measured"


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: row.get(name) for name in ("world_size", "batch_size", "nodes")}
    values |= {name: _between(row, name) for name in ("measured", "step", "epoch")}
    values |= {name: _time(row[f"{name}_s"]) for name in ("work", "waiting", "exchange")}
    values["time"] = _time(row.get("time_s"))
    for name in ("speedup", "efficiency", "node_hours", "money"):
        value = row.get(name)
        values[name] = None if pd.isna(value) else f"{value:.3g}"
    if values["epoch"] is None:
        del values["epoch"]
    if values["money"] is None:
        del values["money"]
    elif isinstance(row["currency"], str):
        values["money"] += f" {row['currency']}"
    whole = {name: None if pd.isna(value) else value for name, value in values.items()}
    return {_SHOWN[name]: int(v) if isinstance(v := whole[name], float) else v for name in _SHOWN if name in whole}


def _between(row: Mapping[str, Any], name: str) -> str | None:
    middle, low, high = (row[f"{name}{end}_s"] for end in ("", "_low", "_high"))
    if pd.isna(middle):
        return None
    return _time(middle) if pd.isna(low) else f"{_time(middle)} ({_time(low)} to {_time(high)})"


def _time(seconds: float | None) -> str | None:
    """Return e.g. `12.3 ms`."""
    if seconds is None or pd.isna(seconds):
        return None
    if seconds >= 60:
        return node_hours.lasting(seconds)
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _why_not(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what cannot be said, the world sizes with a common reason together, and what to run."""
    reasons: dict[tuple[str, Any], list[str]] = {}
    for row in rows:
        if isinstance(row["reason"], str):
            to_run = row["to_run"] if isinstance(row["to_run"], str) else None
            reasons.setdefault((row["reason"], to_run), []).append(str(row["world_size"]))
    for (reason, to_run), sizes in reasons.items():
        yield f"  {', '.join(sizes)} ranks: {reason}"
        if to_run:
            yield from ("  what would tell, to paste under `grid`:", f"    {to_run}")
