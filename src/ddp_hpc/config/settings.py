"""What is set beside studies and machines: config/config.yaml, `config:` of a profile, `--config` of snakemake."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from ddp_hpc.config.errors import StudyError, unknown
from ddp_hpc.config.machine import Launcher
from ddp_hpc.config.study import known
from ddp_hpc.config.types import STRICT, Int, Name, Positive
from ddp_hpc.config.validation import Model, validated
from ddp_hpc.config.yaml_file import Document, read_mapping

# keys of profiles whose values are mappings; Snakemake drops any other mapping without a word
_MAPPINGS = (
    *("config", "default-resources", "resources", "set-resources", "set-threads", "set-resource-scopes"),
    *("batch", "consider-ancient", "group-components", "groups", "set-scatter"),
)


class ConfigFile(BaseModel):
    """config/config.yaml."""

    model_config = STRICT
    studies: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)] = Field(
        default_factory=list, description="the studies that plain `snakemake` runs; `ddp-hpc run NAME` ignores this key"
    )
    data: dict[Annotated[str, known("dataset")], str] = Field(
        default_factory=dict,
        description="where to fetch a dataset, if not from its publisher: the archive, or the folder of its files, "
        "e.g. `{cifar10: /data/cifar-10-binary.tar.gz, fashion_mnist: /data/fashion}`",
    )


class ProfileConfig(BaseModel):
    """The `config:` of a profile."""

    model_config = STRICT
    machine: Name = Field("", description="the machine of config/machines/NAME.yaml; without it runs are started here")
    launcher: Launcher = Field(
        "mpiexec",
        description="starts the ranks: `mpiexec`, `srun --mpi=pmix`, ...; `-n RANKS` is added. A run of one rank "
        "starts without it. With a machine: instead of the machine's",
    )
    allocation: bool = Field(False, description="whether the driver is within a Slurm job, which all runs share")
    runtime_min: Positive = Field(
        60, description="without a machine: minutes after which a run ends as `timeout`, unless its study sets a limit"
    )
    checkpoint_every_s: Int = Field(600, ge=0, description="without a machine: seconds between checkpoints")

    @field_validator("runtime_min", "checkpoint_every_s")
    @classmethod
    def _not_the_machines(cls, value: int, info: ValidationInfo) -> int:
        if machine := info.data.get("machine"):
            raise ValueError(f"given {value}, but config/machines/{machine}.yaml sets it; leave it out here")
        return value


class Settings(ConfigFile, ProfileConfig):
    """The `config` that Snakemake gives to the Snakefile."""


class Profile(BaseModel):
    """What we read of a profile; all other keys are Snakemake's."""

    model_config = STRICT | ConfigDict(extra="ignore")
    executor: str = ""
    config: ProfileConfig = Field(default_factory=ProfileConfig)


def read_config(file: Path) -> ConfigFile:
    """Return what config/config.yaml says; without that file the defaults."""
    return validated(ConfigFile, read_mapping(file, StudyError, ()), StudyError) if file.exists() else ConfigFile()


def read_profile(file: Path) -> Profile:
    """Return what we read of the profile in `file`."""
    document = read_mapping(file, StudyError, ("config",))
    wrong = [
        f"{document.where((key,))}: {unknown('key', key, _MAPPINGS)}, for a mapping"
        for key, value in document.values.items()
        if isinstance(value, Mapping) and key not in _MAPPINGS
    ]
    try:
        profile = validated(Profile, document, StudyError)
    except StudyError as error:
        raise StudyError("\n".join([*wrong, str(error)])) from None
    if wrong:
        raise StudyError("\n".join(wrong))
    return profile


def checked(model: type[Model], values: Mapping[str, Any], option: str) -> Model:
    """Return the model of what an option of the command line gives."""
    return validated(model, Document(Path(option), dict(values), {}), StudyError, strict=False)
