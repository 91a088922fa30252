"""Problems of a grid's points: each is reported once, at its line, with a point that has it."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ddp_hpc.config.budget import NotDivisibleError
from ddp_hpc.config.catalog import CatalogError
from ddp_hpc.config.errors import ConflictError
from ddp_hpc.config.grid_checks import FILTERS
from ddp_hpc.config.matching import is_option
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, HOMES
from ddp_hpc.config.validation import explain
from ddp_hpc.config.yaml_file import Document, Key

Point = dict[str, Any]
MOST_ERRORS = 10


class Problems:
    """Collects the problems of points of a study file, and tells each once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._first: dict[str, str] = {}  # each problem, and the first point that has it
        self._not_divided: dict[tuple[int, int], set[int]] = {}  # of a grid and a budget: global batches

    def add(self, error: ValidationError | ConflictError, number: int, point: Point) -> None:
        """Add what is wrong with a point of grid `number`."""
        if isinstance(error, ConflictError):
            found: list[Any] = [{"type": "value_error", "loc": (), "ctx": {"error": error}}]
        else:
            found = error.errors()
        for problem in found:
            fault = problem.get("ctx", {}).get("error")
            if isinstance(fault, NotDivisibleError):
                self._not_divided.setdefault((number, fault.asked), set()).update(fault.global_batches)
            elif isinstance(fault, ConflictError):
                self._first.setdefault(self._told(problem, number, *fault.fields[:1]), _at(point, fault.fields))
            else:
                name = str(problem["loc"][0]) if problem["loc"] else ""
                option = fault.option if isinstance(fault, CatalogError) else None
                names = [f"{name}.{option}", name] if option else [name]
                self._first.setdefault(self._told(problem, number, *names), "")

    def lines(self) -> list[str]:
        """Return a line per problem, the first ten of them; none if there is no problem."""
        not_divided = [
            f"{self._document.where(*self._places('budget', number))}: {NotDivisibleError(samples, batches)}"
            for (number, samples), batches in self._not_divided.items()
        ]
        lines = [*(text + at for text, at in self._first.items()), *not_divided]
        more = [f"... and {len(lines) - MOST_ERRORS} more"] if len(lines) > MOST_ERRORS else []
        return lines[:MOST_ERRORS] + more

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
    """Return at which point fields do not go together: those, and how large it is."""
    named = {"world_size", "batch_size", GLOBAL_BATCH, *fields}
    shown = [f"{name}={_short(value)}" for name, value in point.items() if name in named]
    return f" (e.g. at {', '.join(shown)})" if shown else ""


def _short(value: Any) -> str:
    """Return a value as a study file writes it, on one line; of a choice its name."""
    if isinstance(value, Mapping):
        return str(value.get("name")) if "name" in value else flow(value)
    return "null" if value is None else str(value)


def flow(pattern: Any) -> str:
    """Return a mapping as a study file writes it, on one line."""
    return f"{{{', '.join(f'{name}: {_short(value)}' for name, value in pattern.items())}}}"
