"""One part of a machine, as the doctor finds it."""

from dataclasses import dataclass
from typing import Literal

GB = 1e9


@dataclass(frozen=True)
class Finding:
    """One part of the machine: `missing` and `needed` together mean that not even the quickstart can run."""

    part: str
    state: Literal["ok", "warning", "missing"]
    found: str
    means: str = ""
    do: str = ""
    needed: bool = False
