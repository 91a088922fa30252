"""A component of a run, as a spec names it: a model, a dataset or an exchange, with its options."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, BeforeValidator, Field, model_serializer

from ddp_hpc.config import catalog
from ddp_hpc.config.errors import given
from ddp_hpc.config.types import STRICT, canonical_json


class Component(BaseModel):
    """A named component with its options; written `ring`, or `{name: ring, option: value}`."""

    model_config = STRICT
    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_serializer(mode="plain")
    def _plain(self) -> Any:
        return {"name": self.name, **json.loads(self.options_json)} if self.options else self.name

    def __hash__(self) -> int:
        return hash((self.name, self.options_json))

    @property
    def options_json(self) -> str:
        """The options that differ from their defaults, as canonical JSON (`{}` if none)."""
        return canonical_json(self.options)

    def __str__(self) -> str:
        return shown(self.name, self.options)


def shown(name: str, options: Mapping[str, Any]) -> str:
    """Return a component as people read it: `mlp (widths 64-32)`, `torch_ddp (tuned)`."""
    return f"{name} ({', '.join(map(_shown_option, options, options.values()))})" if options else name


def _shown_option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {'-'.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def component_of(kind: str) -> BeforeValidator:
    """Return what makes a Component of a name or a mapping, and checks it against the catalogue."""

    def check(value: Any) -> Any:
        if isinstance(value, Component):
            return value
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            one_of = f"{', '.join(catalog.names(kind))}, or {{name: ..., <option>: ...}}"
            raise ValueError(f"given {given(value)}, expected: one of {one_of}")
        options = {key: option for key, option in value.items() if key != "name"}
        return Component(name=value["name"], options=catalog.check_options(kind, value["name"], options))

    return BeforeValidator(check)
