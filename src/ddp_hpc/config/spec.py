"""The specification of one run and its components: everything that decides its result, and nothing else."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_serializer,
    model_validator,
)

from ddp_hpc.config import catalog
from ddp_hpc.config.budget import Budget, NotDivisibleError
from ddp_hpc.config.errors import ConflictError, given
from ddp_hpc.config.program import Program
from ddp_hpc.config.types import STRICT, Float, Int, Name, Positive, Unit, canonical_json

Device = Literal["cpu", "cuda"]
BY_LAUNCHER = (  # what is done for a program of one's own: all other fields have to be in its command to have an effect
    *("world_size", "batch_size", "learning_rate", "budget", "seed", "device", "threads_per_rank", "share_gpu"),
    *("placement", "ranks_per_node", "partition"),
)


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


OF_A_PROGRAM = object()  # in place of a component that only the program knows


def component_of(kind: str) -> WrapValidator:
    """Return what makes a Component of a name or a mapping, and checks it against the catalogue."""

    def check(value: Any, as_component: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, Component) or value is OF_A_PROGRAM:
            return None if value is OF_A_PROGRAM else value
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            one_of = f"{', '.join(catalog.names(kind))}, or {{name: ..., <option>: ...}}"
            raise ValueError(f"given {given(value)}, expected: one of {one_of}")
        catalog.check(kind, value["name"])
        options = {key: option for key, option in value.items() if key != "name"}
        return as_component(Component(name=value["name"], options=catalog.check_options(kind, value["name"], options)))

    return WrapValidator(check)


def noise_parts(world_size: int, batch_size: int) -> tuple[int, int]:
    """Return into how many parts a global batch is split for the noise scale, and the samples of each; 0: it cannot."""
    return (world_size, batch_size) if world_size > 1 else (2, batch_size // 2)


class RunSpec(BaseModel):
    """Everything that decides a run's result.

    A field equal to its default takes no part in the hash, so a new field with a default changes no old run;
    changing a default changes the meaning of old hashes and is a break of the schema.
    """

    model_config = STRICT

    # None, both, where there is a `program`; types do not say so: code that may meet such a spec asks for that first
    model: Annotated[Component, component_of("model")] = Field(description="a file in models/, with its options")
    dataset: Annotated[Component, component_of("dataset")] = Field(description="a file in data/, with its options")
    exchange: Annotated[Component, component_of("exchange")] = Field(
        description="a file in exchange/, with its options; `none` is the baseline: one rank, no MPI call in the step"
    )
    world_size: Annotated[Int, Unit("ranks")] = Field(
        gt=0, le=1_000_000, description="ranks; one GPU each where there are GPUs"
    )
    batch_size: Annotated[Int, Unit("samples")] = Field(
        gt=0, lt=2**31, description="local batch: samples per rank and step"
    )
    learning_rate: Float = Field(gt=0, description="learning rate at the base batch, before `learning_rate_scaling`")
    budget: Budget = Field(description="how long to train: exactly one of samples_seen, epochs, steps, seconds")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the optimizer")
    momentum: Float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: Float = Field(0.0, ge=0, description="L2 penalty; in the gradient, not in the reported loss")
    seed: Int = Field(0, ge=0, lt=2**31, description="seed of the weights and the order of samples; repeat i adds i")
    sampling: Literal["global", "partitioned"] = Field(
        "global",
        description="global: the same global batches in the same order at every world size; "
        "partitioned: each rank cycles through its own shard (sharded sampling)",
    )
    dtype: Literal["float32", "float64"] = Field(
        "float32", description="type of weights, gradients and inputs (tokens are int64)"
    )
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="factor on learning_rate: 1, k or sqrt(k), with k = global batch / base_batch_size"
    )
    base_batch_size: Annotated[Positive | None, Unit("samples")] = Field(
        None, description="global batch at which k = 1; required by linear and sqrt"
    )
    learning_rate_warm_up_steps: Annotated[Int, Unit("steps")] = Field(
        0, ge=0, description="steps over which the learning rate rises linearly to its full value"
    )
    evaluate_every_steps: Annotated[Positive | None, Unit("steps")] = Field(
        None, description="steps between evaluations on the test set; null: at the end only"
    )
    noise_scale_every_steps: Annotated[Positive | None, Unit("steps")] = Field(
        None,
        description="steps between samples of the gradient noise scale, off the clock, from the gradients of the ranks "
        "and their mean or, of one rank, of the halves of its batch; null: none",
    )
    device: Device | None = Field(None, description="null: a GPU where there is one, else the CPU")
    threads_per_rank: Annotated[Positive | None, Unit("threads")] = Field(
        None, description="CPU threads per rank; null: the cores of the node / its ranks"
    )
    precision: Literal["full", "tf32", "bfloat16"] = Field(
        "full",
        description="arithmetic of float32 matrix products and convolutions: full; tf32, factors rounded to 10 bits, "
        "on GPUs from compute capability 8.0; bfloat16, by autocast. Weights, gradients and updates stay float32",
    )
    data_placement: Literal["device", "host", "loader"] = Field(
        "device",
        description="where the dataset is stored; host: in host memory, and each batch is copied to the GPU during the "
        "previous step; on a CPU both are the same. loader: in host memory, read by torch's DataLoader, which takes "
        "longer: the usual way, to compare with",
    )
    compile: bool = Field(
        False,
        description="forward pass, loss and backward pass compiled into fused kernels (torch.compile with Inductor, "
        "static shapes), before warmup; needs a C++ compiler on a CPU, Triton on a GPU",
    )
    capture: Literal["auto", "off"] = Field(
        "auto",
        description="auto: on a GPU, capture steps as CUDA graphs, as far as the exchange allows; off: launch every "
        "kernel separately; on a CPU nothing is captured",
    )
    deterministic: bool = Field(
        False,
        description="on a GPU, kernels that add in the same order each time, where torch has them, which may take "
        "longer; what has none is among the warnings of the record; a CPU does so anyway",
    )
    share_gpu: bool = Field(
        False, description="let ranks of a node share its GPUs if it has fewer; false: that is an error"
    )
    placement: Literal["packed", "spread"] | None = Field(
        None,
        description="packed: fill a node before the next; spread: `ranks_per_node` on each; a run with another "
        "placement is excluded from comparisons. null: as packed, without this check",
    )
    ranks_per_node: Annotated[Positive, Unit("ranks")] = Field(1, description="with placement: spread")
    partition: Name | None = Field(
        None, description="partition of the cluster; null: the machine file's default_partition"
    )
    program: Program | None = Field(
        None, description="a training program of your own, in place of model, dataset and exchange"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_program(cls, given: Any) -> Any:
        """A program has no model and dataset that we know, and moves its gradients itself."""
        if not isinstance(given, Mapping) or given.get("program") is None:
            return given
        exchange = Component(name="none" if given.get("world_size") == 1 else catalog.PROGRAM)
        in_place = {"model": OF_A_PROGRAM, "dataset": OF_A_PROGRAM, "exchange": exchange}
        if beside := [name for name in in_place if given.get(name) is not None]:
            why = f"program stands in place of model, dataset and exchange; given beside it: {', '.join(beside)}"
            raise ConflictError(why, "program", *beside)
        return {**given, **in_place}

    @field_validator("batch_size", mode="before")
    @classmethod
    def _shared_out(cls, value: Any) -> Any:
        if isinstance(value, ConflictError):  # there is none, and this says why
            raise value
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        asked = self.budget.samples_seen
        if asked is not None and asked % self.global_batch_size:
            raise NotDivisibleError(asked, [self.global_batch_size])
        self._check_exchange()
        if self.program:
            self._check_program(self.program)
        else:
            self._check_inputs()
        self._check_samples()
        if self.optimizer == "adam" and self.momentum:
            both = f"zip: {{optimizer: [sgd, adam], momentum: [{self.momentum:g}, 0]}}"
            raise self._conflict(f"it belongs to sgd; to compare both: {both}", "momentum", "optimizer")
        if self.precision != "full" and self.dtype != "float32":
            why = "it is about products of float32; expected: full, or dtype=float32"
            raise self._conflict(why, "precision", "dtype")
        if self.placement != "spread" and self.ranks_per_node != 1:
            raise self._conflict("it belongs to placement: spread", "ranks_per_node", "placement")
        if self.placement == "spread" and self.world_size % self.ranks_per_node:
            why = "placement: spread needs as many ranks on each node; expected: a divisor of world_size"
            raise self._conflict(why, "ranks_per_node", "world_size")
        if (self.learning_rate_scaling == "none") != (self.base_batch_size is None):
            why = "linear and sqrt need base_batch_size, none does not take it"
            raise self._conflict(why, "learning_rate_scaling", "base_batch_size")
        return self

    def _conflict(self, why: str, *fields: str) -> ConflictError:
        values = {name: getattr(self, name) for name in fields}
        shown = " with ".join(f"{name}={'null' if value is None else value}" for name, value in values.items())
        return ConflictError(f"{shown}: {why}", *fields)

    def _check_inputs(self) -> None:
        """Check that the model takes what the dataset has: INPUT_SHAPE and SHAPE, TOKENS of both."""
        model, dataset = catalog.constants("model", self.model.name), catalog.constants("dataset", self.dataset.name)
        tokens, wanted, shape = dataset.get("TOKENS", False), model.get("INPUT_SHAPE"), dataset.get("SHAPE")
        if model.get("TOKENS", False) != tokens:
            able = [
                n for n in catalog.readable("model") if catalog.constants("model", n).get("TOKENS", False) == tokens
            ]
            has, takes = ("tokens", "numbers") if tokens else ("numbers", "tokens")
            has += f"; expected: {', '.join(able)}"
        elif wanted and shape and not _fits(wanted, shape):
            has, takes = str(shape), f"samples of shape {wanted}"
        else:
            return
        why = f"model {self.model.name!r} takes {takes}, dataset {self.dataset.name!r} has {has}"
        raise ConflictError(why, "model", "dataset")

    def _check_program(self, program: Program) -> None:
        """Check that the command's braces name fields that have a value, and that it is told all that is set."""
        if why := program.problem(self.values):
            raise ConflictError(f"program: command: {why}", "program")
        if lacking := [name for name in sorted(program.fields) if {**self.values, **program.parameters}[name] is None]:
            why = f"program: command: {{{lacking[0]}}} is null in this spec, with budget {self.budget}"
            raise ConflictError(why, "program", lacking[0])
        if untold := [name for name in program.parameters if name not in program.fields]:
            raise ConflictError(f"program: parameters: the command has no {{{untold[0]}}}", "program")
        known = self.model_dump(exclude_defaults=True, exclude={"model", "dataset", "exchange", "program"}).keys()
        if untold := sorted(known - {*BY_LAUNCHER, *program.fields}):
            why = f"the command of the program has no {{{untold[0]}}}, so it would not know"
            raise self._conflict(why, untold[0], "program")

    def _check_exchange(self) -> None:
        """Check what an exchange's file says of itself: MAX_WORLD_SIZE, UP_TO_WORLD_SIZE, DEVICES, CAPTURED ..."""
        name, flags = self.exchange.name, catalog.constants("exchange", self.exchange.name)
        largest = flags.get("MAX_WORLD_SIZE")
        if largest is not None and self.world_size > largest:
            raise ConflictError(
                f"exchange {name!r} allows world_size up to {largest}, given {self.world_size}; "
                f"expected for more: {', '.join(other for other in catalog.names('exchange') if other != name)}; give "
                f"it a grid of its own, or exclude: {{exchange: {name}, world_size: [{self.world_size}, ...]}}",
                "exchange",
            )
        for option in flags.get("UP_TO_WORLD_SIZE", ()):
            value = self.exchange.options.get(option)
            if value is not None and value > self.world_size:
                raise ConflictError(
                    f"exchange {name!r}: {option}={value} with world_size={self.world_size}, "
                    f"expected: 1 to {self.world_size}",
                    "exchange",
                )
        devices = catalog.devices(name, self.exchange.options)
        if self.device is not None and self.device not in devices:
            able = [other for other in catalog.readable("exchange") if self.device in catalog.devices(other)]
            raise ConflictError(
                f"exchange {str(self.exchange)!r} works on {' and '.join(devices)}, given device={self.device}; "
                f"expected: {', '.join(able)}",
                "exchange",
                "device",
            )
        if catalog.asked(name, "CAPTURED", self.exchange.options):
            for field, value in (("capture", "auto"), ("dtype", "float32"), ("compile", False)):
                if getattr(self, field) != value:
                    raise self._conflict(f"this exchange is a CUDA graph; expected: {value}", field, "exchange")
        if self.evaluate_every_steps and not flags.get("SYNCHRONOUS", True):
            why = "its ranks take their steps each by itself, so none is common; expected: null, at the end only"
            raise self._conflict(why, "evaluate_every_steps", "exchange")
        if self.noise_scale_every_steps and not (flags.get("SYNCHRONOUS", True) and flags.get("EXACT", True)):
            able = [one for one in catalog.readable("exchange") if catalog.constants("exchange", one).get("EXACT")]
            why = f"its ranks' gradients are not of the same weights; expected: null, or {', '.join(able)}"
            raise self._conflict(why, "noise_scale_every_steps", "exchange")

    def _check_samples(self) -> None:
        """Check what is known of a dataset's size before it is read: TRAIN_SAMPLES and TEST_SAMPLES in its file."""
        there = self.epoch_samples
        if self.dataset is None:
            if self.budget.epochs is not None and there is None:
                why = "how many samples an epoch has is not known; expected: `train_samples` of the program"
                raise self._conflict(why, "budget", "program")
            return
        name, options = self.dataset.name, self.dataset.options
        known = catalog.constants("dataset", name)
        for option in ("test_samples", "train_samples"):
            available, wanted = known.get(option.upper()), options.get(option)
            if isinstance(available, int) and wanted and wanted > available:
                raise ConflictError(f"dataset {name!r}: {option}={wanted}, expected: 1 to {available}", "dataset")
        if self.sampling == "partitioned" and there is not None and there < self.world_size:
            why = f"each rank needs a sample, dataset {name!r} has {there}"
            raise self._conflict(why, "sampling", "world_size", "dataset")
        if self.budget.epochs is not None and there is None:
            why = (
                f"how many samples an epoch of {name!r} has is not known before it is read; expected: samples_seen or "
                f"steps, or TRAIN_SAMPLES in data/{name}.py: the number, or the name of the option that gives it"
            )
            raise self._conflict(why, "budget", "dataset")

    @property
    def global_batch_size(self) -> int:
        """Samples per step, over all ranks."""
        return self.world_size * self.batch_size

    @property
    def epoch_samples(self) -> int | None:
        """Samples that there are to train on, by the dataset's file and options; None: it is not known before."""
        if self.dataset is None:
            return self.program.train_samples if self.program else None
        known, options = catalog.constants("dataset", self.dataset.name), catalog.options("dataset", self.dataset.name)
        said = known.get("TRAIN_SAMPLES")
        option = said if isinstance(said, str) else "train_samples"
        default = options[option].default if option in options else None
        found = self.dataset.options.get(option) or default or said
        return found if isinstance(found, int) else None

    @property
    def samples_budgeted(self) -> float | None:
        """Samples that the budget says, before epochs are rounded to steps; None where it is given in seconds."""
        return self.samples_asked if self.budget.epochs is None else self.budget.epochs * (self.epoch_samples or 0)

    @cached_property
    def steps_asked(self) -> int | None:
        """Steps that the budget asks for; None where it is given in seconds."""
        if self.budget.epochs is not None:
            return max(1, round((self.samples_budgeted or 0) / self.global_batch_size))
        if self.budget.samples_seen is not None:
            return self.budget.samples_seen // self.global_batch_size
        return self.budget.steps

    @property
    def samples_asked(self) -> int | None:
        """Samples that the budget asks for; None where it is given in seconds."""
        return None if self.steps_asked is None else self.steps_asked * self.global_batch_size

    def why_not_traced(self, first: int, last: int) -> str | None:
        """Return why the run cannot trace the steps `first` to `last`; None if it can.

        A run for a given time may end before it reaches them.
        """
        if self.steps_asked is not None and last > self.steps_asked:
            return f"given steps {first} to {last}, the run has {self.steps_asked}"
        if self.program:
            return "a program of one's own takes its steps itself, none can be taken twice"
        if not catalog.constants("exchange", self.exchange.name)["SYNCHRONOUS"]:
            return f"with exchange {self.exchange.name!r} each rank takes its steps by itself, none can be taken twice"
        return None

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as plain JSON values."""
        without = {"model", "dataset", "exchange"} if self.program else None
        return self.model_dump(mode="json", exclude_defaults=True, exclude=without)

    @cached_property
    def values(self) -> dict[str, Any]:
        """What the command of a program may have in braces, but for its parameters: numbers and words of this spec."""
        plain = {name: getattr(self, name) for name in SPEC_FIELDS if name not in (*COMPONENTS, "budget")}
        asked = {"samples_seen": self.samples_asked, "steps": self.steps_asked}
        return plain | {"global_batch_size": self.global_batch_size} | dict(self.budget) | asked

    @cached_property
    def hash(self) -> str:
        """Ten hexadecimal digits over the canonical fields: the same for any order and spelling."""
        return hashlib.sha256(canonical_json(self.canonical).encode()).hexdigest()[:10]

    @property
    def readable(self) -> str:
        """A short, file-safe hint for people; what identifies is the hash."""
        name = Path(self.program.called).stem if self.program else self.exchange.name
        text = f"{name}-w{self.world_size}-b{self.batch_size}-lr{self.learning_rate:g}-s{self.seed}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:48].strip("-")

    def repeat(self, number: int) -> "RunSpec":
        """Return this spec with a seed so much larger."""
        return RunSpec.model_validate(self.canonical | {"seed": self.seed + number})

    def columns(self) -> dict[str, Any]:
        """Return the spec as flat columns: a choice becomes `model` and `model_options` (canonical JSON).

        Of a program they are what it is called, and its parameters; what it is not told is null.
        """
        told = {*SPEC_FIELDS} if self.program is None else {*BY_LAUNCHER, *COMPONENTS, *self.program.fields}
        return _flat({name: getattr(self, name) if name in told else None for name in SPEC_FIELDS})


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in fields.items():
        if name in COMPONENTS:
            row[name] = None if value is None else value.called if isinstance(value, Program) else value.name
            row[f"{name}_options"] = None if value is None else value.options_json
        else:
            row[name] = str(value) if isinstance(value, Budget) else value
    return row


SPEC_FIELDS = tuple(RunSpec.model_fields)
COMPONENTS = ("program", "model", "dataset", "exchange")  # what is chosen, with options
# as `RunSpec.columns` has them: names, and the values of fields that a record was written without
SPEC_COLUMNS = tuple(
    column for name in SPEC_FIELDS for column in ((name, f"{name}_options") if name in COMPONENTS else (name,))
)
COLUMN_DEFAULTS = _flat(
    {name: field.default for name, field in RunSpec.model_fields.items() if not field.is_required()}
)


def _fits(wanted: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    return len(wanted) == len(shape) and all(None in (w, s) or w == s for w, s in zip(wanted, shape, strict=True))


def load(given: Mapping[str, Any]) -> RunSpec:
    """Return the spec of a plain mapping, as `spec.canonical` gives it."""
    return RunSpec.model_validate(dict(given))
