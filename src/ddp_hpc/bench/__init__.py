"""`ddp-hpc bench`: what planning, the workflow, exchanges, meters and folded biases cost on this machine, and whether
all is right and fast on its GPUs."""

from argparse import Namespace
from pathlib import Path

from ddp_hpc.runs.machine_lease import held_alone
from ddp_hpc.system.terminal import write_rows


def main(options: Namespace) -> int:
    """Time the part that is asked for, when nobody trains here, print its tables, and return the exit code."""
    with held_alone(Path.cwd(), f"ddp-hpc bench {options.part or 'planning'}"):
        return _measure(options)


def _measure(options: Namespace) -> int:
    if options.part == "gpu":
        return _gpu(options)
    parts = {"exchange": _exchange, "meters": _meters, "prediction": _prediction, "realign": _realign}
    parts |= {"publishing": _publishing}
    parts.get(options.part, _planning)(options)
    return 0


def _exchange(options: Namespace) -> None:
    from ddp_hpc.bench import exchange, sweep_results

    asked = options.exchanges, options.ranks, options.sizes, options.rounds
    sweep = exchange.sweep_of(*asked, options.launcher, options.device)
    rows, fitted = exchange.measure(sweep, options.out)
    print("microseconds of one exchange, or of one copy: medians over the rounds")
    write_rows(sweep_results.by_size(rows), False)
    print("latency (alpha) per message and bandwidth (beta), fitted; and against MPI in the same rounds")
    write_rows(sweep_results.by_exchange(rows, fitted), False)
    print(f"{options.out}: sweep.parquet, fits.parquet, exchange_sweep.svg, .pdf, .png")


def _meters(options: Namespace) -> None:
    from ddp_hpc.bench import meters

    write_rows(meters.measure(options.ranks, options.rounds, options.steps, options.launcher), False)


def _prediction(options: Namespace) -> None:
    from ddp_hpc.bench import prediction

    fitted, judged = prediction.counts_of(options.fit, options.judge)
    if options.samples:
        samples = prediction.read_samples(options.samples)
    else:
        about = (1e-3 * options.work_ms, options.mbit, options.launches, options.rounds)
        counts = (*fitted, *judged, *(options.also or ()))
        samples = prediction.measure(prediction.asked_of(options.exchanges, counts, options.sizes, *about), options.out)
    rows = prediction.predictions(samples, fitted, judged)
    lines = prediction.written(rows, options.out)
    print(f"fitted to {', '.join(map(str, fitted))} nodes, judged on {', '.join(map(str, judged))}; errors in percent")
    write_rows(lines, False)
    print(
        f"{options.out}: predictions.parquet, .csv, prediction.svg, .pdf, .png; samples.parquet where it was measured"
    )


def _realign(options: Namespace) -> None:
    from ddp_hpc.bench import folded_bias

    shapes = [folded_bias.shape_of(text) for text in options.shapes] if options.shapes else folded_bias.SHAPES
    rows = folded_bias.measure(shapes, options.device, options.dtype, options.rounds, options.out)
    print("microseconds, medians over the rounds; and times as fast as addmm (a move: as cat) in the same round")
    write_rows(folded_bias.on_screen(rows), False)
    print(f"{options.out}: realign.parquet, realign.csv")


def _gpu(options: Namespace) -> int:
    from ddp_hpc.bench import gpu_check

    chosen = gpu_check.chosen(options.only)
    rows = gpu_check.check(gpu_check.Asked(options.out, options.device, options.launcher), options.seconds, chosen)
    print((options.out / gpu_check.SUMMARY).read_text())
    print(f"{options.out}: {gpu_check.SUMMARY}, {gpu_check.FINDINGS}, a log of each part")
    return int(gpu_check.failed(rows))


def _publishing(options: Namespace) -> None:
    from ddp_hpc.bench import publishing
    from ddp_hpc.runs.project import Project

    write_rows(publishing.publishing(Project.here(), options.runs or publishing.RUNS), False)


def _planning(options: Namespace) -> None:
    from ddp_hpc.bench import planning
    from ddp_hpc.runs.project import Project

    project, asked = Project.here(), vars(options)  # without a part none of them is there
    rounds = asked.get("rounds") or planning.ROUNDS
    write_rows(planning.planning(project, asked.get("points") or planning.POINTS, rounds), False)
    write_rows(planning.running(project, asked.get("runs") or planning.RUNS, rounds), False)
