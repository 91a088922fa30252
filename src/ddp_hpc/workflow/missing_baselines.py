"""Says before any run which tables and figures will be empty, as what they compare with is not planned."""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ddp_hpc.config.comparability import BASELINES, EXCHANGE, RANKS, agreeing
from ddp_hpc.config.grid_checks import PARTS
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, Study, listed
from ddp_hpc.config.types import canonical_json
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.workflow.targets import figure_tables

MOST_LETTERS = 300  # of the lines to add


def noted(study_runs: StudyRuns) -> StudyRuns:
    """Return `study_runs`, with a note for what will be empty."""
    specs = [planned.spec for planned in study_runs.planned]
    return replace(study_runs, notes=(*study_runs.notes, *_notes(study_runs.study, specs)))


def _notes(study: Study, specs: Sequence[RunSpec]) -> Iterator[str]:
    read = {table for name in study.figure_names for table in figure_tables(name)}
    rows = [spec.columns() | {GLOBAL_BATCH: spec.global_batch_size} for spec in specs]
    lacking = {name: _lacking(rows, BASELINES[name][1]) for name in BASELINES if name in {*study.table_names, *read}}
    if alone := [specs[place] for place in sorted(set().union(*lacking.values()))]:
        empty = [name for name in lacking if lacking[name] and not BASELINES[name][0]]
        columns = [f"{BASELINES[name][0]} of {name}" for name in lacking if lacking[name] and BASELINES[name][0]]
        figures = [f"figure {name}" for name in study.figure_names if set(figure_tables(name)) & set(empty)]
        shown = ", ".join([*(f"table {name}" for name in empty), *figures, *columns])
        yield (
            f"{len(alone)} of {len(specs)} runs have no baseline, one rank with exchange none that is else alike; what "
            f"compares with it will be empty for them: {shown}; to have it, add to `grid`, as one more of its list: "
            f"{_grid(study, alone)}"
        )
    reference, exchanges = study.rules.reference_exchange, {spec.exchange.name for spec in specs} - {"none"}
    if "exchanges" in lacking and exchanges and reference not in exchanges:
        yield (
            f"no run has the reference exchange, {reference}; times_as_fast of table exchanges will be empty; to have "
            f"it, add {reference} to the exchanges, or write under `rules`: `reference_exchange: {min(exchanges)}`"
        )


def _lacking(rows: Sequence[dict[str, Any]], may_differ: Collection[str]) -> set[int]:
    """Return the places of the runs with an exchange, on several ranks if any has, without baseline.

    It has their batch or, in a strong scaling, their global batch.
    """
    least = min(2, max(row["world_size"] for row in rows))
    lacking = {at for at, row in enumerate(rows) if row["exchange"] != "none" and row["world_size"] >= least}
    for names in (agreeing(may_differ), [*agreeing({*may_differ, "batch_size"}), GLOBAL_BATCH]):
        shared = itemgetter(*names)
        alone = {shared(row) for row in rows if row["exchange"] == "none" and row["world_size"] == 1}
        lacking = {at for at in lacking if shared(rows[at]) not in alone}
    return lacking


def _grid(study: Study, alone: Sequence[RunSpec]) -> str:
    """Return the grid of baselines as a study file writes it: of what grids set, the values that the runs have."""
    parts = [part for grid in study.grid for part in (grid, *listed(grid.get("zip", [])))]
    written = dict.fromkeys(str(name).partition(".")[0] for part in parts for name in part if name not in PARTS)
    told = {GLOBAL_BATCH, *study.base, *(name for spec in alone for name in spec.canonical)} - EXCHANGE - RANKS
    names = [name for name in written if name in told]
    rows = [spec.model_dump(mode="json", include={*names}) | {GLOBAL_BATCH: spec.global_batch_size} for spec in alone]
    points = {canonical_json([row[name] for name in names]): row for row in rows}
    columns = {name: [row[name] for row in points.values()] for name in names}
    axes: dict[str, Any] = {name: [*{canonical_json(one): one for one in columns[name]}.values()] for name in names}
    if math.prod(map(len, axes.values())) > len(points):  # no product: point by point
        several = {name: columns[name] for name in names if len(axes[name]) > 1}
        axes = {name: axes[name] for name in names if name not in several} | {"zip": several}
    shown = {name: found[0] if len(found) == 1 else found for name, found in axes.items()}
    one = {"world_size": 1} if any(spec.program for spec in alone) else {"exchange": "none", "world_size": 1}
    text = f"`- {_flow(one | shown)}`"
    same = f"`- {_flow(one)[:-1]}, ...}}` with all their values of {', '.join(names)}"
    return text if len(text) <= MOST_LETTERS else same


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_flow(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value)
