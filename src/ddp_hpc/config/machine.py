"""The machine file, config/machines/NAME.yaml: what a cluster has, how ranks are started there, what is tried again."""

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from ddp_hpc.config.catalog import did_you_mean
from ddp_hpc.config.errors import StudyError, allowed, given
from ddp_hpc.config.types import FEATURES, GPU_TYPE, STRICT, Int, Name, Positive
from ddp_hpc.config.yaml_file import Document, read_mapping

# what a request sets by itself; `extra` must not set it again. The plugin refuses most of these, too
_OURS = (
    *("account", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "distribution", "error", "exclusive"),
    *("export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "job-name", "mem", "mem-per-cpu", "mem-per-gpu"),
    *("nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "output", "parsable", "partition", "qos", "signal"),
    "time",
)
# with these a job is another than the driver takes it for: none, several, elsewhere, or one that starts twice
_NEVER = (
    *("array", "chdir", "clusters", "ntasks-per-core", "overcommit", "requeue", "test-only", "wait"),
    "wrap",
)
_NEVER_LETTERS = "aMOW"
_OUR_LETTERS = "ACDGJNcemnopt"


LEAST_MB = 1000  # JOB_MB and RANK_MB of `resources`: less was meant as GB
_SHELL = re.compile(r"[|&;<>]+|\S+;|\S*[$`]\S*")  # words that mean something to a shell; quoted ones have blanks
_COUNTS = re.compile(r"(-n|-np|-N|-c)[ =]?\d|--(ntasks|np|nodes|cpus-per-task|ntasks-per-node|distribution)[ =]")


class MachineError(StudyError):
    """What is wrong with a machine file: file, line or key, what was given, what is allowed."""


class Partition(BaseModel):
    """A partition of the cluster, whose nodes are alike."""

    model_config = STRICT
    nodes: Positive = Field(description="nodes that one job may get")
    cores_per_node: Positive = Field(description="cores of each node, as Slurm counts its CPUs")
    gpus_per_node: Int = Field(0, ge=0, description="GPUs of each node")
    gpu_type: str | None = Field(
        None,
        pattern=GPU_TYPE,
        description="which GPUs, where Slurm wants to be told, e.g. `a100`; of a type with other letters: `constraint`",
    )
    memory_mb_per_node: Int = Field(
        ge=LEAST_MB, description="memory of each node that jobs may use, in MB as Slurm counts"
    )
    max_minutes: Positive | None = Field(None, description="the longest job, in minutes; null: no limit")

    @field_validator("gpus_per_node")
    @classmethod
    def _a_core_each(cls, gpus: int, info: ValidationInfo) -> int:
        cores = info.data.get("cores_per_node", gpus)
        if gpus > cores:
            raise ValueError(f"given {gpus}, but each GPU's rank needs a core; expected: up to cores_per_node, {cores}")
        return gpus


class Retries(BaseModel):
    """How often a run is tried again within one `ddp-hpc run`, by how it failed; what is not here is never."""

    model_config = STRICT
    timeout: Int = Field(1, ge=0, description="its time was up; twice the time is asked for then")
    oom_host: Int = Field(1, ge=0, description="its memory was used up; twice the memory is asked for then")
    preempted: Int = Field(3, ge=0, description="a job that matters more took its place")
    node_fail: Int = Field(2, ge=0, description="a node went away")
    launch_failed: Int = Field(1, ge=0, description="the ranks did not come up")


class Machine(BaseModel):
    """One machine file."""

    model_config = STRICT
    partitions: dict[Name, Partition] = Field(min_length=1, description="what there is, by the names that Slurm uses")
    default_partition: str | None = Field(None, description="for runs whose spec names none; null: the first")
    account: Name | None = Field(None, description="who pays; null: Slurm's default")
    qos: Name | None = Field(None, description="quality of service")
    constraint: str | None = Field(
        None, pattern=FEATURES, description="features that nodes must have, e.g. `a100&ib`: without blanks"
    )
    extra: str = Field("", description="more arguments of sbatch, for what has no key here")
    launcher: str = Field(
        "srun", description="what starts the ranks within a job, e.g. `srun --mpi=pmix`; numbers of ranks are added"
    )
    memory: Literal["share", "exclusive"] = Field(
        "share", description="share: of each node as much as the ranks on it use of its GPUs, or cores; exclusive: all"
    )
    runtime_min: Positive = Field(
        60, description="minutes asked for where neither runs like it nor the study say more; at most `max_minutes`"
    )
    status_command: Literal["squeue", "sacct"] = Field(
        "squeue", description="how jobs are watched; sacct only where accounting is on"
    )
    retries: Retries = Field(default_factory=Retries, description="how often a failed run is tried again")
    retry_after_s: Int = Field(
        60,
        ge=0,
        description="seconds until a run is tried again that failed with its node or its launch: Slurm takes a while "
        "to notice a dead node, and a job that starts on it meanwhile fails at once",
    )
    checkpoint_every_s: Int = Field(
        600, ge=0, description="seconds between checkpoints; 0: only when a run is asked to end"
    )

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, extra: str) -> str:
        words = _words(extra)
        if words and not words[0].startswith("-"):
            raise ValueError(f"given {extra!r}, expected: options of sbatch, which begin with `-` or `--`")
        for word in words:
            long = word[2:].partition("=")[0] if word.startswith("--") else ""
            short = word[1] if re.match("-[A-Za-z]", word) else "-"
            if long in _OURS or short in _OUR_LETTERS:
                name = f"--{long}" if long else f"-{short}"
                raise ValueError(
                    f"given {extra!r}, but {name} is set by each run's request; expected: what has no key here"
                )
            if long in _NEVER or short in _NEVER_LETTERS:
                name = f"--{long}" if long else f"-{short}"
                raise ValueError(f"given {extra!r}, but with {name} the driver would lose its job; leave it out")
        return extra

    @field_validator("launcher")
    @classmethod
    def _one_command(cls, launcher: str) -> str:
        words = _words(launcher)
        if not words or any(_SHELL.fullmatch(word) for word in words):
            raise ValueError(
                f"given {launcher!r}, expected: one command, e.g. `srun --mpi=pmix`, without what only a shell "
                "understands; load modules before you start the driver, jobs inherit its environment"
            )
        for word, value in pairwise([*words, ""]):
            if _COUNTS.match(f"{word} {value}"):
                raise ValueError(
                    f"given {launcher!r}, but {word} is added for each run; expected: the launcher without numbers of "
                    "ranks, nodes and cores"
                )
        return launcher

    @field_validator("default_partition")
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and "partitions" in info.data:
            _check_known(name, info.data["partitions"])
        return name

    def partition(self, name: str | None) -> tuple[str, Partition]:
        """Return a partition and its name; of None, the default.

        Raises:
            MachineError: there is none of that name.
        """
        name = name or self.default_partition or next(iter(self.partitions))
        _check_known(name, self.partitions)
        return name, self.partitions[name]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"given {text!r}: {str(error).lower()}; each quote needs its partner") from None


