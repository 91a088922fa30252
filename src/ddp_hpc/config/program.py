"""A training program of one's own, in place of model, dataset and exchange: the key `program` of a spec."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Formatter
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from ddp_hpc.config import catalog
from ddp_hpc.config.errors import given, unknown
from ddp_hpc.config.types import STRICT, Positive, canonical_json

Text = Annotated[str, Field(min_length=1)]


class Program(BaseModel):
    """A command that trains, and the files that decide what it does."""

    model_config = STRICT
    command: Text = Field(
        description="what each rank runs, in the project's folder and without a shell; fields of the spec and "
        "parameters in braces, e.g. `python train.py --lr {learning_rate}`"
    )
    files: list[Text] = Field(
        min_length=1,
        description="the files that decide the result, or patterns, e.g. `[train.py, nets/*.py]`: a change of one "
        "makes the runs new",
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="values of the program's own for braces of the command; an axis of the grid is `program.NAME`",
    )
    name: Text | None = Field(None, description="how tables call it; null: by its first file")
    train_samples: Positive | None = Field(None, description="samples of an epoch; required by a budget in epochs")

    def __hash__(self) -> int:
        return hash(canonical_json(self.model_dump(mode="json")))

    def __str__(self) -> str:
        parameters = ", ".join(f"{name} {_shown(value)}" for name, value in self.parameters.items())
        return f"{self.called} ({parameters})" if parameters else self.called

    @property
    def called(self) -> str:
        """How records and tables call it."""
        return self.name or self.files[0]

    @field_validator("parameters")
    @classmethod
    def _plain(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        kept = {name: catalog.canonical(value) for name, value in sorted(parameters.items())}
        for name, value in kept.items():
            if not str(name).isidentifier():
                raise ValueError(f"given {given(name)} as a name, expected: letters, digits and _")
            if not isinstance(value, str | int | float):
                raise ValueError(f"{name}: given {given(value)}, expected: a number, a string, true or false")
        return kept

    @field_validator("command")
    @classmethod
    def _words(cls, command: str) -> str:
        try:
            words = shlex.split(command)
            names = [name for word in words for name in _named(word)]
        except ValueError as error:
            raise ValueError(f"given {given(command)}, which has no end: {error}") from None
        if not words:
            raise ValueError(f"given {given(command)}, expected: a program and its arguments")
        if odd := [name for name in names if not name.isidentifier()]:
            raise ValueError(
                f"{{{odd[0]}}}: expected a name alone in braces; write {{{{ and }}}} for braces themselves"
            )
        return command

    @property
    def options_json(self) -> str:
        """The parameters as canonical JSON (`{}` if none)."""
        return canonical_json(self.parameters)

    @property
    def fields(self) -> set[str]:
        """The names in braces in its command."""
        return {name for word in shlex.split(self.command) for name in _named(word)}

    def problem(self, known: Iterable[str]) -> str | None:
        """Return which name in braces is neither a parameter nor among the `known` fields; None: all are."""
        expected = [*self.parameters, *known]
        wrong = sorted(self.fields - set(expected))
        return unknown("field in braces", wrong[0], expected) if wrong else None

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the command, each word with the values of the spec and the parameters in it."""
        shown = {name: _shown(value) for name, value in {**values, **self.parameters}.items()}
        return [word.format_map(shown) for word in shlex.split(self.command)]


def paths(patterns: Iterable[str], root: Path) -> tuple[Path, ...]:
    """Return the files that patterns mean in the project `root`; a ValueError names one that means none."""
    found: list[Path] = []
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise ValueError(f"given {pattern!r}, expected: a path within the project, from {root}")
        matching = sorted(path for path in root.glob(pattern) if path.is_file())
        if not matching:
            near = [path.relative_to(root).as_posix() for path in root.glob(f"{Path(pattern).parent}/*.*")]
            raise ValueError(f"no file {pattern!r} in {root}{catalog.did_you_mean(pattern, near)}")
        found += matching
    return tuple(dict.fromkeys(found))


def _named(word: str) -> list[str]:
    return [name + (f":{form}" if form else "") for _, name, form, _ in Formatter().parse(word) if name is not None]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
