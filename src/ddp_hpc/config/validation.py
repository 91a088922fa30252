"""Validates a file against its pydantic model and explains each mistake with its line."""

import re
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ddp_hpc.config.catalog import did_you_mean
from ddp_hpc.config.errors import Homes, StudyError, given, unknown
from ddp_hpc.config.yaml_file import Document, Key

EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "string_too_short": "a string that is not empty",
    "string_type": "a string",
    "too_long": "at most {max_length}",
    "too_short": "at least {min_length}",
}
OF_NUMBERS = ("float_type", "int_type", "greater_than", "greater_than_equal", "less_than", "less_than_equal")

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], document: Document, error: type[StudyError], strict: bool | None = None) -> Model:
    """Return the model that a file holds, or raise `error` with all that is wrong, a line each."""
    try:
        return model.model_validate(document.values, strict=strict)
    except ValidationError as wrong:
        raise error("\n".join(explain(problem, document, model) for problem in wrong.errors())) from None


def partly(model: type[Model], document: Document, homes: Homes, **instead: Any) -> tuple[Model, list[str]]:
    """Return the model of what is right in a file, `instead` in place of the rest, and what is wrong, a line each."""
    try:
        return model.model_validate(document.values), []
    except ValidationError as error:
        problems = error.errors()
    wrong = {problem["loc"][0] for problem in problems}
    right = {key: value for key, value in document.values.items() if key not in wrong}
    stead = {key: value for key, value in instead.items() if key in wrong}
    return model.model_validate(right | stead), [explain(problem, document, model, homes) for problem in problems]


def explain(
    problem: Any, document: Document, model: type[BaseModel], homes: Homes | None = None, place: Key = ()
) -> str:
    """Return an item of `ValidationError.errors()` as `file:line: key: given ..., expected: ...`.

    `place` is where in the file the field of `model` stands that is wrong, if the file is not all of the model.
    """
    parts = enumerate(problem["loc"], start=1)  # pydantic's own, of unions, have a [
    key = tuple(part for end, part in parts if "[" not in str(part) or problem["loc"][:end] in document.lines)
    name = ".".join(part for part in key if isinstance(part, str))
    if problem["type"] == "extra_forbidden":
        fields = _model_at(model, key[:-1]).model_fields
        text = unknown("key", str(key[-1]), [field.alias or name for name, field in fields.items()], homes)
    elif problem["type"] == "missing":
        top = [home for home, keys in (homes or {}).items() if key[-1] in keys] if len(key) == 1 else []
        text = f"{name} is missing{f'; write it {top[0]}' if top else ''}"
    else:
        text = f"{name}: {reason(problem)}" if name else reason(problem)
        owner = _model_at(model, key[:-1])
        if problem["type"] in OF_NUMBERS and key and key[-1] in owner.model_fields:
            text += f" ({owner.model_fields[key[-1]].description})"  # with its unit: puts `6G` and `1:30:00` right
    return f"{document.where((*place, *key[1:]) if place else key)}: {text}"


def reason(problem: Any) -> str:
    """Return what was given and what is expected, of one of pydantic's problems with a value."""
    if problem["type"] == "value_error":  # one of our own messages, complete in itself
        return str(problem["ctx"]["error"])
    return f"given {given(problem['input'])}, expected: {_expected(problem)}"


def _expected(problem: Any) -> str:
    value, context = problem["input"], problem.get("ctx", {})
    if problem["type"] == "string_type" and type(value) in (int, float):
        return f"a string; write it in quotes: '{value}'"
    if problem["type"] in EXPECTED:
        return EXPECTED[problem["type"]].format(**context)
    text = str(problem["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    return text + did_you_mean(value, re.findall(r"'(\w+)'", context.get("expected", "")))  # pydantic's own list


def _model_at(model: type[BaseModel], key: Key) -> type[BaseModel]:
    """Return the model whose keys stand at `key` of a file that `model` describes."""
    for part in key:
        field = model.model_fields.get(str(part))
        model = (_model_in(field.annotation) if field else None) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation, e.g. in `list[Claim] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
