"""Types of numbers and names in studies, specs and machine files: `1` and `1.0` are one value, nan and inf are none."""

import json
import math
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from ddp_hpc.config import catalog

LARGEST = 2**53  # beyond it neighbouring integers are one number to floats, and to many readers of JSON


def _real(value: Any) -> Any:
    """`1` and `1.0` are one value; nan and inf are none."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"given {value}, expected: a finite number")
    return catalog.canonical(float(value) if type(value) is int and abs(value) < LARGEST else value)


Whole, Real = BeforeValidator(catalog.integral), BeforeValidator(_real)
Int = Annotated[int, Whole]
Float = Annotated[float, Real]
Positive = Annotated[int, Field(gt=0), Whole]  # bounds first, or they are lacking in the schema of `Positive | None`

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=NAME)]  # of partitions, accounts and the like
FEATURES = r"^[^\s'\"]+$"  # of nodes, as `sbatch --constraint` takes them
GPU_TYPE = r"^[A-Za-z0-9_.]+$"  # the plugin takes no others

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
