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


class StudyError(ValueError):
    """What is wrong with a study file: file, line or key, what was given, what is expected."""


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
    return f"unknown {what} {word!r}{hint}; expected: {', '.join(listed)}"


def given(value: Any) -> str:
    """Return a value as an error message shows it: a number in quotes is a string, and says so."""
    if value in ({}, []):
        return "an empty mapping" if value == {} else "an empty list"
    if isinstance(value, str):
        is_number = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", value.strip(), re.IGNORECASE)
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
