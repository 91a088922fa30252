"""What options of verbs may be: numbers within bounds and lists of them; a mistake is told as one in a study is."""

import argparse
import math
import re
import shlex
from collections.abc import Callable
from typing import NoReturn

MOST = 2**31 - 1  # ranks, steps, sizes
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def whole(least: int = 1) -> Callable[[str], int]:
    """Return what reads an integer that is not less."""

    def read(text: str) -> int:
        return _whole(text, least, f"an integer from {least}")

    return read


def number(least: float, inclusive: bool = True) -> Callable[[str], float]:
    """Return what reads a finite number that is not less, nor equal if that is not allowed."""

    expected = f"a number {'from' if inclusive else 'above'} {least:g}"

    def read(text: str) -> float:
        value = _finite(text, expected)
        return value if value > least or (inclusive and value == least) else _refuse(text, expected)

    return read


def percent(text: str) -> float:
    """Return a percentage above 0."""
    expected = "a number above 0 up to 100"
    value = _finite(text, expected)
    return value if 0 < value <= 100 else _refuse(text, expected)


def steps(text: str) -> list[int]:
    """Return `100-110` as two numbers."""
    expected = "FIRST-LAST, counted from 1, e.g. 100-110"
    first, dash, last = text.partition("-")
    found = [_whole(word, 1, expected, text) for word in (first, last if dash else first)]
    return found if found[0] <= found[1] else _refuse(text, expected)


def counts(text: str) -> list[int]:
    """Return `8,16,40` as numbers, in order."""
    expected = "integers from 1 with commas between, e.g. 8,16,40"
    return sorted({_whole(word.strip(), 1, expected, text) for word in text.split(",")})


def command(text: str) -> str:
    """Return the words of a command as they were given, if each quote has its partner."""
    try:
        shlex.split(text)
    except ValueError:
        _refuse(text, "a command, in which each quote has its partner")
    return text


def _whole(word: str, least: int, expected: str, text: str | None = None) -> int:
    if not re.fullmatch("-?[0-9]{1,10}", word) or not least <= int(word) <= MOST:
        _refuse(word if text is None else text, expected)
    return int(word)


def _finite(text: str, expected: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else _refuse(text, expected)


def _refuse(text: str, expected: str) -> NoReturn:
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    raise argparse.ArgumentTypeError(f"given {shown!r}, expected: {expected}")
