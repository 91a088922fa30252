"""A choice in a spec: a name from the catalogue, with its options."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, BeforeValidator, Field, model_serializer

from ddp_hpc.config import catalog
from ddp_hpc.config.types import STRICT, canonical_json


class Choice(BaseModel):
    """A name from the catalogue with its options; written `ring`, or `{name: ring, option: value}`."""

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
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{key}={_short(value)}' for key, value in self.options.items())})"


def _short(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def choice_of(kind: str) -> BeforeValidator:
    """Return what makes a Choice of a name or a mapping, and checks it against the catalogue."""

    def check(given: Any) -> Any:
        if isinstance(given, Choice):
            return given
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
            shown = "null" if given is None else repr(given)
            allowed = f"{', '.join(catalog.names(kind))}, or {{name: ..., <option>: ...}}"
            raise ValueError(f"given {shown}, expected: one of {allowed}")
        options = {key: value for key, value in given.items() if key != "name"}
        return Choice(name=given["name"], options=catalog.check_options(kind, given["name"], options))

    return BeforeValidator(check)
