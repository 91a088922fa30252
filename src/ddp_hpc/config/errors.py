"""Errors of studies and launches, and their messages: what was given, what is unknown, where a key belongs."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from ddp_hpc.config.catalog import did_you_mean

Homes = Mapping[str, tuple[str, ...]]  # the keys that may stand in each part of a study

# what people write who come from other tools, and our word for it
OUR_WORD = {
    "amp": "precision",
    "axes": "grid",
    "backend": "exchange",
    "batch": "batch_size",
    "bs": "batch_size",
    "data": "dataset",
    "epochs": "budget",
    "eta": "learning_rate",
    "global_batch": "global_batch_size",
    "gpus": "world_size",
    "lr": "learning_rate",
    "net": "model",
    "network": "model",
    "np": "world_size",
    "ranks": "world_size",
    "samples": "samples_seen",
    "seeds": "repeats",
    "strategy": "exchange",
    "threads": "threads_per_rank",
    "tf32": "precision",
    "threshold": "loss_threshold",
    "warmup": "learning_rate_warm_up_steps",
    "wd": "weight_decay",
    "workers": "world_size",
}


class StudyError(ValueError):
    """What is wrong with a study file: file, line or key, what was given, what is expected."""


class ConflictError(ValueError):
    """Fields of a spec that do not go together.

    Args:
        message: which values, and what is expected.
        fields: their names; the message stands at the line of the first.
    """

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class LaunchError(RuntimeError):
    """The ranks were not started as the spec asks; the training itself is not to blame."""


def unknown(what: str, word: str, expected: Iterable[str], homes: Homes | None = None) -> str:
    """Return `unknown key 'lr' (did you mean 'learning_rate'?); expected: ...`.

    Args:
        what: `key` or `field`.
        word: what was given.
        expected: what may stand there.
        homes: where else keys may stand; one that stands in the wrong part of the file is told so.
    """
    listed = list(expected)
    ours = OUR_WORD.get(word.lower(), word)
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
        return f"{value!r} (string; write numbers without quotes)" if _is_number(value) else f"{value!r} (string)"
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
