"""From a study to its specs: the product of the axes, what goes together, what is left out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_hpc._yaml import Document, Key
from ddp_hpc.catalog import canonical
from ddp_hpc.spec import Choice, RunSpec
from ddp_hpc.study import SPEC_FIELDS, Study, StudyError, explain, given, listed, read, unknown

GLOBAL_BATCH = "global_batch_size"  # in a study it may stand for batch_size x world_size
CHOICES = tuple(name for name, field in RunSpec.model_fields.items() if field.annotation is Choice)
SETTABLE = (*SPEC_FIELDS, GLOBAL_BATCH)
FILTERS = ("exclude", "when")
MOST_ERRORS = 10


@dataclass(frozen=True)
class Expansion:
    """The specs of a study, in the order of its grids, and what is worth saying about them."""

    study: Study
    specs: tuple[RunSpec, ...]
    notes: tuple[str, ...]


def expand(file: Path) -> Expansion:
    """Return the specs that the study in `file` asks for, each once.

    Raises:
        StudyError: the file is no valid study, or a point of it no valid spec; all are checked.
    """
    study, document = read(file)
    _check_keys(study, document)
    specs: dict[str, RunSpec] = {}
    problems: dict[str, None] = {}
    asked = 0
    for number, grid in enumerate(study.grid):
        for point in _points(study, grid):
            try:
                fields = _resolved(point)
                spec = RunSpec.model_validate(fields)
            except ValidationError as error:
                problems |= dict.fromkeys(_explain(problem, document, number, point) for problem in error.errors())
                continue
            except ValueError as error:
                problems[f"{document.where(*_places('batch_size', number))}: {error}"] = None
                continue
            for repeat in range(study.repeats):
                one = RunSpec.model_validate({**fields, "seed": spec.seed + repeat}) if repeat else spec
                specs.setdefault(one.hash, one)
                asked += 1
    if problems:
        more = [f"... and {len(problems) - MOST_ERRORS} more"] if len(problems) > MOST_ERRORS else []
        raise StudyError("\n".join([*list(problems)[:MOST_ERRORS], *more]))
    if not specs:
        raise StudyError(f"{document.where(('grid',))}: grid: `exclude` and `when` leave no point to run")
    doubled = asked - len(specs)
    notes = (f"{doubled} of {asked} runs are given more than once in the grid; each runs once",) if doubled else ()
    return Expansion(study, tuple(specs.values()), notes)


def _check_keys(study: Study, document: Document) -> None:
    """Raise `StudyError` for every key of base and grid that is no field of a spec."""
    problems = []

    def check(mapping: Mapping[str, Any], key: Key, extra: tuple[str, ...] = ()) -> None:
        for name in mapping:
            if name not in SETTABLE and name not in extra and not _is_option(name):
                problems.append(f"{document.where((*key, name))}: {unknown('key', str(name), (*SETTABLE, *extra))}")

    def check_each(value: Any, key: Key, kind: str) -> None:
        for item in listed(value):
            if isinstance(item, Mapping):
                check(item, key)
            else:
                problems.append(f"{document.where(key)}: {kind}: given {given(item)}, allowed: mappings of fields")

    check(study.base, ("base",))
    for number, grid in enumerate(study.grid):
        key = _grid_key(document, number)
        check(grid, key, ("zip", *FILTERS))
        for kind in ("zip", *FILTERS):
            check_each(grid.get(kind, []), (*key, kind), kind)
        for name, values in grid.items():
            if name not in ("zip", *FILTERS) and values == []:
                problems.append(
                    f"{document.where((*key, name))}: {name}: given an empty list, allowed: one value or more"
                )
        for group in listed(grid.get("zip", [])):
            lengths = (
                {name: len(listed(values)) for name, values in group.items()} if isinstance(group, Mapping) else {}
            )
            if len(set(lengths.values())) > 1:
                problems.append(
                    f"{document.where((*key, 'zip'))}: zip: axes that go together need equally many values, given "
                    + ", ".join(f"{name}: {length}" for name, length in lengths.items())
                )
    if problems:
        raise StudyError("\n".join(problems))


def _is_option(name: Any) -> bool:
    """`model.widths` sets the option `widths` of whichever model the point has."""
    choice, dot, option = str(name).partition(".")
    return bool(dot and option) and choice in CHOICES


def _points(study: Study, grid: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the points of one grid over the study's base, less those that are filtered."""
    shared = study.rules.training() | ({"budget": study.budget} if study.budget else {}) | study.base
    axes = [
        [{name: value} for value in listed(values)] for name, values in grid.items() if name not in ("zip", *FILTERS)
    ]
    for group in listed(grid.get("zip", [])):
        columns = [[{name: value} for value in listed(values)] for name, values in group.items()]
        axes.append(
            [{name: value for cell in row for name, value in cell.items()} for row in zip(*columns, strict=True)]
        )
    left_out, kept = (listed(grid.get(kind, [])) for kind in FILTERS)
    for cells in product(*axes):
        point = shared | {name: value for cell in cells for name, value in cell.items()}
        if any(_matches(point, pattern) for pattern in left_out):
            continue
        if not kept or any(_matches(point, pattern) for pattern in kept):
            yield point


def _matches(point: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    """Return whether every field of `pattern` has one of its values in `point`; an absent field is null."""
    return all(any(_same(name, point.get(name), value) for value in listed(values)) for name, values in pattern.items())


def _same(name: str, value: Any, wanted: Any) -> bool:
    if name in CHOICES and isinstance(wanted, str) and isinstance(value, Mapping):
        value = value.get("name")
    return bool(canonical(value) == canonical(wanted))


def _resolved(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec: options are put into their choices, a global batch is shared out."""
    fields = {name: value for name, value in point.items() if not _is_option(name) and name != GLOBAL_BATCH}
    for name, value in point.items():
        if _is_option(name):
            choice, _, option = name.partition(".")
            whole = fields.get(choice, {})
            fields[choice] = {"name": whole, option: value} if isinstance(whole, str) else {**whole, option: value}
    if point.get(GLOBAL_BATCH) is not None:
        if "batch_size" in fields:
            raise ValueError(f"batch_size={fields['batch_size']} and {GLOBAL_BATCH}={point[GLOBAL_BATCH]}: give one")
        total, ranks = point[GLOBAL_BATCH], fields.get("world_size")
        if not isinstance(total, int) or not isinstance(ranks, int) or ranks < 1 or total % ranks:
            raise ValueError(f"{GLOBAL_BATCH}={total} cannot be shared equally among world_size={ranks} ranks")
        fields["batch_size"] = total // ranks
    return fields


def _explain(problem: Any, document: Document, number: int, point: Mapping[str, Any]) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else "budget"
    place = next((place for place in _places(field, number) if place in document.lines), ("grid",))
    text = explain(problem, document, place[:-1], SPEC_FIELDS)
    if problem["loc"]:
        return text
    ranks = {name: point[name] for name in ("world_size", "batch_size") if name in point}
    return f"{text} (at {', '.join(f'{name}={value}' for name, value in ranks.items())})" if ranks else text


def _grid_key(document: Document, number: int) -> Key:
    return ("grid", number) if isinstance(document.values.get("grid"), list) else ("grid",)


def _places(field: str, number: int) -> list[Key]:
    """Where a field of a spec may stand in a study, the nearest first."""
    return [
        ("grid", number, field),
        ("grid", field),
        ("grid", number, "zip", field),
        ("grid", "zip", field),
        ("base", field),
        ("rules", field),
        (field,),
    ]
