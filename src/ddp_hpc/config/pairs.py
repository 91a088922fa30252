"""The key `pairs` of a study: two settings whose runs are adjacent in every round."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from ddp_hpc.config.grid_checks import field_type
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.study import Pairs
from ddp_hpc.config.types import canonical_json
from ddp_hpc.config.validation import reason

T = TypeVar("T", bound=Hashable)


def values(pairs: Pairs) -> tuple[Any, Any]:
    """Return the two values of the axis, as specs have them; raise ValueError if one is no value of that field."""
    try:
        first, second = (field_type(pairs.axis).validate_python(value, strict=True) for value in pairs.values)
    except ValidationError as error:
        raise ValueError(f"values: {reason(error.errors()[0])}") from None
    if first == second:
        raise ValueError(f"values: given {pairs.values[0]!r} twice, expected: two that differ")
    return first, second


def sides(pairs: Pairs, specs: Iterable[RunSpec]) -> dict[str, list[RunSpec | None]]:
    """Return both specs of each pair, by what they have in common; None for one that the grid does not have."""
    wanted = values(pairs)
    found: dict[str, list[RunSpec | None]] = {}
    for spec in specs:
        value = getattr(spec, pairs.axis)
        if value in wanted:
            rest = {name: part for name, part in spec.model_dump(mode="json").items() if name != pairs.axis}
            found.setdefault(canonical_json(rest), [None, None])[wanted.index(value)] = spec
    return found


def problems(pairs: Pairs, specs: Iterable[RunSpec]) -> list[str]:
    """Return what is wrong: a value is none of the axis, or the grid has no pair; nothing if all is well."""
    try:
        found = sides(pairs, specs)
    except ValueError as error:
        return [str(error)]
    if any(None not in both for both in found.values()):
        return []
    shown = " and ".join(str(value) for value in values(pairs))
    return [f"no two points of the grid differ in {pairs.axis} alone, {shown}; put both on one axis of the grid"]


def side_by_side(runs: Sequence[T], spec_of: Callable[[T], RunSpec], rounds: Mapping[T, int], pairs: Pairs) -> list[T]:
    """Return runs round by round, those of a pair one after the other: A B in the first round, B A in the next.

    So a trend of the machine over two rounds (A B B A) cancels out of the ratio of the two. `runs` are in the order of
    the grid.
    """
    by_spec = {spec_of(run).hash: run for run in runs}
    order = {run: (rounds[run], place, 0) for place, run in enumerate(runs)}
    for first, second in sides(pairs, map(spec_of, runs)).values():
        if first is None or second is None:
            continue
        both = [by_spec[first.hash], by_spec[second.hash]]
        together = min(order[run][1] for run in both)
        for side, run in enumerate(both):
            order[run] = (rounds[run], together, side ^ (rounds[run] % 2))
    return sorted(runs, key=lambda run: order[run])
