"""Which runs the rows of a table are made from, so that each number of the page leads to them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.types import canonical_json


def runs_of_rows(table: pd.DataFrame, runs: pd.DataFrame) -> list[list[int]]:
    """Return for each row of a table the numbers of its runs, from 1 in the order of the plan.

    They are the runs that the row names or, if it names none, all that have the row's values of the fields of specs.
    """
    number = {run: place for place, run in enumerate(runs["run"], 1)}
    if "winner_runs" in table:
        named = table["winner_runs"].fillna("").str.split()
        return [[number[run] for run in row if run in number] for row in named]
    if "run" in table:
        return [[number[run]] if run in number else [] for run in table["run"]]
    fields = [name for name in SPEC_COLUMNS if name in table]
    if not fields:
        return [[] for _ in range(len(table))]
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows_of(runs[fields]), 1):
        found.setdefault(_key(row, fields), []).append(place)
    return [found.get(_key(row, fields), []) for row in rows_of(table[fields])]


def _key(row: Mapping[str, Any], fields: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of some fields; options are equal however their letters are written."""

    def value(name: str) -> Any:
        if pd.isna(row[name]):
            return None
        return canonical_json(json.loads(row[name])) if name.endswith("_options") else row[name]

    return tuple(map(value, fields))
