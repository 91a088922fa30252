"""The key `ours` of a claim: how our number is computed, from tables of the study or from the model of exchanges."""

from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from ddp_hpc import perfmodel
from ddp_hpc.config import catalog
from ddp_hpc.config.errors import unknown
from ddp_hpc.config.types import STRICT, Float, OneOf, Positive, Real
from ddp_hpc.config.yaml_file import Key

DIRECTIONS = ("increasing", "decreasing")


def _table(name: Any) -> Any:
    catalog.path("table", str(name))
    if "OF_CLAIMS" in catalog.constants("table", name):
        raise ValueError(f"the table {name!r} is made of claims, so no claim can read it; expected: another one")
    return name


class Cells(BaseModel):
    """Cells of a table: one number per row, and per repeat where rows differ in the seed alone."""

    model_config = STRICT
    table: Annotated[str, BeforeValidator(_table)] = Field(
        description="a table; it is made even if `tables` does not list it"
    )
    column: str = Field(
        description="the column that holds the number; its interval is read from `<column>_low`, `_high`"
    )
    where: dict[str, Any] = Field(
        default_factory=dict,
        description="selects rows: columns with a value or a list of values, as in `grid`, e.g. "
        "`{world_size: 4, exchange: ring}`",
    )


class Ratio(BaseModel):
    """A ratio of cells; repeats of both are paired by their seed."""

    model_config = STRICT
    of: Cells = Field(description="numerator")
    to: Cells = Field(description="denominator")


class Trend(Cells):
    """How a column goes with another; a fit for each repeat."""

    over: str = Field(description="the independent variable, a column, e.g. `world_size`")
    kind: Literal["exponent", "slope", "increasing", "decreasing"] = Field(
        alias="as",
        description="exponent: b of column = a x over^b, by least squares of the logarithms; slope: of a linear "
        "fit; increasing, decreasing: the minimum relative change that way from one value of `over` to the next",
    )


class Predicted(BaseModel):
    """What the model of exchanges says (`perfmodel.py`), without any run."""

    model_config = STRICT
    exchange: str = Field(description="a file in exchange/ that has a cost model (`COST`), e.g. `ring`")
    bytes: Float = Field(gt=0, description="size of the gradients, in bytes")
    world_size: Positive = Field(description="ranks")
    quantity: Literal["seconds", "bytes_sent"] = Field(
        "seconds", description="seconds of one exchange, or bytes_sent by the rank that sends most"
    )
    bandwidth_gb_per_s: Annotated[float, Field(gt=0), Real] | None = Field(
        None, description="bandwidth of the link, in 1e9 B/s per direction; required for seconds"
    )
    latency_us: Float = Field(0.0, ge=0, description="latency of the link, in us per message")

    @field_validator("exchange")
    @classmethod
    def _modelled(cls, exchange: str) -> str:
        modelled = [name for name in catalog.names("exchange") if catalog.cost_model(name)]
        if exchange not in modelled:
            raise ValueError(unknown("exchange", exchange, modelled))
        return exchange

    @model_validator(mode="after")
    def _over_a_link(self) -> Self:
        if self.quantity == "seconds" and self.bandwidth_gb_per_s is None:
            raise ValueError("bandwidth_gb_per_s is missing; a time needs a link")
        return self

    @property
    def number(self) -> float:
        """The prediction, in s or in B."""
        model = catalog.cost_model(self.exchange)
        assert model is not None
        formula, options = model
        if self.quantity == "bytes_sent":
            return perfmodel.bytes_sent(formula, self.bytes, self.world_size, **options)
        link = perfmodel.Link(bandwidth=1e9 * (self.bandwidth_gb_per_s or inf), latency=1e-6 * self.latency_us)
        return perfmodel.exchange_time(formula, self.bytes, self.world_size, link, **options)


class Ours(OneOf):
    """How our number is computed: exactly one of these."""

    value: Cells | None = Field(None, description="a number in a table")
    ratio: Ratio | None = Field(None, description="the ratio of two numbers in tables")
    trend: Trend | None = Field(None, description="the trend of a column over another")
    predicted: Predicted | None = Field(
        None, description="a prediction of the cost model of exchanges, without any run"
    )

    @property
    def cells(self) -> dict[Key, Cells]:
        """The cells that are read, by where in `ours` they stand."""
        found: dict[Key, Cells | None] = {("value",): self.value, ("trend",): self.trend}
        if self.ratio:
            found |= {("ratio", "of"): self.ratio.of, ("ratio", "to"): self.ratio.to}
        return {place: cells for place, cells in found.items() if cells is not None}
