"""`ddp-hpc bench meters`: the overhead of clocks and meters, from steps with and without them.

`ddp-hpc bench meters`: the strain-stress network, batch 75, on CPU ranks of this node, in blocks of steps: without,
with, with, without; the order takes out what drifts. A ratio is that of the two blocks with to the two without, by the
slowest rank. The processes of one launch are `python -m ddp_hpc.bench.meters FOLDER`.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.bench.launch import cpu_spec, run_ranks, tell
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.system.files import read_json, write_json

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp_hpc.training.components import Components

Row = dict[str, Any]


def spec_of(ranks: int) -> RunSpec:
    """Return the training that is timed."""
    return cpu_spec(
        model={"name": "mlp", "widths": [150, 200, 163]},
        dataset="random_curves",
        exchange="mpi_allreduce" if ranks > 1 else "none",
        world_size=ranks,
        batch_size=75,
        learning_rate=1e-4,
        optimizer="adam",
    )


def measure(ranks: int, rounds: int, steps: int, launcher: str, say: Callable[[str], None]) -> list[Row]:
    """Return a row: microseconds of a step without and with, and by how many percent it is longer, with its interval.

    Args:
        ranks: on this node.
        rounds: of four blocks.
        steps: of a block.
        launcher: starts the ranks, without `-n`; one rank needs none.
        say: called with each line of the ranks.

    Raises:
        RuntimeError: the launch failed; says what its ranks said last.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as scratch:
        folder = Path(scratch)
        write_json(folder / "asked.json", {"rounds": rounds, "steps": steps, "spec": spec_of(ranks).canonical})
        run_ranks("meters", folder, ranks, launcher, say)
        found = read_json(folder / "blocks.json")
    return [row_of(found["blocks_s"], steps) | {"ranks": ranks, "meter": found["meter"], "marked": found["marked"]}]


def row_of(blocks_s: list[list[float]], steps: int) -> Row:
    """Return the row of rounds of four blocks, in seconds: without, with, with, without."""
    without = [one[0] + one[3] for one in blocks_s]
    whole = [one[1] + one[2] for one in blocks_s]
    ratio = over_runs([with_s / without_s for with_s, without_s in zip(whole, without, strict=True)])
    percent = [None if value is None else 100 * (value - 1) for value in (ratio.middle, ratio.low, ratio.high)]
    return {
        "rounds": len(blocks_s),
        "without_us": 1e6 * median(without) / (2 * steps),
        "with_us": 1e6 * median(whole) / (2 * steps),
        "longer_percent": percent[0],
        "low": percent[1],
        "high": percent[2],
    }


def main(folder: Path) -> None:
    """Be one rank: take the blocks, and leave them in FOLDER/blocks.json."""
    import torch
    from mpi4py import MPI

    from ddp_hpc.config import spec as specs
    from ddp_hpc.profiling.telemetry import NodeTelemetry
    from ddp_hpc.training import placement
    from ddp_hpc.training.components import assemble

    comm, asked = MPI.COMM_WORLD, read_json(folder / "asked.json")
    spec = specs.load(asked["spec"])
    place = placement.survey(spec, comm)
    torch.set_num_threads(1)
    components = assemble(spec, comm, Path("unused"), torch.device("cpu"))
    blocks_s, started = [], False
    block_s(components, comm, asked["steps"], True)  # nothing is done for the first time later
    for turn in range(asked["rounds"]):
        taken = []
        for metered in (False, True, True, False):
            meter = NodeTelemetry([]) if metered and place.local_rank == 0 else None
            taken.append(block_s(components, comm, asked["steps"], metered))
            if meter:
                started = not meter.stop().cpu_reason
        blocks_s.append(taken)
        if comm.rank == 0 and turn % 5 == 4:
            tell(f"round {turn + 1} of {asked['rounds']}")
    if comm.rank == 0:
        meter_words = "samples the processors" if started else "has nothing to read here"
        marked = "more ranks than cores: means nothing" if place.oversubscribed else ""
        write_json(folder / "blocks.json", {"blocks_s": blocks_s, "meter": meter_words, "marked": marked})
    comm.Barrier()


def block_s(components: "Components", comm: "MPI.Intracomm", steps: int, metered: bool) -> float:
    """Return the seconds of so many steps on the slowest rank, with all clocks or without any. All ranks must call."""
    from mpi4py import MPI

    from ddp_hpc.profiling.timers import NoTimers
    from ddp_hpc.training.step import training_step
    from ddp_hpc.training.trainer import AGREE_EVERY_STEPS

    components.timers.target = components.clock if metered else NoTimers()
    comm.Barrier()
    components.clock.start()
    began = time.perf_counter()
    for number in range(steps):
        training_step(components, number)
        if metered:
            components.clock.end_step()
            if number % AGREE_EVERY_STEPS == 0:
                components.clock.resolve()
    slowest: float = comm.allreduce(time.perf_counter() - began, MPI.MAX)
    return slowest


if __name__ == "__main__":
    main(Path(sys.argv[1]))
