"""The key `budget`: how long a run trains."""

import math
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from ddp_hpc.config import catalog
from ddp_hpc.config.types import LARGEST, OneOf, Real, Whole

MOST_LISTED = 12  # global batches in a message


class NotDivisibleError(ValueError):
    """A budget of samples that is not an integer of steps."""

    def __init__(self, asked: int, global_batches: Iterable[int]) -> None:
        self.asked, self.global_batches = asked, sorted(set(global_batches))
        unit = math.lcm(*self.global_batches)
        below = asked - asked % unit
        batches = "batch" if len(self.global_batches) == 1 else "batches"
        few, more = self.global_batches[:MOST_LISTED], len(self.global_batches) - MOST_LISTED
        multiples = f"multiples of {unit}, e.g. {below or unit} or {below + unit if below else 2 * unit}"
        super().__init__(
            f"budget: samples_seen={asked} is no multiple of the global {batches} "
            f"(batch_size x world_size) {', '.join(map(str, few))}{f' and {more} more' if more > 0 else ''}; "
            f"expected: {multiples if unit <= LARGEST else 'epochs or steps, or batches with a common multiple'}"
        )


class Budget(OneOf):
    """How long a run trains; exactly one of the four."""

    samples_seen: Annotated[int, Field(gt=0, le=LARGEST), Whole] | None = Field(
        None, description="samples, summed over all ranks"
    )
    epochs: Annotated[float, Field(gt=0, le=1_000_000), Real, AfterValidator(catalog.integral)] | None = Field(
        None, description="passes over the training samples, rounded to the nearest integer of steps, at least one"
    )
    steps: Annotated[int, Field(gt=0, lt=2**31), Whole] | None = Field(None, description="optimiser steps")
    seconds: Annotated[float, Field(gt=0), Real] | None = Field(
        None,
        description="seconds of training from time zero; looked at every 10 steps, on GPUs every 50 ms if those are "
        "shorter",
    )

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self if value is not None)
