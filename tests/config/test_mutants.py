"""Whatever an edit does to a file that users write: it is good, or an error that says where, in at most 2 kB."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_hpc.config import grid, machine, settings
from ddp_hpc.config.errors import StudyError

PROJECT = Path(__file__).parents[2]
FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "study": ("config/studies/neuron.yaml", grid.expand),
    "small study": ("config/studies/quickstart.yaml", grid.expand),
    "claims": ("config/studies/schemes_small.yaml", grid.expand),
    "machine": ("config/machines/example.yaml", machine.read),
    "profile": ("profiles/allocation/profile.yaml", settings.read_profile),
    "config": ("config/config.yaml", settings.read_config),
}
MUTANTS = 25  # of each file
# what stands where another value should
ODD = (
    *("", "null", "true", "no", "-1", "0", "010", "1e400", ".nan", "1:30", "9" * 40, "2024-13-45", "~", "="),
    *("[]", "{}", "[1, [2, [3]]]", "{a: {b: c}}", "{name: x}", "!!set {a}", "!!int b", "*here", "&here x", "<<"),
    *("'", '"', "%", "@", "`", "\t", "\0", "é" * 200, "x" * 3000, "[" * 60, "{1: 2}", "? a", "- a", "a: b", "|"),
)


def mutant(text: str, chance: random.Random) -> str:
    """Return a text in which something was edited in one to three places."""
    lines = text.splitlines()
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(lines))
        line, odd = lines[place], chance.choice(ODD)
        key, _, value = line.partition(":")
        cut = chance.randrange(len(line) + 1)
        lines[place] = chance.choice(
            [
                f"{key}: {odd}",
                f"{odd}:{value}",
                f"{key[:-1]}:{value}",
                f"  {line}",
                line.lstrip(),
                line[:cut] + odd + line[cut:],
                line[:cut],
                f"{line}\n{line}",
                chance.choice(lines),
                "",
            ]
        )
    return "\n".join(lines)


@pytest.mark.parametrize("kind", FILES)
def test_an_edited_file_is_good_or_its_error_is_short_and_names_the_file(tmp_path, kind):
    name, read = FILES[kind]
    text, file = (PROJECT / name).read_text(), tmp_path / Path(name).name
    for seed in range(MUTANTS):
        edited = mutant(text, random.Random(f"{kind} {seed}"))
        file.write_text(edited)
        try:
            read(file)
        except StudyError as error:
            said = str(error)
            assert len(said.encode()) <= 2048, edited
            assert str(file) in said.splitlines()[0], f"{said}\n{edited}"
        except Exception as error:
            pytest.fail(f"{error!r} of:\n{edited}")
