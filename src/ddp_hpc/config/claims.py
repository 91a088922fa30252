"""The key `claims` of a study: what a source states, how ours is computed, and what agrees with it or contradicts it.

A claim changes no run and no run's identity: the table `claims` judges what there is.
"""

from collections import Counter
from collections.abc import Iterator
from math import inf, nextafter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from ddp_hpc.config.catalog import canonical
from ddp_hpc.config.claim_quantity import DIRECTIONS, Cells, Ours
from ddp_hpc.config.errors import given, unknown
from ddp_hpc.config.types import STRICT, Float, OneOf, Positive, Real, Spelling
from ddp_hpc.config.yaml_file import Key

# as it stands in a cell: the white space of YAML's blocks is no part of it
OneLine = Annotated[str, BeforeValidator(lambda text: " ".join(text.split()) if isinstance(text, str) else text)]
Range = tuple[float, float]
ID = Spelling(r"^[a-z][a-z0-9_]{0,63}$", "lower-case letters, digits and _, a letter first, at most 64")
CONDITIONS = ("complete", "within_cores", "quiet", "gpu")


class Expect(OneOf):
    """The numbers that agree with the source: exactly one of these."""

    within: Annotated[float, Field(gt=0, lt=1), Real] | None = Field(
        None, description="relative tolerance around `published`: 0.1 is 10 % to either side"
    )
    at_least: Float | None = Field(None, description="minimum")
    at_most: Float | None = Field(None, description="maximum")
    between: list[Float] | None = Field(None, min_length=2, max_length=2, description="minimum and maximum")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.between and not self.between[0] < self.between[1]:
            raise ValueError(f"between: given {given(self.between)}, expected: the least, then the largest")
        return self


class Contradicted(BaseModel):
    """The numbers that contradict the source: one of these, or both."""

    model_config = STRICT
    below: Float | None = Field(None, description="all numbers below this one")
    above: Float | None = Field(None, description="all numbers above this one")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.below is None and self.above is None:
            raise ValueError("needs below, above or both; leave it out where all that is not expected contradicts")
        return self


class AtLeast(OneOf):
    """A size that the study must have reached: one of these."""

    nodes: Positive | None = Field(None, description="the most nodes of any complete run of the study, at least")
    ranks: Positive | None = Field(None, description="the most ranks of any complete run of the study, at least")


def _condition(value: Any) -> Any:
    """Refuse what is no condition, in words: a union says only what none of its parts wants."""
    sizes = tuple(AtLeast.model_fields)
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in sizes:
        return value
    if isinstance(value, str) and value not in CONDITIONS and value not in sizes:
        raise ValueError(unknown("condition", value, (*CONDITIONS, *(f"{name}: N" for name in sizes))))
    if not isinstance(value, str | AtLeast) or value in sizes:
        listed = f"{', '.join(CONDITIONS)}, {', '.join(f'{name}: N' for name in sizes)}"
        raise ValueError(f"given {given(value)}, expected: {listed}")
    return value


Condition = Annotated[Literal["complete", "within_cores", "quiet", "gpu"] | AtLeast, BeforeValidator(_condition)]


class Claim(BaseModel):
    """A statement of a source, and how it is judged."""

    model_config = STRICT
    id: Annotated[str, ID] = Field(description="a unique name: lower-case letters, digits and _")
    statement: OneLine = Field(min_length=1, description="what the source states, in one sentence")
    source: OneLine = Field(min_length=1, description="where it is stated")
    published: Float | None = Field(None, description="the source's number; null if it gives only words")
    unit: OneLine = Field("", description="unit of the published and the measured number")
    ours: Ours = Field(description="how the measured number is computed")
    expect: Expect | None = Field(
        None,
        description="numbers that agree with the source; null, for increasing and decreasing trends: any such change",
    )
    contradicted: Contradicted | None = Field(
        None, description="numbers that contradict it; null: all that `expect` excludes"
    )
    applies_when: list[Condition] = Field(
        default_factory=list,
        description="conditions for a verdict: complete, all runs that it reads; within_cores, none of them with more "
        "threads than cores; quiet, none of them disturbed; gpu, on GPUs; `nodes: N`, `ranks: N`, a run of that size",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        trend = self.ours.trend
        if self.expect is None and not (trend and trend.kind in DIRECTIONS):
            raise ValueError(f"expect is missing; expected: one of {', '.join(Expect.model_fields)}")
        if self.expect and self.expect.within and not self.published:
            raise ValueError(
                f"expect: within a part of published, which is {given(self.published)}; write the number, or "
                "between: [a, b]"
            )
        low, high = self.expected
        below, above = self.against
        if (below is not None and below > low) or (above is not None and above < high):
            raise ValueError(f"contradicted: {self._against} holds some of what is expected, {self._expected}")
        return self

    @property
    def expected(self) -> Range:
        """The least and the largest number that agrees with the source."""
        if self.expect is None:
            return nextafter(0.0, inf), inf
        if self.expect.within and self.published:
            half = self.expect.within * abs(self.published)
            return canonical(self.published - half), canonical(self.published + half)
        if self.expect.between:
            return self.expect.between[0], self.expect.between[1]
        return (
            -inf if self.expect.at_least is None else self.expect.at_least,
            inf if self.expect.at_most is None else self.expect.at_most,
        )

    @property
    def against(self) -> tuple[float | None, float | None]:
        """What contradicts the source: all numbers below the first, and all above the second."""
        if self.contradicted:
            return self.contradicted.below, self.contradicted.above
        return self.expected

    @property
    def in_words(self) -> str:
        """What is expected, and what contradicts it where that is not the rest."""
        return f"{self._expected}; contradicted {self._against}" if self.contradicted else self._expected

    @property
    def _expected(self) -> str:
        if self.expect is None:
            return "any change that way"
        if self.expect.within and self.published:
            return f"within {100 * self.expect.within:g} % of {self.published:g}"
        if self.expect.between:
            return f"{self.expect.between[0]:g} to {self.expect.between[1]:g}"
        ends = {"at least": self.expect.at_least, "at most": self.expect.at_most}
        return next(f"{name} {end:g}" for name, end in ends.items() if end is not None)

    @property
    def _against(self) -> str:
        ends = self.contradicted.model_dump() if self.contradicted else {}
        return " or ".join(f"{name} {end:g}" for name, end in ends.items() if end is not None)


def checked(claims: list[Claim]) -> list[Claim]:
    """Return `claims`; raise ValueError where two have one id."""
    twice = [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise ValueError(f"the id {twice[0]!r} stands more than once; expected: once")
    return claims


def tables_read(claims: list[Claim]) -> list[str]:
    """Return the tables that claims read, each once."""
    return list(dict.fromkeys(cells.table for claim in claims for cells in claim.ours.cells.values()))


def places(claims: list[Claim]) -> Iterator[tuple[Key, Cells]]:
    """Yield all cells that claims read, and where in the study they stand."""
    for number, claim in enumerate(claims):
        for place, cells in claim.ours.cells.items():
            yield ("claims", number, "ours", *place), cells
