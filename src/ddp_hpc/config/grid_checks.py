"""Checks of the keys of `base` and `grid`: which are allowed there, and how they combine."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from ddp_hpc.config import claims
from ddp_hpc.config.errors import StudyError, given, unknown
from ddp_hpc.config.matching import is_option
from ddp_hpc.config.spec import SPEC_FIELDS, RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, HOMES, Rules, Study, listed
from ddp_hpc.config.validation import explain
from ddp_hpc.config.yaml_file import Document, Key

SETTABLE = (*SPEC_FIELDS, GLOBAL_BATCH)
FILTERS = ("exclude", "when")
PARTS = ("zip", *FILTERS)
EXAMPLE = {
    "zip": "{world_size: [1, 2], batch_size: [64, 32]}",
    "exclude": "{world_size: 4, batch_size: [16, 32]}",
    "when": "{world_size: 4, batch_size: [16, 32]}",
}


def check_keys(study: Study, document: Document) -> None:
    """Check what `base` and `grid` say, before any point is made.

    Raises:
        StudyError: a key that is no field of a spec, a field that is set twice, an axis without values, or axes that
            go together but differ in length; all such problems, a line each.
    """
    problems = [*_unknown(study.base, ("base",), document), *_twice(study, document)]
    for place, cells in claims.places(study.claims):
        problems += _impossible(cells.where, (*place, "where"), document)
    for number, grid in enumerate(study.grid):
        key: Key = ("grid", number) if ("grid", number) in document.lines else ("grid",)
        problems += _unknown(grid, key, document, PARTS)
        problems += _wrong_parts(grid, key, document)
    if problems:
        raise StudyError("\n".join(problems))


def _unknown(mapping: Mapping[str, Any], key: Key, document: Document, also: tuple[str, ...] = ()) -> Iterator[str]:
    for name in mapping:
        if name not in SETTABLE and name not in also and not is_option(name):
            yield f"{document.where((*key, name))}: {unknown('key', str(name), (*SETTABLE, *also), HOMES)}"


def _twice(study: Study, document: Document) -> Iterator[str]:
    if study.budget and "budget" in study.base:
        yield f"{document.where(('base', 'budget'))}: budget stands at the top level too; expected: once"
    for name in study.rules.model_fields_set & study.base.keys() & Rules.model_fields.keys():
        yield f"{document.where(('base', name))}: {name} stands under `rules` too; expected: once"


@cache
def field_type(name: str) -> TypeAdapter[Any]:
    """Return what checks a value of a field of specs, and makes it what specs hold."""
    field = RunSpec.model_fields[name]
    annotated: Any = Annotated[field.annotation, field]
    return TypeAdapter(annotated)


def _impossible(pattern: Mapping[str, Any], place: Key, document: Document) -> Iterator[str]:
    """A pattern with a value that its field cannot have would silently fit nothing."""
    for name in SPEC_FIELDS:
        for value in listed(pattern.get(name, [])):
            try:
                field_type(name).validate_python(value, strict=True)
            except ValidationError as error:
                problem = error.errors()[0]
                problem["loc"] = (name, *problem["loc"])
                yield explain(problem, document, RunSpec, place=(*place, name))


def _wrong_parts(grid: Mapping[str, Any], key: Key, document: Document) -> Iterator[str]:
    axes = Counter(name for name in grid if name not in PARTS)
    empty = [(*key, name) for name in axes if grid[name] == []]
    for part in PARTS:
        for number, group in enumerate(listed(grid.get(part, []))):
            place: Key = (*key, part, number) if (*key, part, number) in document.lines else (*key, part)
            if not isinstance(group, Mapping) or not group:
                yield f"{document.where(place)}: {part}: given {given(group)}, expected: fields, e.g. {EXAMPLE[part]}"
                continue
            yield from _unknown(group, place, document)
            if part in FILTERS:
                yield from _impossible(group, place, document)
            if part == "zip":
                axes.update(list(group))
                empty += [(*place, name) for name in group if group[name] == []]
                lengths = {name: len(listed(values)) for name, values in group.items()}
                if len(set(lengths.values())) > 1:
                    counts = ", ".join(f"{name}: {length}" for name, length in lengths.items())
                    yield f"{document.where(place)}: zip: given {counts} values, expected: equally many of each"
    for place in empty:
        yield f"{document.where(place)}: {place[-1]}: given an empty list, expected: one value or more"
    for name, times in axes.items():
        if times > 1:
            where = document.where((*key, name), (*key, "zip"))
            yield f"{where}: {name} is an axis {times} times in one grid; expected: once"
