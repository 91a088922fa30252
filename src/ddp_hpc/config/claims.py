"""The key `claims` of a study: what a source states, how ours is computed, and what agrees with it or contradicts it.

A claim changes no run and no run's identity: the table `claims` judges what there is.
"""

from collections import Counter
from collections.abc import Iterator
from math import inf, nextafter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from ddp_hpc import perfmodel
from ddp_hpc.config import catalog
from ddp_hpc.config.errors import given, unknown
from ddp_hpc.config.types import MAPPING, PLAIN, PLAIN_OR_MAPPING, STRICT, Float, OneOf, Positive, Real, Spelling, Whole
from ddp_hpc.config.yaml_file import Key

# as it stands in a cell: the white space of YAML's blocks is no part of it
OneLine = Annotated[str, BeforeValidator(lambda text: " ".join(text.split()) if isinstance(text, str) else text)]
Range = tuple[float, float]
ID = Spelling(r"^[a-z][a-z0-9_]{0,63}$", "lower-case letters, digits and _, a letter first, at most 64")
DIRECTIONS = ("increasing", "decreasing")
CONDITIONS = ("complete", "within_cores", "quiet", "gpu")
OF_WINNERS = ("winners",)  # tables in which times decide what a row is of
WHOEVER_WINS = (
    "points",
    "eligible_points",
    "excluded_points",
    "runs",
    "excluded_runs",
)  # their columns of losses alone
FOR_TIMES = ("within_cores", "quiet")  # what a claim on times needs: else a busy machine decides it
# columns that other work on the machine changes, beside those in seconds or per second
TIMED = {"speedup", "efficiency", "karp_flatt", "times_as_fast", "weak_efficiency", "over_none", "gain", "ratio"} | {
    *("sync_share", "data_share", "server_share", "link_share", "exchange_share", "gpu_utilisation_mean", "mfu")
}


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
    winner: bool = Field(
        False,
        description="true: of the rows that `where` selects only those of winners, as the table `winners` has them; "
        "what cannot be told from a winner widens the interval",
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
    to: Cells | None = Field(
        None,
        description="divides each number first, repeats paired by their seed: a baseline, e.g. of another partition",
    )

    @model_validator(mode="after")
    def _of_many(self) -> Self:
        if self.winner or (self.to and self.to.winner):
            raise ValueError(
                "winner: given true, expected: false; a trend goes over many rows, so ask for a ratio of two"
            )
        return self


class Count(BaseModel):
    """How many runs are so: a number for each repeat, by the table `runs`."""

    model_config = STRICT
    where: dict[str, Any] = Field(default_factory=dict, description="the runs that are asked, as in cells")
    having: dict[str, Any] = Field(
        min_length=1, description="which of them count, in the same way, e.g. `{status: diverged}`"
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
    fitted_to: list[Annotated[list[Float], Field(min_length=2, max_length=2)]] | None = Field(
        None,
        description="instead of a link: world sizes, two at least, each with its published seconds, from which those "
        "of another one follow: `[[2, 0.004], [4, 0.007]]`; `bytes` may be anything then",
    )
    part: Literal["exchange", "averaging"] = Field(
        "exchange",
        description="what they are the seconds of: the exchange, by rounds and bytes on the way; averaging, by a "
        "constant and the buffers that are added up",
    )

    @field_validator("exchange")
    @classmethod
    def _modelled(cls, exchange: str) -> str:
        modelled = [name for name in catalog.readable("exchange") if catalog.cost_model(name)]
        if exchange not in modelled:
            raise ValueError(unknown("exchange", exchange, modelled))
        return exchange

    @model_validator(mode="after")
    def _over_a_link(self) -> Self:
        if self.fitted_to is not None:
            sizes = {size for size, _ in self.fitted_to}
            if len(sizes) < 2 or not all(size > 0 and size == int(size) != self.world_size for size in sizes):
                why = "two world sizes or more, not the one that is predicted"
                raise ValueError(f"fitted_to: given {given(self.fitted_to)}, expected: seconds at {why}")
            self.number  # noqa: B018  (raises where the series does not tell)
        elif self.quantity == "seconds" and self.bandwidth_gb_per_s is None:
            raise ValueError("bandwidth_gb_per_s is missing; a time needs a link, or a series: fitted_to")
        return self

    @property
    def number(self) -> float:
        """The prediction, in s or in B."""
        model = catalog.cost_model(self.exchange)
        assert model is not None
        formula, options = model
        if self.fitted_to is not None:
            series = {int(size): seconds for size, seconds in self.fitted_to}
            return perfmodel.continued(formula, series, self.world_size, self.part == "averaging", **options)
        if self.quantity == "bytes_sent":
            return perfmodel.cost(formula, self.bytes, self.world_size, **options).sent
        link = perfmodel.Link(bandwidth=1e9 * (self.bandwidth_gb_per_s or inf), latency=1e-6 * self.latency_us)
        return perfmodel.exchange_time(formula, self.bytes, self.world_size, link, **options)


class Forecast(BaseModel):
    """What the model of a step says (docs/prediction.md), fitted to the runs at some world sizes."""

    model_config = STRICT
    exchange: Annotated[str, BeforeValidator(lambda name: catalog.check("exchange", name) or name)] = Field(
        description="of the runs; one rank without exchange counts too"
    )
    fitted_at: list[Positive] = Field(min_length=2, description="the world sizes to which it is fitted")
    world_size: Positive = Field(description="the one that is predicted, which is none of them")
    scaling: Literal["weak", "strong"] = Field("weak", description="whether the batch per rank or the global one stays")
    batch: Positive | None = Field(None, description="that batch; null: the study has one only")
    quantity: Literal["step_s", "over_measured"] = Field(
        "step_s", description="the mean step in seconds, or that over the measured one: 1 where the model holds"
    )

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.world_size in self.fitted_at:
            raise ValueError(f"world_size: given {self.world_size}, expected: none of fitted_at, {self.fitted_at}")
        return self


class Ours(OneOf):
    """How our number is computed: exactly one of these."""

    value: Cells | None = Field(None, description="a number in a table")
    ratio: Ratio | None = Field(None, description="the ratio of two numbers in tables")
    trend: Trend | None = Field(None, description="the trend of a column over another")
    count: Count | None = Field(None, description="how many runs of a repeat are so, e.g. have diverged")
    predicted: Predicted | None = Field(
        None, description="a prediction of the cost model of exchanges, without any run"
    )

    from_runs: Forecast | None = Field(
        None, description="what the study's own runs predict at a world size, fitted to those at others"
    )

    @property
    def cells(self) -> dict[Key, Cells]:
        """The cells that are read, by where in `ours` they stand."""
        found: dict[Key, Cells | None] = {("value",): self.value, ("trend",): self.trend}
        if self.ratio:
            found |= {("ratio", "of"): self.ratio.of, ("ratio", "to"): self.ratio.to}
        if self.trend:
            found |= {("trend", "to"): self.trend.to}
        if self.count:
            found |= {("count",): Cells(table="runs", column="world_size", where=self.count.where)}
        if one := self.from_runs:
            read = [*one.fitted_at, *([one.world_size] if one.quantity == "over_measured" else [])]
            where = {"exchange": [one.exchange, "none"], "world_size": sorted(read)}
            found |= {("from_runs",): Cells(table="runs", column="train_s", where=where)}
        return {place: cells for place, cells in found.items() if cells is not None}


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
        if self.between and self.between[0] > self.between[1]:
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


class Bounds(BaseModel):
    """The least and the largest size: one of these, or both."""

    model_config = STRICT
    at_least: Positive | None = Field(None, description="the largest run has at least so many")
    at_most: Positive | None = Field(None, description="no run has more")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("needs at_least, at_most or both")
        return self


Size = Annotated[Annotated[int, Field(gt=0), Whole, PLAIN] | Annotated[Bounds, MAPPING], PLAIN_OR_MAPPING]


class Sizes(OneOf):
    """A size of the runs that a claim reads: one of these."""

    nodes: Size | None = Field(None, description="nodes: `N`, at least so many, or `{at_least: N, at_most: N}`")
    ranks: Size | None = Field(None, description="ranks, likewise")
    ranks_per_node: Size | None = Field(None, description="ranks on a node, likewise; a rank has a GPU of its own")

    @property
    def asked(self) -> tuple[str, Bounds]:
        """What is bounded, and how."""
        name, size = next((name, size) for name, size in self if size is not None)
        return name, Bounds(at_least=size, at_most=None) if isinstance(size, int) else size


def _condition(value: Any) -> Any:
    """Refuse what is no condition, in words: a union says only what none of its parts wants."""
    sizes = tuple(Sizes.model_fields)
    if isinstance(value, Sizes) or (isinstance(value, dict) and len(value) == 1 and next(iter(value)) in sizes):
        return value
    known = (*CONDITIONS, *(f"{name}: N" for name in sizes))
    if not isinstance(value, str):
        raise ValueError(f"given {given(value)}, expected: {', '.join(known)}")
    if value not in CONDITIONS:
        raise ValueError(unknown("condition", value, known))
    return value


Condition = Annotated[Literal["complete", "within_cores", "quiet", "gpu"] | Sizes, BeforeValidator(_condition)]
MEASURED, ARITHMETIC, OWN = KINDS = ("measured", "arithmetic", "own")
WITHIN, AT_LEAST, AT_MOST, ANY_CHANGE = "within", "at least", "at most", "any change that way"  # what is expected


class Claim(BaseModel):
    """A statement of a source, and how it is judged."""

    model_config = STRICT
    id: Annotated[str, ID] = Field(description="a unique name: lower-case letters, digits and _")
    statement: OneLine = Field(min_length=1, description="what the source states, in one sentence")
    source: OneLine = Field(min_length=1, description="where it is stated")
    kind: Literal["measured", "arithmetic", "own"] | None = Field(
        None,
        description="measured: the source states it, runs are to show it; arithmetic: a formula evaluated again; own: "
        "an expectation of ours that the source does not state. They are counted apart. null: arithmetic with "
        "`predicted`, else measured",
    )
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
        description="conditions for a verdict, on the runs that it reads: complete, all of them; within_cores, none "
        "with more threads than cores; quiet, none disturbed (a claim that reads times needs these two); gpu, on GPUs; "
        "`nodes: N`, `ranks: N`, `ranks_per_node: N`, the largest at least of that size, or `{at_most: N}`, all",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        trend = self.ours.trend
        if self.expect is None and not (trend and trend.kind in DIRECTIONS):
            raise ValueError(f"expect is missing; expected: one of {', '.join(Expect.model_fields)}")
        if self.kind and (self.kind == ARITHMETIC) != bool(self.ours.predicted):
            why = "arithmetic is what is predicted, without runs" if self.ours.predicted else "that reads no formula"
            raise ValueError(f"kind: given {self.kind!r}, but {why}; expected: null, or what `ours` is")
        if self.expect and self.expect.within and not self.published:
            why = f"within a part of published, which is {given(self.published)}; write the number, or between: [a, b]"
            raise ValueError(f"expect: {why}")
        (low, high), agrees = self._agrees
        below, above = self.against
        if (below is not None and below > low) or (above is not None and above < high):
            raise ValueError(f"contradicted: {self._contradicts} holds some of what is expected, {agrees}")
        return self

    @property
    def of_kind(self) -> str:
        """What is compared: a measurement, the arithmetic of a formula, or an expectation of our own."""
        return self.kind or (ARITHMETIC if self.ours.predicted else MEASURED)

    @property
    def _agrees(self) -> tuple[Range, str]:
        """What agrees with the source: the least and the largest such number, and in words."""
        match self.expect:
            case Expect(within=float(share)) if self.published:
                half = share * abs(self.published)
                ends = catalog.canonical(self.published - half), catalog.canonical(self.published + half)
                return ends, f"{WITHIN} {100 * share:g} % of {self.published:g}"
            case Expect(between=[low, high]):
                return (low, high), f"{low:g} to {high:g}"
            case Expect(at_least=float(low)):
                return (low, inf), f"{AT_LEAST} {low:g}"
            case Expect(at_most=float(high)):
                return (-inf, high), f"{AT_MOST} {high:g}"
        over = self.ours.trend.over if self.ours.trend else ""
        return (nextafter(0.0, inf), inf), f"{ANY_CHANGE} from each {over} to the next; ours is the least, as a share"

    @property
    def expected(self) -> Range:
        """The least and the largest number that agrees with the source."""
        return self._agrees[0]

    @property
    def against(self) -> tuple[float | None, float | None]:
        """What contradicts the source: all numbers below the first, and all above the second."""
        return (self.contradicted.below, self.contradicted.above) if self.contradicted else self.expected

    @property
    def in_words(self) -> str:
        """What is expected, and what contradicts it where that is not the rest."""
        return f"{self._agrees[1]}; contradicted {self._contradicts}" if self.contradicted else self._agrees[1]

    @property
    def _contradicts(self) -> str:
        return " or ".join(f"{name} {end:g}" for name, end in self.contradicted or () if end is not None)


def checked(claims: list[Claim]) -> list[Claim]:
    """Return `claims`; raise ValueError where two have one id."""
    twice = [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise ValueError(f"the id {twice[0]!r} stands more than once; expected: once")
    return claims


def times_read(claim: Claim, winner_by: object) -> list[str]:
    """Return the columns in times that a claim reads; who wins depends on times unless the test metric decides it."""
    found = []
    for cells in claim.ours.cells.values():
        of_winner = cells.winner or (cells.table in OF_WINNERS and cells.column not in WHOEVER_WINS)
        decided = of_winner and winner_by != "test_metric"
        if decided or cells.column in TIMED or cells.column.endswith(("_s", "_ms", "_us")):
            found.append(cells.column)
    return list(dict.fromkeys(found))


def tables_read(claims: list[Claim]) -> list[str]:
    """Return the tables that claims read, each once."""
    cells = [one for claim in claims for one in claim.ours.cells.values()]
    winners = ["winners"] if any(one.winner for one in cells) else []
    return list(dict.fromkeys([*(one.table for one in cells), *winners]))


def places(claims: list[Claim]) -> Iterator[tuple[Key, Cells]]:
    """Yield all cells that claims read, and where in the study they stand."""
    for number, claim in enumerate(claims):
        for place, cells in claim.ours.cells.items():
            yield ("claims", number, "ours", *place), cells
