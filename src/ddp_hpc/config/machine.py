"""The machine file, config/machines/NAME.yaml: partitions of a cluster, how to start ranks, what to retry."""

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator

from ddp_hpc.config.catalog import did_you_mean
from ddp_hpc.config.errors import StudyError
from ddp_hpc.config.types import FEATURES, GPU_TYPE, STRICT, Float, Int, Name, Positive
from ddp_hpc.config.validation import validated
from ddp_hpc.config.yaml_file import read_mapping

# what a request sets by itself; `extra` must not set it again. The plugin refuses most of these, too
_OURS = {
    *("-A", "--account", "--comment", "-C", "--constraint", "-c", "--cpus-per-task", "--cpus-per-gpu", "-m"),
    *("--distribution", "-e", "--error", "--exclusive", "--export", "-G", "--gpus", "--gpus-per-node"),
    *("--gpus-per-task", "--gres", "-J", "--job-name", "--mem", "--mem-per-cpu", "--mem-per-gpu", "-N", "--nodes"),
    *("-n", "--ntasks", "--ntasks-per-gpu", "--ntasks-per-node", "-o", "--output", "--parsable", "-p", "--partition"),
    *("--qos", "--signal", "-t", "--time"),
}
# with these a job is another than the driver takes it for: none, several, elsewhere, or one that starts twice
_NEVER = {
    *("-a", "--array", "-D", "--chdir", "-M", "--clusters", "--ntasks-per-core", "-O", "--overcommit", "--requeue"),
    *("--test-only", "-W", "--wait", "--wrap"),
}

LEAST_MB = 1000  # JOB_MB and RANK_MB of `resources`: less was meant as GB
# what says how many ranks, nodes and cores there are, in a launcher's option and the word after it
_COUNTS = re.compile(r"(-n|-np|-N|-c)[ =]?\d|--(ntasks|np|nodes|cpus-per-task|ntasks-per-node|distribution)[ =]")


class MachineError(StudyError):
    """What is wrong with a machine file: file, line or key, what was given, what is allowed."""


def _one_command(launcher: str) -> str:
    words = _words(launcher)
    if not words or any(map(_for_a_shell, filter(None, words))):
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


Launcher = Annotated[str, AfterValidator(_one_command)]


class Partition(BaseModel):
    """A partition of the cluster, whose nodes are alike."""

    model_config = STRICT
    nodes: Positive = Field(description="maximum nodes of one job")
    cores_per_node: Positive = Field(description="cores per node, as Slurm counts CPUs")
    gpus_per_node: Int = Field(0, ge=0, description="GPUs per node")
    gpu_type: Annotated[str, GPU_TYPE] | None = Field(
        None,
        description="type of GPUs, if Slurm requires it, e.g. `a100`; for one with other characters use `constraint`",
    )
    memory_mb_per_node: Int = Field(ge=LEAST_MB, description="memory per node that jobs may use, in MB as Slurm counts")
    max_minutes: Positive | None = Field(None, description="maximum time of a job, in minutes; null: no limit")

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
    timeout: Int = Field(1, ge=0, description="it reached its time limit; retried with twice the time")
    oom_host: Int = Field(1, ge=0, description="it ran out of host memory; retried with twice the memory")
    preempted: Int = Field(3, ge=0, description="Slurm preempted its job")
    node_fail: Int = Field(2, ge=0, description="a node failed")
    launch_failed: Int = Field(1, ge=0, description="the ranks did not start")


class KnownLink(BaseModel):
    """What lies between two ranks."""

    model_config = STRICT
    latency_us: Float = Field(ge=0, description="microseconds of a message, without its bytes")
    gb_per_s: Float = Field(gt=0, description="GB/s per direction")


class Links(BaseModel):
    """Links that predictions take instead of those that they fit."""

    model_config = STRICT
    within: KnownLink | None = Field(None, description="between ranks of a node; null: fitted to the runs")
    between: KnownLink | None = Field(None, description="between nodes; null: fitted to the runs")


class Machine(BaseModel):
    """One machine file."""

    model_config = STRICT
    partitions: dict[Name, Partition] = Field(min_length=1, description="the partitions, by their names in Slurm")
    default_partition: str | None = Field(None, description="partition of runs whose spec names none; null: the first")
    account: Name | None = Field(None, description="account to charge; null: Slurm's default")
    qos: Name | None = Field(None, description="quality of service")
    constraint: Annotated[str, FEATURES] | None = Field(
        None, description="required features of nodes, e.g. `a100&ib`, without blanks"
    )
    extra: str = Field("", description="further arguments of sbatch, for options without a key here")
    launcher: Launcher = Field(
        "srun",
        description="command that starts the ranks within a job, e.g. `srun --mpi=pmix`; the number of ranks is added",
    )
    memory: Literal["share", "exclusive"] = Field(
        "share", description="memory per node: share, in proportion to the GPUs or cores in use; exclusive, all of it"
    )
    runtime_min: Positive = Field(
        60, description="minutes to request, unless similar runs or the study give a time; at most `max_minutes`"
    )
    status_command: Literal["squeue", "sacct"] = Field(
        "squeue", description="command that polls jobs; sacct requires accounting"
    )
    retries: Retries = Field(default_factory=Retries, description="how often a failed run is retried, by status")
    retry_after_s: Int = Field(
        60,
        ge=0,
        description="seconds before a retry after a failed node or launch: Slurm takes a while to notice a dead node, "
        "and jobs that start on it meanwhile fail at once",
    )
    checkpoint_every_s: Int = Field(
        600, ge=0, description="seconds between checkpoints; 0: only when a run is asked to end"
    )
    links: Links = Field(default_factory=Links, description="links that `ddp-hpc predict` takes instead of fitted ones")
    price_per_node_hour: Annotated[Float, Field(gt=0)] | None = Field(
        None,
        description="price of a node for an hour: kept with each run, for the table `cost`; `ddp-hpc predict "
        "--profile` takes this one",
    )
    currency: Name | None = Field(None, description="of that price, as people read it, e.g. `EUR`")

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, extra: str) -> str:
        words = _words(extra)
        if words and not words[0].startswith("-"):
            raise ValueError(f"given {extra!r}, expected: options of sbatch, which begin with `-` or `--`")
        for option in [word.partition("=")[0] if word.startswith("--") else word[:2] for word in words]:
            if option in _OURS:
                why = f"{option} is set by each run's request; expected: what has no key here"
                raise ValueError(f"given {extra!r}, but {why}")
            if option in _NEVER:
                raise ValueError(f"given {extra!r}, but with {option} the driver would lose its job; leave it out")
        return extra

    @field_validator("default_partition")
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and "partitions" in info.data:
            _check_known(name, info.data["partitions"])
        return name

    def partition(self, name: str | None) -> tuple[str, Partition]:
        """Return a partition and its name; of None, the default. Raise MachineError if there is none of that name."""
        name = name or self.default_partition or next(iter(self.partitions))
        _check_known(name, self.partitions)
        return name, self.partitions[name]


def _for_a_shell(word: str) -> bool:
    """Return whether a word means something to a shell only; one with blanks was quoted, it is for another program."""
    return {*word} <= {*"|&;<>"} or (" " not in word and (word.endswith(";") or "$" in word or "`" in word))


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
    """Return the machine in `file`."""
    return validated(Machine, read_mapping(file, MachineError), MachineError)
