"""Whatever an edit does to a file that users write: it is good, or an error that says where, in at most 2 kB."""

import copy
import datetime
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddp_hpc.config import grid, machine, publication, settings
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


# every key that stands beside others; each takes the place of a value below
PUBLICATION = """
title: Rings
creators: [{name: "Doe, Jo", orcid: 0000-0002-1825-0097, affiliation: Here, ror: "https://ror.org/05a28rw58"}]
licence: MIT
publisher: Zenodo
keywords: [ring]
funding: [{funder: Them, award: "1"}]
related: ["10.5281/zenodo.1234"]
notes: none
"""
STUDY = """
name: study
description: which?
citation: someone
base: {dataset: {name: digits}, model: {name: mlp, widths: [64, 32]}, threads_per_rank: 1, precision: full}
grid:
  - {exchange: [none], world_size: 1, batch_size: [16, 32], learning_rate: [0.1, 0.5], exclude: [{batch_size: 32}]}
  - {exchange: {name: ring}, world_size: [1, 2], zip: [{batch_size: [8, 16], momentum: [0.1, 0.2]}],
     learning_rate: 0.1, when: [{world_size: 2}]}
search: [batch_size, learning_rate]
repeats: {until: 5 %, at_most: 20}
budget: {samples_seen: 25600}
runtime_min: 5
trace: {steps: [10, 12]}
rules: {learning_rate_scaling: linear, base_batch_size: 16, learning_rate_warm_up_steps: 3, winner_by: {time_to: 0.9},
  loss_threshold: 0.5, loss_window: 2, area_noise: 0.01, reference_exchange: none, link_gb_per_s: 10,
  worthwhile_efficiency: 0.5}
tables: [runs]
figures: [heat_map]
"""
MACHINE = """
partitions:
  gpu: {nodes: 1, cores_per_node: 8, gpus_per_node: 4, gpu_type: a100, memory_mb_per_node: 5000, max_minutes: 9}
default_partition: gpu
account: mine
qos: high
constraint: ib
extra: --nice
launcher: srun
memory: share
runtime_min: 5
status_command: squeue
retries: {timeout: 1, oom_host: 1, preempted: 1, node_fail: 1, launch_failed: 1}
retry_after_s: 1
checkpoint_every_s: 1
links: {within: {latency_us: 1, gb_per_s: 3}, between: {latency_us: 2, gb_per_s: 1}}
price_per_node_hour: 1
"""
PROFILE = "executor: slurm\nconfig: {machine: one, launcher: srun, allocation: true}\n"
KEYS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "study": (STUDY + "publication:" + PUBLICATION.replace("\n", "\n  "), grid.expand),
    "machine": (MACHINE, machine.read),
    "profile": (PROFILE, settings.read_profile),
    "config": ("studies: [one]\ndata: {cifar10: /there}\n", settings.read_config),
    "publication": (PUBLICATION, publication.read),
}
OTHERS: tuple[Any, ...] = (
    *(7, -1, 0, 10**40, 2**53 + 2, 0.3, -0.5, 1e308, 1e-320, True, None, datetime.date(2024, 1, 1)),
    *("zebra", "", " ", "x" * 3000, "a\nb", "a\x07b", "\u00e9\u2264", "../x", "a'b\"c", "{x}", "-x", "$HOME"),
    *([], {}, [1, 2], ["a", "a"], [[1]], {"a": 1}, [{"a": 1}], [None]),
)


def keys(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value of a file stands."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from keys(value[key], (*at, key))


def with_other(values: dict[str, Any], at: tuple[Any, ...], other: Any) -> str:
    """Return a file in which another value stands at a key."""
    changed = copy.deepcopy(values)
    place: Any = changed
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = other
    written = io.StringIO()
    YAML(typ="rt").dump(changed, written)
    return written.getvalue()


@pytest.mark.parametrize("kind", KEYS)
def test_another_value_of_any_key_is_good_or_its_error_is_short_and_names_the_line(tmp_path, kind):
    text, read = KEYS[kind]
    values, file, chance = YAML(typ="safe").load(text), tmp_path / f"{kind}.yaml", random.Random(kind)
    file.write_text(text)
    read(file)
    for at in list(keys(values)):
        for other in chance.sample(OTHERS, 2):
            file.write_text(with_other(values, at, other))
            try:
                read(file)
            except StudyError as error:
                said = str(error)
                assert len(said.encode()) <= 2048, (at, other)
                line, colon, _ = said.removeprefix(f"{file}:").partition(":")
                assert (line.isdigit() and colon) or " is missing" in said, (at, other, said)
            except Exception as error:
                pytest.fail(f"{error!r} of {other!r} at {at}")
