"""How fast each exchange is at each message size, and its latency and bandwidth: `ddp-hpc bench exchange`.

Asynchronous exchanges take no part: their `update()` returns before anything has arrived, so no time of theirs is that
of an exchange. Studies compare them, by samples per second: config/studies/exchange_speed.yaml.
"""

import json
import shlex
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ddp_hpc.bench import figure
from ddp_hpc.bench.fit import fits
from ddp_hpc.bench.launch import cpu_spec, environment_of, run_ranks
from ddp_hpc.bench.sweep_results import FITS, SWEEP, in_words, rows_of
from ddp_hpc.bench.timing import Row, say, write
from ddp_hpc.config import catalog
from ddp_hpc.config.grid_checks import field_type
from ddp_hpc.config.spec import Component, RunSpec
from ddp_hpc.config.validation import reason
from ddp_hpc.execution import cuda_aware_check
from ddp_hpc.system.cgroups import memory_bytes
from ddp_hpc.system.files import read_json, text_of
from ddp_hpc.system.process import usable_cores
from ddp_hpc.system.terminal import counted

SIZES = tuple(4 ** (power + 1) for power in range(14))  # 4 bytes to 256 MiB
LEAST_S = 0.02  # a sample takes about that long
COPIES_HELD = 6  # buffers of the largest size that a rank may hold at once: model, gradients, what an exchange keeps
MEMORY_SHARE = 0.7  # of the free memory that may be used


class Sweep(NamedTuple):
    """What is to be measured."""

    exchanges: Sequence[Component]
    ranks: Sequence[int]  # numbers of ranks
    sizes: Sequence[int]  # in bytes, multiples of 4
    rounds: int  # how often each is measured
    launcher: str  # starts the ranks, without `-n`; one rank needs none
    device: str = "cpu"  # or `cuda`: each rank has a GPU of its own


def runnable(
    exchanges: Sequence[Component], world_size: int, device: str = "cpu"
) -> tuple[list[RunSpec], dict[str, str]]:
    """Return the specs of those exchanges that can be measured here on so many ranks, and why the others cannot."""
    fit, out = [], {}
    for choice in exchanges:
        flags, devices = catalog.constants("exchange", choice.name), catalog.devices(choice.name, choice.options)
        package = str(flags.get("PACKAGE", ""))
        if flags.get("MAX_WORLD_SIZE") == 1:
            out[str(choice)] = "exchanges nothing"
        elif not flags["SYNCHRONOUS"]:
            out[str(choice)] = "asynchronous: no time of its own; compare it in a study"
        elif device not in devices:
            out[str(choice)] = f"works on {' and '.join(devices)} only"
        elif package and find_spec(package) is None:
            out[str(choice)] = f"{package} is not installed"
        else:
            try:
                spec = {"model": "mlp", "dataset": "digits", "exchange": choice, "world_size": world_size}
                # nothing is trained
                fit.append(cpu_spec(**spec, device=device, batch_size=1, learning_rate=1.0))
            except ValidationError as error:
                out[str(choice)] = reason(error.errors()[0])
    return fit, out


def without_refused(
    specs: list[RunSpec], out: dict[str, str], world_size: int, launcher: str
) -> tuple[list[RunSpec], dict[str, str]]:
    """Leave out what gives GPU memory to MPI, if MPI cannot take it here: ranks like those of the sweep try it."""
    direct = [spec for spec in specs if catalog.asked(spec.exchange.name, "CUDA_AWARE", spec.exchange.options)]
    command = [*shlex.split(launcher), "-n", str(world_size)] if world_size > 1 else []
    why = cuda_aware_check.refusal(command, environment_of(world_size)) if direct else None
    if why is None:
        return specs, out
    return [spec for spec in specs if spec not in direct], out | {str(spec.exchange): why for spec in direct}


def that_fit(sizes: Sequence[int], world_size: int, free_bytes: int) -> list[int]:
    """Return the sizes whose buffers fit into so much memory on so many ranks of one node."""
    return [size for size in sizes if COPIES_HELD * size * world_size <= MEMORY_SHARE * free_bytes]


