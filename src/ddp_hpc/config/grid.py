"""From a study to its specs: the product of the axes, what goes together, what is left out."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_hpc.config import catalog, pairs
from ddp_hpc.config.budget import NotDivisibleError
from ddp_hpc.config.errors import StudyError
from ddp_hpc.config.grid_checks import CHOICES, FILTERS, check_keys, is_option
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, Study, explain, listed, read
from ddp_hpc.config.traceable import why_not
from ddp_hpc.config.yaml_file import Document, Key

MOST_ERRORS = 10
MOST_POINTS = 100_000  # a grid of more is a slip, and would keep the planner busy for minutes

Point = dict[str, Any]


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
    check_keys(study, document)
    specs: dict[str, RunSpec] = {}
    problems: dict[str, str] = {}  # and the first point that has it
    odd: dict[tuple[int, int], set[int]] = {}  # grid and budget: global batches that do not divide it
    notes: list[str] = []
    asked = 0
    for number, grid in enumerate(study.grid):
        filters = Filters(grid)
        for point in filter(filters.keep, _points(study, grid, document.where(("grid", number), ("grid",)))):
            try:
                fields = _resolved(point)
                spec = RunSpec.model_validate(fields)
                repeats = [
                    RunSpec.model_validate({**fields, "seed": spec.seed + repeat}) for repeat in range(1, study.repeats)
                ]
            except ValidationError as error:
                for problem in error.errors():
                    fault = problem.get("ctx", {}).get("error")
                    if isinstance(fault, NotDivisibleError):
                        odd.setdefault((number, fault.asked), set()).update(fault.global_batches)
                    else:
                        problems.setdefault(_explain(problem, document, number, point), _at(problem, point))
                continue
            except StudyError as error:
                problems[f"{document.where(*_places(GLOBAL_BATCH, number, document))}: {error}"] = ""
                continue
            specs |= {one.hash: specs.get(one.hash, one) for one in [spec, *repeats]}
            asked += study.repeats
        notes += [
            f"{document.where(('grid', number, kind), ('grid', kind))}: {kind}: {_flow(pattern)} fits no point"
            for kind, pattern in filters.idle()
        ]
    for (number, samples), batches in odd.items():
        problems[f"{document.where(*_places('budget', number, document))}: {NotDivisibleError(samples, batches)}"] = ""
    if study.pairs and not problems:
        try:
            pairs.check(study.pairs, specs.values())
        except ValueError as error:
            problems[f"{document.where(('pairs',))}: pairs: {error}"] = ""
    if problems:
        more = [f"... and {len(problems) - MOST_ERRORS} more"] if len(problems) > MOST_ERRORS else []
        raise StudyError("\n".join([*(text + at for text, at in list(problems.items())[:MOST_ERRORS]), *more, *notes]))
    if not specs:
        raise StudyError("\n".join([f"{document.where(('grid',))}: grid: no point is left to run", *notes]))
    if asked > len(specs):
        twice = asked - len(specs)
        notes.append(
            f"{twice} of {asked} runs {'is' if twice == 1 else 'are'} given more than once in the grid; each runs once"
        )
    notes += _not_traced(study, tuple(specs.values()), document)
    return Expansion(study, tuple(specs.values()), tuple(notes))


def _not_traced(study: Study, specs: tuple[RunSpec, ...], document: Document) -> list[str]:
    """Return in words which runs cannot trace what the study asks for.

    Raises:
        StudyError: none can.
    """
    if study.trace is None:
        return []
    where, steps = document.where(("trace", "steps"), ("trace",)), study.trace.steps
    reasons = [reason for spec in specs if (reason := why_not(spec, steps))]
    if len(reasons) == len(specs):
        raise StudyError(f"{where}: trace: {reasons[0]}; expected: steps that a run has, of a synchronous exchange")
    return [f"{where}: trace: {len(reasons)} of {len(specs)} runs are not traced: {reasons[0]}"] if reasons else []


def _points(study: Study, grid: Mapping[str, Any], where: str) -> Iterator[Point]:
    """Yield the points of one grid over the study's base."""
    budget = {"budget": study.budget.model_dump(exclude_none=True)} if study.budget else {}
    shared = study.rules.training() | budget | study.base
    axes = [
        [{name: value} for value in listed(values)] for name, values in grid.items() if name not in ("zip", *FILTERS)
    ]
    for group in listed(grid.get("zip", [])):
        columns = [[(name, value) for value in listed(values)] for name, values in group.items()]
        axes.append([dict(row) for row in zip(*columns, strict=True)])
    count = prod(map(len, axes))
    if count > MOST_POINTS:
        raise StudyError(
            f"{where}: grid: given {count:,} points, expected: {MOST_POINTS:,}; take values out of its axes"
        )
    for cells in product(*axes):
        yield shared | {name: value for cell in cells for name, value in cell.items()}


@dataclass
class Filters:
    """The `exclude` and `when` of one grid, and which of their patterns have fitted a point."""

    grid: Mapping[str, Any]
    fitted: set[tuple[str, int]] = field(default_factory=set)

    def keep(self, point: Point) -> bool:
        """Return whether `point` fits no pattern of `exclude`, and one of `when` if there are any."""
        excluded = self._fits("exclude", point)
        return (not self.grid.get("when") or self._fits("when", point)) and not excluded

    def idle(self) -> list[tuple[str, Any]]:
        """Return the patterns that have fitted no point: often a slip in a value."""
        return [
            (kind, pattern)
            for kind in FILTERS
            for number, pattern in enumerate(listed(self.grid.get(kind, [])))
            if (kind, number) not in self.fitted
        ]

    def _fits(self, kind: str, point: Point) -> bool:
        fitting = {
            (kind, number)
            for number, pattern in enumerate(listed(self.grid.get(kind, [])))
            if all(any(_same(point, name, value) for value in listed(wanted)) for name, wanted in pattern.items())
        }
        self.fitted |= fitting
        return bool(fitting)


