"""A wrong machine file is told file, line or key, what was given and what is allowed; the example is a good one."""

import json
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from ddp_hpc.config import machine, reference
from ddp_hpc.config.machine import MachineError
from ddp_hpc.runs.statuses import STATUSES

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "config" / "machines" / "example.yaml"
GOOD = """\
partitions:
  gpu:
    nodes: 4
    cores_per_node: 64
    gpus_per_node: 4
    memory_mb_per_node: 400000
  cpu:
    nodes: 8
    cores_per_node: 48
    memory_mb_per_node: 96_000
default_partition: cpu
extra: --mail-type=END
retries:
  timeout: 2
"""


def read(folder: Path, text: str) -> machine.Machine:
    file = folder / "here.yaml"
    file.write_text(text)
    return machine.read(file)


def test_the_good_file_is_good(tmp_path):
    good = read(tmp_path, GOOD)
    assert good.partition(None) == ("cpu", good.partitions["cpu"])
    assert good.partition("gpu")[1].gpus_per_node == 4
    assert good.partitions["cpu"].memory_mb_per_node == 96_000
    assert (good.retries.timeout, good.retries.preempted) == (2, 3)
    assert read(tmp_path, GOOD.replace("default_partition: cpu\n", "")).partition(None)[0] == "gpu", "the first"


# one edit of the good file: what is replaced, by what, and what the message says, line first
WRONG = {
    "unknown key": ("extra:", "colour:", [":12:", "unknown key 'colour'", "expected: partitions, default_partition"]),
    "typo": ("default_partition:", "default_partion:", [":11:", "(did you mean 'default_partition'?)"]),
    "typo in a partition": (
        "gpus_per_node",
        "gpus",
        [":5:", "unknown key 'gpus'", "expected: nodes, cores_per_node, gpus_per_node"],
    ),
    "typo in retries": ("  timeout: 2", "  crashed: 2", [":14:", "unknown key 'crashed'", "timeout, oom_host"]),
    "missing": ("    cores_per_node: 64\n", "", [":2:", "partitions.gpu.cores_per_node is missing"]),
    "type": ("nodes: 4", "nodes: many", [":3:", "partitions.gpu.nodes: given 'many' (string)", "an integer"]),
    "zero": ("nodes: 4", "nodes: 0", [":3:", "partitions.gpu.nodes: given 0", "greater than 0"]),
    "half a core": ("_node: 48", "_node: 4.5", [":9:", "cores_per_node: given 4.5", "integer"]),
    "no such default": ("partition: cpu", "partition: cup", [":11:", "no partition 'cup' (did you mean 'cpu'?)"]),
    "a name with a blank": (
        "  gpu:",
        "  big gpu:",
        [":2:", "partitions.big gpu: given 'big gpu'", "letters, digits, _, . and -"],
    ),
    "a type of GPU": (
        "gpus_per_node: 4",
        "gpu_type: nvidia-a100",
        [":5:", "gpu_type: given 'nvidia-a100' (string), expected: letters, digits, _ and ."],
    ),
    "no partitions": (
        GOOD[: GOOD.index("default")],
        "partitions: {}\n",
        [":1:", "given an empty mapping", "at least 1"],
    ),
    "ours in extra": ("--mail-type=END", "--mem=5G", [":12:", "--mem is set by each run's request"]),
    "our warning": ("--mail-type=END", "--signal=B:TERM@30", [":12:", "--signal is set by each run's request"]),
    "ours, in short": ("--mail-type=END", "--mail-type=END -t 5", [":12:", "-t is set by each run's request"]),
    "never in extra": ("--mail-type=END", "--array=1-3", [":12:", "with --array the driver would lose its job"]),
    "no option": ("--mail-type=END", "mail-type=END", [":12:", "options of sbatch, which begin with `-`"]),
    "a quote in extra": ("--mail-type=END", '--nodelist="a', [":12:", "each quote needs its partner"]),
    "no launcher": ("extra:", "launcher: ''\nextra:", [":12:", "launcher: given '', expected: one command"]),
    "a script": ("extra:", "launcher: module load mpi && srun\nextra:", [":12:", "load modules before"]),
    "a pipe": ("extra:", "launcher: srun |& tee log\nextra:", [":12:", "only a shell understands"]),
    "a variable": ("extra:", "launcher: $MPI/bin/mpiexec\nextra:", [":12:", "only a shell understands"]),
    "ranks": ("extra:", "launcher: mpirun -np 4\nextra:", [":12:", "-np is added for each run"]),
    "nodes": ("extra:", "launcher: srun --nodes=2\nextra:", [":12:", "--nodes=2 is added for each run"]),
    "constraint": ("extra:", "constraint: a100 ib\nextra:", [":12:", "features with & and |, without blanks"]),
    "an account of digits": ("extra:", "account: 12345\nextra:", [":12:", "a string; write it in quotes: '12345'"]),
    "GB": ("memory_mb_per_node: 400000", "memory_mb_per_node: 400G", [":6:", "an integer (memory per node", "in MB"]),
    "GB as MB": ("memory_mb_per_node: 400000", "memory_mb_per_node: 400", [":6:", "equal to 1000", "in MB"]),
    "time of day": ("retries:", "runtime_min: 1:30:00\nretries:", [":13:", "an integer (minutes to request"]),
    "GPUs without cores": ("gpus_per_node: 4", "gpus_per_node: 65", [":5:", "up to cores_per_node, 64"]),
    "choice": ("extra:", "memory: all\nextra:", [":12:", "memory: given 'all'", "'share' or 'exclusive'"]),
    "double key": ("extra:", "extra: ''\nextra:", [":13:", "each key may stand once"]),
    "a list": (GOOD, "[1]", ["given a list", "expected: a mapping"]),
}


@pytest.mark.parametrize(("old", "new", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_with_its_line(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(MachineError) as error:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert str(tmp_path / "here.yaml") in str(error.value)
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "launcher",
    ["mpiexec -bind-to core:2", "env -u X srun --mpi=pmix -v", "'sh -c ''module load mpi; exec mpiexec \"$@\"'' sh'"],
)
def test_launchers_that_sites_have_are_taken_word_by_word(tmp_path, launcher):
    assert read(tmp_path, f"{GOOD}launcher: {launcher}\n").launcher == YAML().load(launcher)


def test_several_mistakes_are_told_at_once(tmp_path):
    with pytest.raises(MachineError) as error:
        read(tmp_path, GOOD.replace("nodes: 4", "nodes: 0").replace("timeout: 2", "timeout: -1"))
    assert len(str(error.value).splitlines()) == 2


def test_the_example_is_a_good_file_and_fits_the_schema():
    assert machine.read(EXAMPLE).partition(None)[1].gpus_per_node == 4
    jsonschema.validate(json.loads(json.dumps(YAML(typ="safe").load(EXAMPLE))), reference.machine_schema())


def test_the_schema_refuses_what_the_program_refuses():
    written = {"partitions": {"gpu": {"nodes": 0, "cores_per_node": 1, "memory_mb_per_node": 1}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, reference.machine_schema())


def test_every_status_that_may_be_tried_again_has_its_number():
    assert set(machine.Retries.model_fields) == {name for name, (_, _, retried) in STATUSES.items() if retried}