def measure(sweep: Sweep, folder: Path) -> tuple[list[Row], list[Row]]:
    """Measure, and write sweep.parquet, fits.parquet and the figure exchange_sweep into `folder`; return both's rows.

    Raises:
        RuntimeError: a launch failed; says what its ranks said last. What was measured before is written.
        ValueError: nothing can be measured.
    """
    samples: list[dict[str, Any]] = []
    provenance: dict[str, Any] = {}
    try:
        for world_size in sweep.ranks:
            specs, out = runnable(sweep.exchanges, world_size, sweep.device)
            specs, out = without_refused(specs, out, world_size, sweep.launcher)
            ranks = counted(world_size, "rank")
            for name, why in out.items():
                say(f"{ranks}: without {name}: {why}")
            sizes = that_fit(sweep.sizes, world_size, memory_bytes()[1])
            if left := sorted(set(sweep.sizes) - set(sizes)):
                say(f"{ranks}: without {', '.join(map(in_words, left))}: there is not enough memory")
            if not specs or not sizes:
                continue
            if world_size > usable_cores():
                say(f"{ranks} on {usable_cores()} cores: their times mean nothing, and are marked")
            with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as scratch:
                asked = {"sizes": sizes, "rounds": sweep.rounds, "least_s": LEAST_S}
                asked |= {"specs": [spec.canonical for spec in specs]}
                try:
                    run_ranks("sweep", Path(scratch), asked, world_size, sweep.launcher)
                finally:
                    samples += map(json.loads, text_of(Path(scratch) / "samples.jsonl").splitlines())
                    provenance |= {str(world_size): read_json(Path(scratch) / "provenance.json")}
    finally:
        rows = rows_of(samples)
        fitted = fits(rows)
        if rows:
            write("sweep", SWEEP, rows, folder / "sweep.parquet", provenance)
            write("fits", FITS, fitted, folder / "fits.parquet", provenance)
            figure.make(rows, folder, sweep.device)
    if not rows:
        raise ValueError("nothing was measured: no exchange of those asked for can run here, or no size fits")
    return rows, fitted


def sweep_of(
    exchanges: list[str] | None,
    ranks: list[int] | None,
    sizes: list[int] | None,
    rounds: int,
    launcher: str,
    device: str = "cpu",
) -> Sweep:
    """Return the sweep that a command line asks for.

    None: all exchanges, each in all its ways to a GPU's memory, and sizes; 2, 4, 8, ... ranks up to the cores or GPUs.

    Raises:
        ValueError: an exchange that does not exist, numbers that cannot be, or GPUs where there are none.
    """
    most = usable_cores() if device == "cpu" else gpus()
    if bad := [size for size in sizes or () if size < 4 or size % 4]:
        raise ValueError(f"--sizes: given {', '.join(map(str, bad))}, expected: multiples of 4, 4 at least")
    if min([rounds, *(ranks or ())]) < 1:
        raise ValueError("--rounds and --ranks: expected: integers greater than 0")
    named = [component(name) for name in exchanges or _all(device)]
    alone = device == "cuda" and most == 1  # a rank for each GPU; two on a single core
    ranks = ranks or ([1] if alone else [2**power for power in range(1, max(2, most.bit_length()))])
    return Sweep(named, sorted(set(ranks)), sorted(set(sizes or SIZES)), rounds, launcher, device)


def _all(device: str) -> list[str]:
    """Return all exchanges as a command line has them; those that can give GPU memory to MPI there in both ways."""
    names = catalog.readable("exchange")
    direct = [name for name in names if device == "cuda" and "CUDA_AWARE" in catalog.constants("exchange", name)]
    return [*names, *(f"{{name: {name}, gpu_path: direct}}" for name in direct)]


def gpus() -> int:
    """Return how many GPUs are here.

    Raises:
        ValueError: none.
    """
    import torch

    if count := torch.cuda.device_count() if torch.cuda.is_available() else 0:
        return count
    raise ValueError("--device: given cuda, but torch finds no GPU here")


def component(text: str) -> Component:
    """Return an exchange written as in a study file: a name, or a mapping with its options."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        exchange: Component = field_type("exchange").validate_python(YAML(typ="safe", pure=True).load(text))
        return exchange
    except YAMLError:
        why = "no YAML; expected: a name, or e.g. '{name: sharded_server, servers: 1}'"
    except ValidationError as error:
        why = reason(error.errors()[0])
    raise ValueError(f"--exchanges: given {text!r}: {why}")
