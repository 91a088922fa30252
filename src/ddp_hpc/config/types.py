"""Types of fields in studies, specs and machine files: `1` and `1.0` are equal, nan and inf are refused."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from ddp_hpc.config import catalog
from ddp_hpc.config.errors import given

LARGEST = 2**53  # beyond it neighbouring integers are one number to floats, and to many readers of JSON


def _real(value: Any) -> Any:
    """`1` and `1.0` are one value; nan and inf are none."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"given {value}, expected: a finite number")
    return catalog.canonical(float(value) if type(value) is int and abs(value) < LARGEST else value)


def _whole(value: Any) -> Any:
    """`1e4` is an integer; beyond LARGEST none can be recorded."""
    value = catalog.integral(value)
    if type(value) is int and abs(value) > LARGEST:
        raise ValueError(f"given {given(value)}, expected: an integer up to 2^53, {LARGEST:,}")
    return value


Whole, Real = BeforeValidator(_whole), BeforeValidator(_real)
Int = Annotated[int, Whole]
Float = Annotated[float, Real]
Positive = Annotated[int, Field(gt=0), Whole]  # bounds first, or they are lacking in the schema of `Positive | None`


@dataclass(frozen=True)
class Spelling(GroupedMetadata):
    """How a string is spelled: as a pattern for schemas, and in words for people."""

    pattern: str
    words: str

    def __iter__(self) -> Iterator[Any]:
        yield AfterValidator(self._check)
        yield WithJsonSchema({"type": "string", "pattern": self.pattern})

    def _check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"given {given(value)}, expected: {self.words}")
        return value


Name = Annotated[str, Spelling(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "letters, digits, _, . and -")]  # of partitions etc.
FEATURES = Spelling(r"^[^\s'\"]+$", "features with & and |, without blanks and quotes")  # for `sbatch --constraint`
GPU_TYPE = Spelling(r"^[A-Za-z0-9_.]+$", "letters, digits, _ and .")  # the plugin takes no others

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, serialize_by_alias=True)


class OneOf(BaseModel):
    """A mapping that holds exactly one of its keys."""

    model_config = STRICT | ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = list(type(self).model_fields)
        said = [name for name in names if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError(f"exactly one of {', '.join(names)}; given: {', '.join(said) or 'none'}")
        return self


# of a field that is a mapping or something plain: a mistake is explained for the one that was meant. Brackets keep the
# tags out of what is said (`validation.explain`)
PLAIN, MAPPING = Tag("[plain]"), Tag("[mapping]")
PLAIN_OR_MAPPING = Discriminator(lambda value: (MAPPING if isinstance(value, dict | BaseModel) else PLAIN).tag)


@dataclass(frozen=True)
class Unit:
    """Of what a field counts, for the columns of records: `Annotated[Int, Unit("ranks")]`."""

    name: str


def canonical_json(value: Any, escaped: bool = True) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text. Hashes need all but ASCII escaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=escaped)
