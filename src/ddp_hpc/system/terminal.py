"""Text for the terminal: aligned columns for people, JSON for programs, counts and durations in words."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from math import isfinite, isnan
from typing import Any


def prepare_streams() -> None:
    """Let nothing that is printed fail, or get into a file.

    Where stdin, stdout or stderr is closed, the next file to be opened would be it. A letter that the terminal cannot
    show is escaped.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the least number that is free
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def write_rows(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print rows; a column that some rows lack, or null, is `-`."""
    print(in_json(rows) if as_json else "\n".join(table_lines(rows)))


def in_json(value: Any) -> str:
    """Return a value as JSON to print: letters as they are, escaped where the terminal cannot show them all.

    JSON has no numbers that are not finite: nan becomes null, infinity the text `inf`.
    """
    value = _finite(value)
    text = json.dumps(value, indent=1, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value, indent=1)
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def table_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return rows as lines of aligned columns beneath their names."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def counted(number: int, noun: str) -> str:
    """Return e.g. `1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return e.g. `8 s`, `2 min 45 s`, `3 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def rank_time(seconds: float) -> str:
    """Return seconds times ranks, what an allocation is charged for, e.g. `6.6 rank-minutes`, `1.9 rank-hours`."""
    if seconds < 60:
        return f"{seconds:.0f} rank-seconds"
    return f"{seconds / 60:.1f} rank-minutes" if seconds < 3600 else f"{seconds / 3600:,.1f} rank-hours"
