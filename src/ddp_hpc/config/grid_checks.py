"""What is wrong with a study's `base` and `grid`: keys that cannot stand there, and points that are no specs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from ddp_hpc.config import claims
from ddp_hpc.config.budget import NotDivisibleError
from ddp_hpc.config.catalog import CatalogError
from ddp_hpc.config.errors import ConflictError, given, unknown
from ddp_hpc.config.matching import is_option
from ddp_hpc.config.spec import SPEC_FIELDS, RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, HOMES, Study, listed
from ddp_hpc.config.validation import explain
from ddp_hpc.config.yaml_file import Document, Key

Point = dict[str, Any]
SETTABLE = (*SPEC_FIELDS, GLOBAL_BATCH)
FILTERS = ("exclude", "when")
PARTS = ("zip", *FILTERS)


def wrong_keys(study: Study, document: Document) -> list[str]:
    """Return what is wrong with the keys of `base` and `grid`, a line each."""
    problems = [*_unknown(study.base, ("base",), document)]
    if study.budget and "budget" in study.base:
        problems.append(f"{document.where(('base', 'budget'))}: budget stands at the top level too; expected: once")
    for name in study.rules.model_fields_set & study.base.keys():
        problems.append(f"{document.where(('base', name))}: {name} stands under `rules` too; expected: once")
    for place, cells in claims.places(study.claims):
        problems += _impossible(cells.where, (*place, "where"), document)
    problems += _of_any_machine(study, document)
    for number, grid in enumerate(study.grid):
        key: Key = ("grid", number) if ("grid", number) in document.lines else ("grid",)
        problems += _unknown(grid, key, document, PARTS)
        problems += _wrong_parts(grid, key, document)
    return problems


def _of_any_machine(study: Study, document: Document) -> Iterator[str]:
    """A claim on times would be judged on a busy machine too."""
    for number, claim in enumerate(study.claims):
        times = claims.times_read(claim, study.rules.winner_by)
        lacking = [name for name in claims.FOR_TIMES if name not in claim.applies_when]
        if times and lacking:
            where = document.where(("claims", number, "applies_when"), ("claims", number))
            why = f"the claim {claim.id} reads times ({', '.join(times)}); expected: also {', '.join(lacking)}"
            yield f"{where}: applies_when: {why}, or a machine that is busy would decide it"


def each_value(study: Study, grid: Mapping[str, Any]) -> Iterator[Point]:
    """Yield points that hold, together, every value of a grid, up to the first 1,000 of an axis."""
    groups = [grid, *(group for group in listed(grid.get("zip", [])) if isinstance(group, Mapping))]
    axes = {name: listed(values) for group in groups for name, values in group.items()}
    known = {name: values for name, values in axes.items() if values and (name in SETTABLE or is_option(name))}
    base = {name: value for name, value in study.base.items() if name in SETTABLE or is_option(name)}
    for place in range(min(1000, max(map(len, known.values()), default=1))):
        yield base | {name: values[min(place, len(values) - 1)] for name, values in known.items()}


def _unknown(mapping: Mapping[str, Any], key: Key, document: Document, also: tuple[str, ...] = ()) -> Iterator[str]:
    for name in mapping:
        if name not in SETTABLE and name not in also and not is_option(name):
            yield f"{document.where((*key, name))}: {unknown('key', str(name), (*SETTABLE, *also), HOMES)}"


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


def left_out(study: Study, document: Document) -> list[str]:
    """Return which values of axes their fields cannot have, though filters leave out all points that hold them."""
    wrong: list[str] = []
    for number, grid in enumerate(study.grid):
        if any(grid.get(kind) for kind in FILTERS):
            key: Key = ("grid", number) if ("grid", number) in document.lines else ("grid",)
            wrong += _impossible(grid, key, document)
            for place, group in enumerate(listed(grid.get("zip", []))):
                part: Key = (*key, "zip", place)
                wrong += _impossible(group, part if part in document.lines else part[:-1], document)
    return wrong


def _wrong_parts(grid: Mapping[str, Any], key: Key, document: Document) -> Iterator[str]:
    axes = Counter(name for name in grid if name not in PARTS)
    empty = [(*key, name) for name in axes if grid[name] == []]
    for part in PARTS:
        for number, group in enumerate(listed(grid.get(part, []))):
            place: Key = (*key, part, number) if (*key, part, number) in document.lines else (*key, part)
            if not isinstance(group, Mapping) or not group:
                example = "{world_size: [1, 2], batch_size: [64, 32]}"
                yield f"{document.where(place)}: {part}: given {given(group)}, expected: fields, e.g. {example}"
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


class Problems:
    """Collects the problems of points of a study file, and tells each once.

    Of points that are not `whole`, as other parts of the file are wrong, only the values that their fields cannot have.
    """

    def __init__(self, document: Document, whole: bool = True) -> None:
        self._document, self._whole = document, whole
        self._first: dict[str, str] = {}  # each problem, and the first point that has it
        self._not_divided: dict[tuple[int, int], set[int]] = {}  # of a grid and a budget: global batches

    def add(self, error: ValidationError, number: int, point: Point) -> None:
        """Add what is wrong with a point of grid `number`."""
        for problem in error.errors():
            fault = problem.get("ctx", {}).get("error")
            if not self._whole and (problem["type"] == "missing" or not problem["loc"]):
                continue
            if isinstance(fault, NotDivisibleError):
                self._not_divided.setdefault((number, fault.asked), set()).update(fault.global_batches)
            elif isinstance(fault, ConflictError):
                problem["loc"] = ()
                self._first.setdefault(self._told(problem, number, *fault.fields[:1]), _at(point, fault.fields))
            else:
                name = str(problem["loc"][0]) if problem["loc"] else ""
                option = fault.option if isinstance(fault, CatalogError) else None
                self._first.setdefault(self._told(problem, number, f"{name}.{option}", name), "")

    def lines(self) -> list[str]:
        """Return a line per problem; none if there is no problem."""
        not_divided = [
            f"{self._document.where(*self._places('budget', number))}: {NotDivisibleError(samples, batches)}"
            for (number, samples), batches in self._not_divided.items()
        ]
        return [*(text + at for text, at in self._first.items()), *not_divided]

    def _told(self, problem: Any, number: int, *names: str) -> str:
        """Return a problem at the line where the first of `names` stands that the study has."""
        place = next((place for name in names for place in self._places(name, number)), ())
        text = explain(problem, self._document, RunSpec, HOMES, place)
        if place[:1] == ("base",) and isinstance(problem.get("input"), list | tuple):
            text += " (several values go under `grid`)"
        return f"{text}; an axis is a list of such values" if place[:1] == ("grid",) and is_option(place[-1]) else text

    def _places(self, name: str, number: int) -> list[Key]:
        """Return where `name` stands in a study as a field of the specs of grid `number`, what counts first first."""
        axes = [
            key
            for key in self._document.lines
            if key[0] == "grid"
            and key[-1] == name
            and not (isinstance(key[1], int) and key[1] != number)
            and not set(FILTERS) & set(key)
        ]
        return axes + [key for key in (("base", name), ("rules", name), (name,)) if key in self._document.lines]


def _at(point: Point, fields: tuple[str, ...]) -> str:
    """Return at which point fields do not go together: their values, and how large it is."""
    named = {"world_size", "batch_size", GLOBAL_BATCH, *fields}
    shown = [f"{name}={_short(value)}" for name, value in point.items() if name in named]
    return f" (e.g. at {', '.join(shown)})" if shown else ""


def _short(value: Any) -> str:
    """Return a value as a study file writes it, on one line; a choice by its name, a program by its first file."""
    if isinstance(value, Mapping):
        files = value.get("files")
        called = value.get("name", files[0] if isinstance(files, list) and files else None)
        return flow(value) if called is None else str(called)
    return "null" if value is None else str(value)


def flow(pattern: Any) -> str:
    """Return a mapping as a study file writes it, on one line."""
    return f"{{{', '.join(f'{name}: {_short(value)}' for name, value in pattern.items())}}}"
