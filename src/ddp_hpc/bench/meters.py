"""`ddp-hpc bench meters`: the overhead of clocks and meters, from steps with and without them.

The strain-stress network, batch 75, on CPU ranks of this node, in blocks of steps: without, with, with, without; the
order takes out what drifts. A ratio is that of the two blocks with to the two without, by the slowest rank. The
processes of one launch are `python -m ddp_hpc.bench.meters FOLDER`.
"""

import sys
import tempfile
from math import isnan
from pathlib import Path
from statistics import median

from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.bench.launch import cpu_spec, run_ranks, tell
from ddp_hpc.bench.timing import Row
from ddp_hpc.system.files import read_json, write_json


def measure(ranks: int, rounds: int, steps: int, launcher: str) -> list[Row]:
    """Return a row: microseconds of a step without and with, and by how many percent it is longer, with its interval.

    Each round has four blocks of so many steps. A RuntimeError says what the ranks of a failed launch said last.
    """
    spec = cpu_spec(
        model={"name": "mlp", "widths": [150, 200, 163]},
        dataset="random_curves",
        exchange="mpi_allreduce" if ranks > 1 else "none",
        world_size=ranks,
        batch_size=75,
        learning_rate=1e-4,
        optimizer="adam",
    )
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as scratch:
        asked = {"rounds": rounds, "steps": steps, "spec": spec.canonical}
        run_ranks("meters", Path(scratch), asked, ranks, launcher)
        found = read_json(Path(scratch) / "blocks.json")
    return [row_of(found["blocks_s"], steps) | {"ranks": ranks, "meter": found["meter"], "marked": found["marked"]}]


def row_of(blocks_s: list[list[float]], steps: int) -> Row:
    """Return the row of rounds of four blocks, in seconds: without, with, with, without."""
    without = [one[0] + one[3] for one in blocks_s]
    whole = [one[1] + one[2] for one in blocks_s]
    ratio = over_runs([with_s / without_s for with_s, without_s in zip(whole, without, strict=True)])
    percent = [None if isnan(value) else 100 * (value - 1) for value in (ratio.middle, ratio.low, ratio.high)]
    of_a_step = {"without_us": 1e6 * median(without) / (2 * steps), "with_us": 1e6 * median(whole) / (2 * steps)}
    return {"rounds": len(blocks_s)} | of_a_step | dict(zip(("longer_percent", "low", "high"), percent, strict=True))


def main(folder: Path) -> None:
    """Be one rank: take the blocks, and leave them in FOLDER/blocks.json."""
    import torch
    from mpi4py import MPI

    from ddp_hpc.bench.sweep import CPU, Timed, slowest_s
    from ddp_hpc.config import spec as specs
    from ddp_hpc.profiling.telemetry import NodeTelemetry
    from ddp_hpc.profiling.timers import Timers
    from ddp_hpc.training import placement
    from ddp_hpc.training.components import assemble
    from ddp_hpc.training.step import AGREE_EVERY_STEPS, training_step

    comm, asked = MPI.COMM_WORLD, read_json(folder / "asked.json")
    spec = specs.load(asked["spec"])
    place = placement.survey(spec, comm)
    torch.set_num_threads(1)
    components = assemble(spec, comm, Path("unused"), torch.device("cpu"))

    def block(metered: bool) -> None:
        for number in range(asked["steps"]):
            training_step(components, number)
            if metered:
                components.clock.end_step()
                if number % AGREE_EVERY_STEPS == 0:
                    components.clock.resolve()

    def block_s(metered: bool) -> float:
        """Return the seconds of a block, with all clocks or without any."""
        components.timers.target = components.clock if metered else Timers()
        components.clock.start()
        return slowest_s(lambda: block(metered), Timed(comm, CPU))

    blocks_s, started = [], False
    block_s(True)  # nothing is done for the first time later
    for turn in range(asked["rounds"]):
        taken = []
        for metered in (False, True, True, False):
            meter = NodeTelemetry([]) if metered and place.local_rank == 0 else None
            taken.append(block_s(metered))
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