def _check_known(name: str, partitions: Mapping[str, Partition]) -> None:
    if name not in partitions:
        known = list(partitions)
        raise MachineError(f"no partition {name!r}{did_you_mean(name, known)}; expected: {', '.join(known)}")


def read(file: Path) -> Machine:
    """Return the machine in `file`.

    Raises:
        MachineError: naming the file, the line or key, what was given and what is allowed.
    """
    document = read_mapping(file, MachineError)
    try:
        return Machine.model_validate(document.values)
    except ValidationError as error:
        raise MachineError("\n".join(_explain(problem, document) for problem in error.errors())) from None


_PARTS: dict[str, type[BaseModel]] = {"partitions": Partition, "retries": Retries}


def _explain(problem: Any, document: Document) -> str:
    """Return one pydantic problem as `file:line: key: given ..., allowed ...`."""
    key = tuple(part for part in problem["loc"] if part != "[key]")
    name, where = ".".join(map(str, key)), document.where(key)
    if problem["type"] == "extra_forbidden":
        model = _PARTS[key[0]] if len(key) > 1 else Machine
        known = list(model.model_fields)
        text = f"unknown key {key[-1]!r}{did_you_mean(str(key[-1]), known)}; expected: {', '.join(known)}"
    elif problem["type"] == "missing":
        text = f"{name} is missing"
    elif problem["type"] == "value_error":  # one of our own messages
        text = f"{name}: {problem['ctx']['error']}" if name else str(problem["ctx"]["error"])
    elif problem["type"] == "too_short":
        text = f"{name}: given none, expected: one partition or more"
    else:
        text = f"{name}: given {given(problem['input'])}, expected: {allowed(problem)}{_meaning(key)}"
    return f"{where}: {text}"


def _meaning(key: tuple[Any, ...]) -> str:
    """Return what a key with a number means, unit included: `6G` and `1:30:00` are then put right at once."""
    model = _PARTS.get(str(key[0]), Machine) if key else Machine
    field = model.model_fields.get(str(key[-1])) if key else None
    counted = field is not None and field.annotation in (int, Int, Int | None, Positive, Positive | None)
    return f" ({re.split('[;:] ', field.description or '')[0]})" if field and counted else ""
