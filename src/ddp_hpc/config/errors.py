"""How a wrong study is explained: file and line or key, what was given, what is allowed, where a key belongs."""

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddp_hpc.config.catalog import did_you_mean
from ddp_hpc.config.types import FEATURES, GPU_TYPE, NAME

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

ALLOWED = {
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "string_type": "a string",
}


class StudyError(ValueError):
    """What is wrong with a study file: file, line or key, what was given, what is allowed."""


class LaunchError(RuntimeError):
    """The ranks were not started as the spec asks; the training itself is not to blame."""


def unknown(what: str, word: str, allowed: Iterable[str], homes: Homes | None = None) -> str:
    """Return `unknown key 'lr' (did you mean 'learning_rate'?); expected: ...`.

    Args:
        what: `key` or `field`.
        word: what was given.
        allowed: what may stand there.
        homes: where else keys may stand; one that stands in the wrong part of the file is told so.
    """
    listed = list(allowed)
    ours = OUR_WORD.get(word.lower(), word)
    places = [place for place, keys in (homes or {}).items() if ours in keys]
    if ours in listed:
        hint = f" (did you mean {ours!r}?)"
    elif places:
        hint = f" ({ours} belongs {' or '.join(places)})"
    else:
        hint = did_you_mean(word, listed)
    return f"unknown {what} {word!r}{hint}; expected: {', '.join(listed)}"


def allowed(problem: Mapping[str, Any]) -> str:
    """Return what pydantic says is allowed, in the words of a study file."""
    if problem["type"] == "string_type" and type(problem["input"]) in (int, float):
        return f"a string; write it in quotes: '{problem['input']}'"
    if problem["type"] in ALLOWED:
        return ALLOWED[problem["type"]]
    if problem["type"] == "string_pattern_mismatch":
        if problem["ctx"]["pattern"] == FEATURES:
            return "features with & and |, without blanks and quotes"
        if problem["ctx"]["pattern"] in (NAME, GPU_TYPE):
            return "letters, digits, _ and ." + (" and -" if problem["ctx"]["pattern"] == NAME else "")
        return "lower-case letters, digits and _, not _ first, at most 64"
    text = str(problem["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    return text + did_you_mean(problem["input"], re.findall(r"'(\w+)'", text))


def given(value: Any) -> str:
    """Return a value as an error message shows it: a number in quotes is a string, and says so."""
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
    return f"{value} (of a tagged or unusual type; allowed are plain YAML values)"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
