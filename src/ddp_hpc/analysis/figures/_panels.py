"""The panels of a figure: one for each group of runs that compete with one another."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import key_of, rows_of, search_columns, show, show_component, split, varying
from ddp_hpc.config import catalog
from ddp_hpc.config.spec import COMPONENTS, SPEC_COLUMNS
from ddp_hpc.config.study import Study
from ddp_hpc.config.types import canonical_json


@dataclass(frozen=True)
class Panel:
    """A group: its values, in words, and its rows."""

    key: Mapping[str, Any]
    title: str
    rows: pd.DataFrame


def columns_but(frame: pd.DataFrame, *left_out: str) -> list[str]:
    """Return the spec columns of a table, without some."""
    return [name for name in SPEC_COLUMNS if name in frame and name not in left_out]


def group_columns(frame: pd.DataFrame, study: Study) -> list[str]:
    """Return the spec columns of a table that say what competes with what."""
    return columns_but(frame, "seed", *search_columns(study))


def panels(frame: pd.DataFrame, groups: list[str], *named: str) -> list[Panel]:
    """Return a panel per group of rows, first without exchange, by the ranks last, so that they follow one another.

    Titles say what differs between the panels, and what is `named`.
    """
    order = sorted(groups, key=lambda name: name == "world_size")
    differ = {*varying(frame), *named}
    found = [Panel(key, title(key, differ), rows) for key, rows in split(frame, order)]
    return sorted(found, key=lambda panel: panel.key.get("exchange") != "none")


def few(found: list[Panel], most: int) -> tuple[list[Panel], list[str]]:
    """Return the panels for which a figure has room, and what its caption says of the others.

    Of too many only those of the most ranks are kept, of panels that differ in nothing else, then the first ones.
    """
    if len(found) <= most:
        return found, []
    largest: dict[tuple[Any, ...], Panel] = {}
    for panel in found:
        rest = key_of(panel.key, [name for name in panel.key if name != "world_size"])
        if rest not in largest or panel.key.get("world_size", 0) > largest[rest].key.get("world_size", 0):
            largest[rest] = panel
    kept = list(largest.values())
    which = "those of the most ranks" if len(kept) < len(found) else "the first ones"
    if most < len(kept) < len(found):
        which = "the first ones of those of the most ranks"
    return kept[:most], [f"Shown are {len(kept[:most])} of {len(found)} panels, {which}; all are in the tables."]


def title(key: Mapping[str, Any], differ: set[str]) -> str:
    """Return what sets a group apart, in words: `ring, 4 ranks`; the ranks always, the rest if it differs."""
    return ", ".join(filter(None, (_part(name, key, differ) for name in key)))


def short_titles(keys: Sequence[Mapping[str, Any]], differ: set[str]) -> tuple[list[str], list[str]]:
    """Return titles without what most groups have in common, and that: what a group has that does not say otherwise.

    The exchange is always said.
    """
    parts = {name: [_part(name, key, differ) for key in keys] for name in dict.fromkeys(itertools.chain(*keys))}
    usual = []
    for name, texts in parts.items():
        most, count = Counter(texts).most_common(1)[0]
        if name != "exchange" and most and 2 * count > len(keys):
            usual.append(most)
            parts[name] = ["" if text == most else text for text in texts]
    return [", ".join(filter(None, texts)) for texts in zip(*parts.values(), strict=True)], usual


def _part(name: str, key: Mapping[str, Any], differ: set[str]) -> str:
    if name == "world_size":
        return ranks(key[name])
    options = f"{name}_options"
    if not differ & {name, options}:
        return ""
    if name in COMPONENTS:
        in_words = exchange_words if name == "exchange" else show_component
        return in_words(key[name], key.get(options, "{}") if options in differ else "{}")
    choice = name.removesuffix("_options")
    if choice != name:
        return "" if choice in key else show_component(choice, key[name])
    return f"{name.replace('_', ' ')} {show(key[name])}"


def ranks(world_size: int) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{show(world_size)} rank{'' if world_size == 1 else 's'}"


def exchange_words(exchange: str, options: Any = "{}") -> str:
    """Return an exchange with its options; what has none is `no exchange`."""
    return "no exchange" if exchange == "none" else show_component(exchange, options)


def spelled_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose choices name the defaults of options, but for flags, that other rows set otherwise.

    So `weight_average` beside `weight_average (period 10)` becomes `weight_average (period 1)`.
    """
    told = frame.copy()
    for choice, column in ((choice, f"{choice}_options") for choice in COMPONENTS):
        if choice == "program" or choice not in told or column not in told or told[column].isna().any():
            continue  # no file says which options a program has, and its runs have no model
        rows = [(str(name), json.loads(options)) for name, options in zip(told[choice], told[column], strict=True)]
        named = {(name, option) for name, options in rows for option in options}
        defaults = {
            name: {
                option.name: option.plain_default
                for option in catalog.options(choice, name).values()
                if (name, option.name) in named and not isinstance(option.default, bool)
            }
            for name, _ in rows
        }
        told[column] = [canonical_json(defaults[name] | options, escaped=False) for name, options in rows]
    return told


def matching(frame: pd.DataFrame, key: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of another table that have the values of `key`; nulls are equal."""
    columns = [name for name in key if name in frame]
    wanted = key_of(key, columns)
    return frame[[key_of(row, columns) == wanted for row in rows_of(frame)]]


def searched_names(frame: pd.DataFrame, study: Study) -> list[str]:
    """Return the searched values that differ in a table, in words, in the order in which a point names them."""
    differ = varying(frame)
    names = [name for name in search_columns(study) if name in differ or f"{name}_options" in differ]
    return [name.replace("_", " ") for name in names if not name.endswith("_options")]


def axis_label(name: str) -> str:
    """Return the name of a searched column for an axis, with its unit."""
    return {"batch_size": "batch size per rank (samples)"}.get(name, name.replace("_", " "))
