"""Whether a point of a grid, or a row of a table, is one that a mapping of fields to values asks for.

So are written `exclude` and `when` of a grid, and `where` of a claim: a value or a list of them per field.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.config.study import listed


def is_option(name: Any) -> bool:
    """Return whether `name` is e.g. `model.widths`: the option `widths` of whichever model a point has."""
    component, _, option = str(name).partition(".")
    return bool(option) and component in COMPONENTS


def matches(pattern: Mapping[str, Any], value_of: Callable[[str], Any]) -> bool:
    """Return whether all fields in `pattern` have one of the values that it lists for them.

    `{model: {name: mlp, widths: [64]}}` asks for that option; others are free. `value_of` gives the value of a field,
    of a component its name, or of an option, e.g. `model.widths`.
    """
    return all(any(_same(value_of, name, value) for value in listed(wanted)) for name, wanted in pattern.items())


def _same(value_of: Callable[[str], Any], name: str, wanted: Any) -> bool:
    if name in COMPONENTS and isinstance(wanted, Mapping):
        parts = {name if key == "name" else f"{name}.{key}": value for key, value in wanted.items()}
        return all(_same(value_of, part, value) for part, value in parts.items())
    value = value_of(name)
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(_canonical(value) == _canonical(wanted))


def option_value(kind: str, name: Any, options: Mapping[str, Any], option: str) -> Any:
    """Return an option of a component: as given, else its default; None where it has no such option."""
    if option in options or kind == "program" or name not in catalog.names(kind):
        return options.get(option)
    known = catalog.options(kind, name).get(option)
    return known.default if known else None


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    return catalog.canonical(value)