def _same(point: Point, name: str, wanted: Any) -> bool:
    if name in CHOICES and isinstance(wanted, Mapping):  # {name: mlp, widths: [64]}: those options, others are free
        return all(
            _same(point, name if option == "name" else f"{name}.{option}", value) for option, value in wanted.items()
        )
    value = _value(point, name)
    if name in CHOICES and isinstance(value, Mapping):
        value = value.get("name")
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(canonical(value) == canonical(wanted))


def _value(point: Point, name: str) -> Any:
    """Return what `name` is at `point`: as given, else as it follows from other fields, else its default."""
    if name in point:
        return point[name]
    if is_option(name):
        choice, _, option = name.partition(".")
        whole = point.get(choice)
        options = whole if isinstance(whole, Mapping) else {"name": whole}
        if option in options:
            return options[option]
        known = options.get("name") in catalog.names(choice)
        default = catalog.options(choice, options["name"]).get(option) if known else None
        return default.default if default else None
    try:
        if name == "batch_size" and GLOBAL_BATCH in point:
            return point[GLOBAL_BATCH] / point["world_size"]
        if name == GLOBAL_BATCH:
            return point["batch_size"] * point["world_size"]
    except (KeyError, TypeError, ZeroDivisionError):
        return None  # an invalid point: its spec says why
    return None if RunSpec.model_fields[name].is_required() else RunSpec.model_fields[name].default


def canonical(value: Any) -> Any:
    """Return `value` so that equal values are equal: without float noise, in mappings too."""
    if isinstance(value, Mapping):
        return {key: canonical(item) for key, item in value.items()}
    return catalog.canonical(value)


def _resolved(point: Point) -> Point:
    """Return the fields of a spec: options are put into their choices, a global batch is shared out.

    Raises:
        StudyError: the global batch cannot be shared out.
    """
    fields = {name: value for name, value in point.items() if not is_option(name) and name != GLOBAL_BATCH}
    for name, value in point.items():
        if is_option(name):
            choice, _, option = name.partition(".")
            whole = fields.get(choice)
            if isinstance(whole, str):
                fields[choice] = {"name": whole, option: value}
            elif isinstance(whole, Mapping):
                fields[choice] = {**whole, option: value}
    total = catalog.integral(point.get(GLOBAL_BATCH))
    if total is not None:
        if "batch_size" in fields:
            raise StudyError(f"{GLOBAL_BATCH}={total} and batch_size={fields['batch_size']}: give one of the two")
        ranks = catalog.integral(fields.get("world_size"))
        if type(total) is not int or total < 1:
            raise StudyError(f"{GLOBAL_BATCH}: given {total!r}, expected: an integer greater than 0")
        if type(ranks) is int and ranks > 0:  # else the spec says what is wrong with world_size
            if total % ranks:
                raise StudyError(f"{GLOBAL_BATCH}={total} cannot be shared equally among world_size={ranks} ranks")
            fields["batch_size"] = total // ranks
        else:
            fields["batch_size"] = total
    return fields


def _explain(problem: Any, document: Document, number: int, point: Point) -> str:
    """Return a problem of one point's spec, at the line where its field stands."""
    message = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else ""
    if problem["loc"]:
        name = str(problem["loc"][0])
        option = re.search(r"option '(\w+)'", message)
        names = [f"{name}.{option[1]}", name] if option else [name]
    else:  # fields that do not go together; the message begins with one of them
        names = re.findall(r"^\w+", message)
    place = next((place for name in names for place in _places(name, number, document)), ())
    text = explain(problem, document, place)
    if place[:1] == ("grid",) and is_option(place[-1]):
        text += "; an axis is a list of such values"
    return text


def _at(problem: Any, point: Point) -> str:
    """Return at which point fields do not go together; empty where one field is wrong by itself."""
    if problem["loc"]:
        return ""
    named = {"world_size", "batch_size", GLOBAL_BATCH, *re.findall(r"\w+", str(problem["ctx"]["error"]))}
    fields = [f"{name}={_short(value)}" for name, value in point.items() if name in named]
    return f" (e.g. at {', '.join(fields)})" if fields else ""


def _short(value: Any) -> str:
    """Return a value as a study file writes it, on one line; of a choice its name."""
    if isinstance(value, Mapping):
        return str(value.get("name")) if "name" in value else _flow(value)
    return "null" if value is None else str(value)


def _flow(pattern: Any) -> str:
    return f"{{{', '.join(f'{name}: {_short(value)}' for name, value in pattern.items())}}}"


def _places(name: str, number: int, document: Document) -> list[Key]:
    """Return where `name` stands in a study as a field of the specs of grid `number`, what counts first first."""
    axes = [
        key
        for key in document.lines
        if key[0] == "grid"
        and key[-1] == name
        and not (isinstance(key[1], int) and key[1] != number)
        and not set(FILTERS) & set(key)
    ]
    return axes + [key for key in (("base", name), ("rules", name), (name,)) if key in document.lines]
