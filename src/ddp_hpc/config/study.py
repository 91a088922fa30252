"""The study file: its keys, their types and defaults."""

import json
import math
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from ddp_hpc.config import catalog
from ddp_hpc.config.budget import Budget
from ddp_hpc.config.claims import Claim, checked, tables_read
from ddp_hpc.config.errors import StudyError as StudyError
from ddp_hpc.config.errors import given, unknown
from ddp_hpc.config.publication import Publication
from ddp_hpc.config.spec import SPEC_FIELDS
from ddp_hpc.config.types import MAPPING, PLAIN, PLAIN_OR_MAPPING, STRICT, Float, Int, Positive, Real, Spelling, Whole
from ddp_hpc.config.validation import partly
from ddp_hpc.config.yaml_file import Document, read_mapping

NAME = Spelling(r"^[a-z0-9][a-z0-9_]{0,63}$", "lower-case letters, digits and _, not _ first, at most 64")
MOST_TRACED = 100  # steps
GLOBAL_BATCH = "global_batch_size"  # in a study it may stand for batch_size x world_size


def listed(value: Any) -> list[Any]:
    """Return a list as it is, anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def known(kind: str) -> AfterValidator:
    """Return what checks that there is such a choice, and that its file is one."""

    def known(name: str) -> str:
        catalog.check(kind, name)
        return name

    return AfterValidator(known)


# they say what competes with what, or repeat it
NOT_SEARCHED = ("world_size", "exchange", "dataset", "budget", "seed")


def _decides(value: Any) -> Any:
    known = ("loss_area", "test_metric", "{time_to: METRIC}")
    if value not in known[:2]:
        raise ValueError(f"given {given(value)}, expected: {', '.join(known)}")
    return value


class Target(BaseModel):
    """A winner by the time to a test metric."""

    model_config = STRICT
    time_to: Annotated[float, Field(gt=0), Real] = Field(
        description="the test metric to reach, e.g. 0.97; times are of evaluations, so set `evaluate_every_steps`"
    )


class Rules(BaseModel):
    """Rules of the training (the first three, part of every spec) and of the judgement (the rest)."""

    model_config = STRICT
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="factor on learning_rate: 1, k or sqrt(k), with k = global batch / base_batch_size"
    )
    base_batch_size: Positive | None = Field(None, description="global batch, in samples, at which k = 1")
    learning_rate_warm_up_steps: Int = Field(0, ge=0, description="steps over which the learning rate rises linearly")
    winner_by: Annotated[
        Annotated[Literal["loss_area", "test_metric"], BeforeValidator(_decides), PLAIN] | Annotated[Target, MAPPING],
        PLAIN_OR_MAPPING,
    ] = Field(
        "loss_area",
        description="what decides: the least loss_area, the best test_metric at the end, or `{time_to: METRIC}`, the "
        "least training time to a test metric",
    )
    metric: str | None = Field(
        None,
        description="the test metric of all tables and figures: one of `METRICS` in the file of each model or dataset; "
        "null: that of the task, accuracy or error",
    )
    loss_threshold: Float | None = Field(
        None, description="maximum min_loss of a winner, inclusive; null: any complete run can win"
    )
    loss_window: Int = Field(1, gt=0, description="steps over which the loss is averaged before its minimum is taken")
    area_noise: Float = Field(
        0.01,
        ge=0,
        lt=1,
        description="relative difference of loss areas or times that never counts if runs have no repeats",
    )
    reference_exchange: Annotated[str, known("exchange")] = Field(
        "torch_ddp",
        description="the exchange that all others are compared with; if several, the one with default options",
    )
    stop_when_beaten: bool = Field(
        False,
        description="stop runs whose loss area has passed that of a complete run of their group by more than the "
        "noise: they cannot win; see docs/stopping.md",
    )
    link_gb_per_s: Annotated[Float, Field(gt=0)] | None = Field(
        None,
        description="peak GB/s of a node's links to others, per direction, for `link_share`; null: unknown",
    )
    worthwhile_efficiency: Annotated[Float, Field(gt=0, lt=1)] = Field(
        0.5,
        description="share of the first rank's rate that one more rank must add to be worth it, for the table `cost`",
    )


FIRST_REPEATS = 3  # fewer say little of how repeats scatter


class Repeats(BaseModel):
    """As many repeats as it takes to know the winner."""

    model_config = STRICT
    until: Annotated[str, Spelling(r"^[0-9]+(\.[0-9]+)? ?%$", "a percentage, e.g. 5 %")] = Field(
        description="until each point is told apart from the winner of its group, or known to be within this of it, "
        "e.g. `5 %`; of an accuracy in percent points"
    )
    at_most: Annotated[int, Field(ge=FIRST_REPEATS, le=1000), Whole] = Field(
        description=f"repeats of a point; each has {FIRST_REPEATS} at first"
    )

    @property
    def difference(self) -> float:
        """What `until` says, as a number."""
        return float(self.until.rstrip("% ")) / 100

    @property
    def looks(self) -> list[int]:
        """How many repeats a point has each time that its results are looked at."""
        found = [FIRST_REPEATS]
        while found[-1] < self.at_most:
            found.append(min(self.at_most, math.ceil(1.5 * found[-1])))
        return found


class Pairs(BaseModel):
    """Two settings that are compared in every round; it changes no run, only their order."""

    model_config = STRICT
    axis: str = Field(description="the field of specs in which the two differ, e.g. `exchange`")
    values: list[Any] = Field(
        min_length=2,
        max_length=2,
        description="its two values, e.g. `[torch_ddp, ring]`: the ratios are of the second to the first",
    )

    @field_validator("axis")
    @classmethod
    def _field(cls, axis: str) -> str:
        if axis not in SPEC_FIELDS or axis in ("seed", "budget"):
            fields = [name for name in SPEC_FIELDS if name not in ("seed", "budget")]
            raise ValueError(unknown("field", axis, fields))
        return axis


class Trace(BaseModel):
    """Which steps are traced; it changes no result, no time and no run's identity."""

    model_config = STRICT
    steps: list[Positive] = Field(
        min_length=2,
        max_length=2,
        description="the first and the last step to trace, e.g. [100, 110]: taken twice, once under torch's profiler",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        first, last = self.steps
        if not first <= last < first + MOST_TRACED:
            raise ValueError(
                f"given {first} to {last}, expected: the first up to the last, at most {MOST_TRACED} steps; "
                "a trace is large, and a few steps show what there is"
            )
        return self


# flags of tables and figures: which studies they are for without being named; without a flag, for none
OF_STUDIES = frozenset({"GENERAL", "COMPARES_EXCHANGES", "COMPARES_PAIRS", "OF_GPUS", "OF_A_SEARCH", "OF_CLAIMS"})


class Study(BaseModel):
    """One study file."""

    model_config = STRICT
    name: Annotated[str, NAME] = Field(description="the file's name without .yaml: lower-case letters, digits and _")
    description: str = Field("", description="the question of the study, in one sentence")
    citation: str | None = Field(None, description="the work to cite, or whose experiment the study repeats")
    base: dict[Any, Any] = Field(default_factory=dict, description="spec fields shared by all points")
    grid: Annotated[list[dict[Any, Any]], BeforeValidator(listed)] = Field(
        default_factory=lambda: [{}],
        description="axes, each a value or a list of values; their product is run. `zip`: axes that vary together; "
        "`exclude`: points to leave out; `when`: the only points to keep. A list of grids is their union",
    )
    search: list[str] = Field(
        default_factory=lambda: ["batch_size", "learning_rate"],
        description="the axes over which a winner is searched; points that agree in all others compete",
    )
    repeats: Annotated[
        Annotated[int, Field(gt=0, le=1000), Whole, PLAIN] | Annotated[Repeats, MAPPING], PLAIN_OR_MAPPING
    ] = Field(1, description="how often each point runs; repeat i has seed + i")
    pairs: Pairs | None = Field(
        None, description="two settings to train one after the other in every round, for the table `pairs`"
    )
    budget: Budget | None = Field(
        None, description="exactly one of samples_seen, epochs, steps, seconds, for all points"
    )
    runtime_min: Positive | None = Field(
        None, description="time limit of a run in minutes, if no similar run was measured; null: the machine's"
    )
    trace: Trace | None = Field(None, description="the steps that each run traces; null: none")
    keep: Literal["weights"] | None = Field(
        None,
        description="what is kept of a run beside its records: `weights`, the trained model, for "
        "`ddp_hpc.load_model`; null: nothing",
    )
    rules: Rules = Field(default_factory=Rules, description="scaling of the learning rate, and which runs can win")
    tables: list[Annotated[str, known("table")]] | None = Field(
        None,
        description="tables to make; null: the general ones; those of exchanges if there are several, of pairs if the "
        "study has some, of GPUs with `device: cuda`; others only if named here: see `ddp-hpc list tables`",
    )
    figures: list[Annotated[str, known("figure")]] | None = Field(
        None,
        description="figures to draw; null: the general ones; those of exchanges if there are several, of GPUs with "
        "`device: cuda`, of a search if a searched axis has several values; others only if named here: see "
        "`ddp-hpc list figures`",
    )
    claims: Annotated[list[Claim], AfterValidator(checked)] = Field(
        default_factory=list,
        description="statements of a source that the table `claims` tests with this study's tables; they change no run",
    )
    publication: Publication | None = Field(
        None,
        description="what `ddp-hpc publish` says of the results: creators, licence, ...; null: config/publication.yaml",
    )

    @field_validator("search")
    @classmethod
    def _fields(cls, search: list[str]) -> list[str]:
        for field in search:
            if field not in SPEC_FIELDS:
                raise ValueError(unknown("field", field, SPEC_FIELDS))
            if field in NOT_SEARCHED:
                raise ValueError(
                    f"{field} is no axis of a search: a longer run, more ranks, a luckier seed, an easier dataset are "
                    "no better setting; "
                    f"expected: {', '.join(name for name in SPEC_FIELDS if name not in NOT_SEARCHED)}"
                )
        return search

    @property
    def looks(self) -> list[int]:
        """How many repeats a point has each time that its results are looked at: one number, if it is not `until`."""
        return [self.repeats] if isinstance(self.repeats, int) else self.repeats.looks

    @property
    def table_names(self) -> list[str]:
        """The tables to make; with claims also those that they read, and their own."""
        names = self._that_fit("table") if self.tables is None else list(self.tables)
        own = [name for name in catalog.readable("table") if "OF_CLAIMS" in catalog.constants("table", name)]
        return list(dict.fromkeys([*names, *tables_read(self.claims), *own])) if self.claims else names

    @property
    def figure_names(self) -> list[str]:
        """The figures to draw."""
        return self._that_fit("figure") if self.figures is None else list(self.figures)

    @property
    def exchanges(self) -> list[str]:
        """The names of its exchanges, sorted."""
        written = map(json.loads, self._written.get("exchange", ()))
        return sorted({str(one["name"] if isinstance(one, dict) else one) for one in written} - {"none"})

    def _that_fit(self, kind: str) -> list[str]:
        """Return the tables or figures that say by a flag that they are for such studies; others have to be named."""
        written = self._written
        exchanges = [values - {'"none"'} for name, values in written.items() if name.partition(".")[0] == "exchange"]
        several = [name.partition(".")[0] for name, values in written.items() if len(values) > 1]  # or an option of it
        searched = {name.replace(GLOBAL_BATCH, "batch_size") for name in several} & set(self.search)
        fits = {
            "GENERAL": True,
            "COMPARES_EXCHANGES": any(len(values) > 1 for values in exchanges),
            "COMPARES_PAIRS": self.pairs is not None,
            "OF_GPUS": '"cuda"' in written.get("device", ()),
            "OF_A_SEARCH": bool(searched),
            "OF_CLAIMS": bool(self.claims),
        }
        said = {name: OF_STUDIES & catalog.constants(kind, name).keys() for name in catalog.readable(kind)}
        return [name for name, flags in said.items() if flags and all(map(fits.__getitem__, flags))]

    @cached_property
    def _written(self) -> dict[str, set[str]]:
        """The values, as JSON, that base, grids and what is zipped in them give to each field, axis and option."""
        parts = [self.base, *self.grid, *(group for grid in self.grid for group in listed(grid.get("zip", [])))]
        found: dict[str, set[str]] = {}
        for name, value in (item for part in parts for item in part.items()):
            found.setdefault(name, set()).update(json.dumps(one, sort_keys=True, default=str) for one in listed(value))
        return found


HOMES = {
    "at the top level": tuple(Study.model_fields),
    "under `base` (one value) or `grid` (several)": (*SPEC_FIELDS, GLOBAL_BATCH),
    "under `rules`": tuple(Rules.model_fields),
    "under `budget`": tuple(Budget.model_fields),
    "under `repeats`": tuple(Repeats.model_fields),
    "under `trace`": tuple(Trace.model_fields),
    "under `publication`": tuple(Publication.model_fields),
}


def read(file: Path) -> tuple[Study, Document, list[str]]:
    """Return the study in `file` without what is wrong, the document that knows its lines, and what is wrong."""
    document = read_mapping(file, StudyError)
    stands_in = file.stem if re.fullmatch(NAME.pattern, file.stem) else "unnamed"
    study, problems = partly(Study, document, HOMES, name=stands_in)
    if study.name not in (file.stem, stands_in):
        why = f"given {study.name!r}, expected: the name of the file, {file.stem!r}"
        why += "" if stands_in == file.stem else f", which takes {NAME.words}"
        problems.append(f"{document.where(('name',))}: name: {why}")
    return study, document, problems
