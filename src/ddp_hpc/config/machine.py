"""The machine file, config/machines/NAME.yaml: what a cluster has, how ranks are started there, what is tried again."""

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from ddp_hpc.config.catalog import did_you_mean
from ddp_hpc.config.errors import StudyError
from ddp_hpc.config.types import FEATURES, GPU_TYPE, STRICT, Int, Name, Positive
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


class Partition(BaseModel):
    """A partition of the cluster, whose nodes are alike."""

    model_config = STRICT
    nodes: Positive = Field(description="nodes that one job may get")
    cores_per_node: Positive = Field(description="cores of each node, as Slurm counts its CPUs")
    gpus_per_node: Int = Field(0, ge=0, description="GPUs of each node")
    gpu_type: Annotated[str, GPU_TYPE] | None = Field(
        None,
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
    constraint: Annotated[str, FEATURES] | None = Field(
        None, description="features that nodes must have, e.g. `a100&ib`: without blanks"
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
        for option in [word.partition("=")[0] if word.startswith("--") else word[:2] for word in words]:
            if option in _OURS:
                raise ValueError(
                    f"given {extra!r}, but {option} is set by each run's request; expected: what has no key here"
                )
            if option in _NEVER:
                raise ValueError(f"given {extra!r}, but with {option} the driver would lose its job; leave it out")
        return extra

    @field_validator("launcher")
    @classmethod
    def _one_command(cls, launcher: str) -> str:
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
    """Return the machine in `file`.

    Raises:
        MachineError: naming the file, the line or key, what was given and what is expected.
    """
    return validated(Machine, read_mapping(file, MachineError), MachineError)
