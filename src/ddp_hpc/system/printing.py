"""Rows on the terminal: aligned columns for people, JSON for programs; counts."""

import json
from collections.abc import Sequence
from typing import Any


def write_rows(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print rows; a column that some rows lack, or null, is `-`."""
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print("\n".join(table_lines(rows)))


def table_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return rows as lines of aligned columns beneath their names."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def counted(number: int, noun: str) -> str:
    """Return e.g. `1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
