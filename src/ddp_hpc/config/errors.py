"""Errors of studies and launches, and their messages: what was given, what is unknown, where a key belongs."""

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddp_hpc.config.catalog import did_you_mean

Homes = Mapping[str, tuple[str, ...]]  # the keys that may stand in each part of a study

# our words, and what people write for them who come from other tools
OTHER_WORDS = {
    "batch_size": ("batch", "bs"),
    "budget": ("epochs",),
    "dataset": ("data",),
    "exchange": ("backend", "strategy"),
    "global_batch_size": ("global_batch",),
    "grid": ("axes",),
    "learning_rate": ("eta", "lr"),
    "learning_rate_warm_up_steps": ("warmup",),
    "loss_threshold": ("threshold",),
    "model": ("net", "network"),
    "precision": ("amp", "tf32"),
    "repeats": ("seeds",),
    "samples_seen": ("samples",),
    "threads_per_rank": ("threads",),
    "weight_decay": ("wd",),
    "world_size": ("gpus", "np", "ranks", "workers"),
}


MOST_ERRORS = 10
MOST_CHARACTERS = 1950  # of a message
_LINE, _VALUE = 900, 60  # characters of a line, and of a string, that are shown


class StudyError(ValueError):
    """What is wrong with a study file, a line each: file, line or key, what was given, what is expected.

    Of long lines, as of a huge value, both ends are shown; of many lines the first.
    """

    def __init__(self, problems: str) -> None:
        lines = [_cut(line, _LINE) for line in problems.splitlines()]
        shown = lines[:1]
        for line in lines[1:MOST_ERRORS]:
            if sum(map(len, shown)) + len(line) > MOST_CHARACTERS:
                break
            shown.append(line)
        super().__init__(
            "\n".join([*shown, *([f"... and {len(lines) - len(shown)} more"] if lines[len(shown) :] else [])])
        )


def _cut(text: str, most: int) -> str:
    """Return the beginning and the end of a long text, and how long it is."""
    return text if len(text) <= most else f"{text[: most // 3]} ... ({len(text):,} characters) ... {text[-most // 2 :]}"


class ConflictError(ValueError):
    """Fields of a spec that do not go together; the message stands at the line of the first of `fields`."""

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class LaunchError(RuntimeError):
    """The ranks were not started as the spec asks; the training itself is not to blame."""


def unknown(what: str, word: str, expected: Iterable[str], homes: Homes | None = None) -> str:
    """Return `unknown key 'lr' (did you mean 'learning_rate'?); expected: ...`, or in which of `homes` it belongs."""
    listed = list(expected)
    ours = next((our for our, others in OTHER_WORDS.items() if word.lower() in others), word)
    places = [place for place, keys in (homes or {}).items() if ours in keys]
    if ours in listed:
        hint = f" (did you mean {ours!r}?)"
    elif places:
        hint = f" ({ours} belongs {' or '.join(places)})"
    else:
        hint = did_you_mean(word, listed)
    return f"unknown {what} {_cut(word, 2 * _VALUE)!r}{hint}; expected: {', '.join(listed)}"


def given(value: Any) -> str:
    """Return a value as an error message shows it: shortened; a number in quotes is a string, and says so."""
    if isinstance(value, str) and len(value) > 2 * _VALUE:
        return f"{value[:_VALUE]!r}... (string of {len(value):,} characters)"
    return _cut(_given(value), 4 * _VALUE)


def _given(value: Any) -> str:
    if value in ({}, []):
        return "an empty mapping" if value == {} else "an empty list"
    if isinstance(value, str):
        is_number = re.fullmatch(
            r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?\.?(inf|nan)", value.strip(), re.IGNORECASE
        )
        return f"{value!r} (string{'; write numbers without quotes' if is_number else ''})"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.date):
        return f"{value} (a date; put it in quotes if it is a string)"
    if isinstance(value, list | tuple):
        return f"the list [{', '.join(map(str, value))}]"
    if isinstance(value, int | float | dict):
        return repr(value)
    return f"{value} (of a tagged or unusual type; expected: plain YAML values)"
