"""The parts of `ddp-hpc bench gpu` on one rank: each is a function that `gpu_check` runs in a process of its own.

Speeds that are compared are measured in blocks of steps that take turns within one process, each round in the other
order, so that what drifts falls out; a ratio is that of two blocks of the same round.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.bench import ddp_loops, folded_bias
from ddp_hpc.bench.ddp_loops import Loop
from ddp_hpc.bench.gpu_check import Asked, Findings
from ddp_hpc.bench.gpu_runs import CAPTURED_DDP, FEW, STRAIN_STRESS, TOLERANCE, apart, spec_of, trainer_of
from ddp_hpc.config import catalog
from ddp_hpc.config.errors import LaunchError
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.data import random_images
from ddp_hpc.exchange import _torch_distributed
from ddp_hpc.models import alexnet, mlp
from ddp_hpc.models._shift_kernels import shift_left, shift_right
from ddp_hpc.profiling import flops, provenance
from ddp_hpc.profiling.peaks import peak_flop_per_s
from ddp_hpc.profiling.telemetry import NodeTelemetry
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.runs.attempt import CheckpointFolder
from ddp_hpc.system.process import boot_id
from ddp_hpc.training import optimizers
from ddp_hpc.training.checkpoint import Checkpoints
from ddp_hpc.training.result import WARM_UP_STEPS
from ddp_hpc.training.step import AGREE_EVERY_STEPS
from ddp_hpc.training.trainer import Trainer


def losses_of(spec: RunSpec) -> Tensor:
    """Train on all ranks; return this rank's losses, without those of the warmup."""
    return torch.tensor(list(trainer_of(spec).run().losses)[WARM_UP_STEPS:], dtype=torch.float64)


@contextmanager
def running(spec: RunSpec) -> Iterator[Trainer]:
    """A training that has begun and never ends by itself."""
    training = trainer_of(RunSpec.model_validate(spec.canonical | {"budget": {"steps": 10**9}}))
    training.start()
    yield training
    training.finish()


def ours(training: Trainer) -> Loop:
    """Return the trainer's own loop: with its clocks, the agreement of ranks, all."""

    def take(steps: int) -> None:
        for _ in range(steps):
            training.step()
            if training.steps == training.agree_at:
                training.agree()
            training.end_step()

    return take


def wait_for(asked: Asked) -> None:
    if asked.device == "cuda":
        torch.cuda.synchronize()


def in_turns(asked: Asked, loops: Mapping[str, Loop], rounds: int, least_s: float = 0.2) -> dict[str, list[float]]:
    """Return the seconds of one step of each loop in each round; a block takes about `least_s`."""
    least_s, rounds = (0.02, 2) if asked.small else (least_s, rounds)

    def seconds(name: str, steps: int) -> float:
        wait_for(asked)
        began = time.perf_counter()
        loops[name](steps)
        wait_for(asked)
        return (time.perf_counter() - began) / steps

    few = 2 * AGREE_EVERY_STEPS
    counts = {}
    for name in loops:
        seconds(name, few)  # nothing is done for the first time later
        counts[name] = max(few, round(least_s / seconds(name, few)) // few * few)
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds):
        for name in list(loops)[:: -1 if turn % 2 else 1]:
            taken[name].append(seconds(name, counts[name]))
    return taken


def tell_times(tell: Findings, taken: Mapping[str, Sequence[float]], unit: str = "us per step") -> None:
    for name, seconds in taken.items():
        found = over_runs([1e6 * one for one in seconds])
        tell.line(what=name, measured=found.middle, low=found.low, high=found.high, unit=unit)


def times_as_fast(tell: Findings, taken: Mapping[str, Sequence[float]], mine: str, other: str, goal: str) -> None:
    found = over_runs([theirs / own for own, theirs in zip(taken[mine], taken[other], strict=True)])
    what = f"{mine}, against {other}"
    tell.judge(what, found.middle, found.low, found.high, unit="times as fast", goal=goal)


def percent_longer(tell: Findings, taken: Mapping[str, Sequence[float]], more: str, less: str, goal: str) -> None:
    found = over_runs([longer / shorter for longer, shorter in zip(taken[more], taken[less], strict=True)])
    middle, low, high = (100 * (value - 1) for value in (found.middle, found.low, found.high))
    tell.judge(f"{more}, longer than {less}", middle, low, high, unit="%", goal=goal)


def repeated(asked: Asked, call: Callable[[], object], times: int = 50) -> Loop:
    """Return a loop whose step is a call; on a GPU `times` of them in one graph, so that no launch is in the time."""
    call()
    if asked.device == "cpu":

        def plain(steps: int) -> None:
            for _ in range(steps):
                call()

        return plain
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            call()

    def take(steps: int) -> None:
        for _ in range(max(1, steps // times)):
            graph.replay()

    return lambda steps: take(-(-steps // times) * times)


def machine(asked: Asked, tell: Findings) -> None:
    """What is here, and what it can do at best."""
    if asked.small:
        torch.set_num_threads(1)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    tell.note("GPUs", gpus)
    if asked.device == "cuda" and not gpus:
        return
    device = torch.device(asked.device)
    about = provenance.of_rank(device)
    tell.note("device", (about["gpu"] or {}).get("name") or about["cpu"], facts=about)
    software = provenance.software(MPI.Get_library_version())
    tell.note("torch", software["torch"], software=software, source=provenance.source())
    size = 2**8 if asked.small else 2**13
    square = torch.randn(size, size, device=device).bfloat16()
    one, other = (torch.empty(size * size * (1 if asked.small else 8), device=device) for _ in range(2))
    calls = {"product": lambda: square @ square, "copy": lambda: other.copy_(one)}
    taken = in_turns(asked, {name: repeated(asked, call, 20) for name, call in calls.items()}, 3)
    tell.note("bfloat16 product", 2e-12 * size**3 / min(taken["product"]), "TFLOP/s", size=size)
    tell.note("copy of memory", 2e-9 * one.nbytes / min(taken["copy"]), "GB/s, read and written")
    optimiser_kernels(asked, tell)


def optimiser_kernels(asked: Asked, tell: Findings) -> None:
    """Time the update of the strain-stress network by torch's kernel: as one tensor, and as our optimiser cuts it."""
    weights, gradients = (torch.randn(153_472, device=asked.device) for _ in range(2))
    rate = torch.zeros((), device=asked.device)
    loops = {}
    for name, blocks in (("Adam, one slice", 1), ("Adam, as our optimiser cuts it", None)):
        update, _ = optimizers.adam(weights, gradients, 0.0, slices=blocks)
        loops[name] = repeated(asked, lambda update=update: update(rate))  # type: ignore[misc]
    taken = in_turns(asked, loops, 5, 0.05)
    tell_times(tell, taken, "us")
    times_as_fast(tell, taken, "Adam, as our optimiser cuts it", "Adam, one slice", "at least 2")


def right(asked: Asked, tell: Findings) -> None:
    """Every exchange on one rank, and every way to take a step, against the CPU in float64."""
    expected = losses_of(spec_of(asked, device="cpu", dtype="float64", **FEW))
    for name in catalog.names("exchange"):
        known = catalog.constants("exchange", name)
        if asked.device not in catalog.devices(name):
            continue
        try:
            found = losses_of(spec_of(asked, exchange=name, **FEW))
        except (LaunchError, ImportError, ValueError) as error:
            tell.note(f"exchange {name}", "left out", note=str(error)[:200])
            continue
        if known["EXACT"] and known["SYNCHRONOUS"]:
            off = apart(found, expected)
            tell.check(f"losses by {name} as in float64", off < TOLERANCE, relative=off)
    for what, fields in WAYS.items():
        if asked.device == "cuda" or not what.startswith("on a GPU"):
            off = apart(losses_of(spec_of(asked, **FEW, **fields)), expected)
            tell.check(f"{what}: losses as in float64", off < TOLERANCE, relative=off)
    same_bits(asked, tell)


WAYS: dict[str, dict[str, Any]] = {
    "without capture": {"capture": "off"},
    "evaluated between steps": {"evaluate_every_steps": 7},
    "on a GPU, data in host memory": {"data_placement": "host"},
    "on a GPU, compiled": {"compile": True},
    "on a GPU, DDP in a graph": {"exchange": CAPTURED_DDP},
}


def same_bits(asked: Asked, tell: Findings) -> None:
    """Whether captured steps give the bits of others, and whether a second training gives those of the first."""
    adam = spec_of(asked, budget={"steps": 70})
    first = losses_of(adam)
    again, plain = losses_of(adam), losses_of(spec_of(asked, budget={"steps": 70}, capture="off"))
    tell.check("the same training twice: the same bits", torch.equal(first, again), relative=apart(again, first))
    tell.note("captured or not: the same bits", torch.equal(first, plain), relative=apart(plain, first))
    tell.check("captured or not: the same losses", apart(plain, first) < TOLERANCE)


def usual_loop(asked: Asked, tell: Findings) -> None:
    """Our step of the strain-stress network against the usual DDP loop; compiled, too, on a GPU."""
    against(asked, tell, ddp_loops.usual, "usual DDP loop", "at least 30")


def tuned_loop(asked: Asked, tell: Findings) -> None:
    """The same against DDP tuned by hand."""
    against(asked, tell, ddp_loops.tuned, "tuned DDP loop", "at least 1.2")


def images(asked: Asked, tell: Findings) -> None:
    """Our step of AlexNet on images, with and without CUDA graphs and by precision, against the usual DDP loop."""
    start_group(asked)
    batch_size = 4 if asked.small else 128
    fields = {"model": "alexnet", "dataset": {"name": "random_images", "size": 32, "samples": 10 * batch_size}}
    usual_name, mine = f"usual DDP loop, AlexNet, batch {batch_size}", f"our step, AlexNet, batch {batch_size}"
    for precision in ("full",) if asked.small else ("full", "tf32", "bfloat16"):
        spec, plain = (
            spec_of(asked, batch_size=batch_size, precision=precision, **fields, **how)
            for how in ({}, {"capture": "off"})
        )
        with running(spec) as training, running(plain) as uncaptured:
            loops = {f"{mine}, {precision}": ours(training), f"{mine}, {precision}, uncaptured": ours(uncaptured)}
            if precision == "full":
                samples, place = training.components.dataset.train, training.components.device
                model, loss_of = alexnet.build((3, 32, 32), random_images.OUTPUTS), torch.nn.functional.cross_entropy
                loops[usual_name] = ddp_loops.usual(model, samples, batch_size, place, loss_of)
            taken = in_turns(asked, loops, 6)
        tell_times(tell, taken)
        for other in list(loops)[1:]:
            times_as_fast(tell, taken, f"{mine}, {precision}", other, "at least 1")


def start_group(asked: Asked) -> None:
    """Start a process group of one, which ends with this process: graphs that have captured it live as long."""
    backend, device = ("nccl", torch.device("cuda", 0)) if asked.device == "cuda" else ("gloo", torch.device("cpu"))
    _torch_distributed.start(backend, MPI.COMM_WORLD, device)


def against(asked: Asked, tell: Findings, make: Callable[..., Loop], name: str, goal: str) -> None:
    """Compare our step of the strain-stress network with another loop."""
    start_group(asked)
    for batch_size, compiled in ((75, False),) if asked.small else ((75, False), (1000, False), (75, True)):
        with running(spec_of(asked, batch_size=batch_size, compile=compiled)) as training:
            samples, place = training.components.dataset.train, training.components.device
            mine, other = (f"{words}, batch {batch_size}" for words in ("our step" + ", compiled" * compiled, name))
            loops = {other: make(new_model(), samples, batch_size, place), mine: ours(training)}
            taken = in_turns(asked, loops, 6)
        tell_times(tell, taken)
        times_as_fast(tell, taken, mine, other, goal if batch_size == 75 else "at least 1")


def new_model() -> torch.nn.Module:
    return mlp.build((600,), 2, widths=STRAIN_STRESS["model"]["widths"])  # type: ignore[index]


def one_rank_of_nccl(asked: Asked, tell: Findings) -> None:
    """What NCCL costs where there is nobody to exchange with."""
    name = "nccl" if asked.device == "cuda" else "gloo"
    with running(spec_of(asked)) as alone, running(spec_of(asked, exchange=name)) as one:
        taken = in_turns(asked, {"exchange none": ours(alone), f"exchange {name}": ours(one)}, 20)
    tell_times(tell, taken)
    percent_longer(tell, taken, f"exchange {name}", "exchange none", "at most 2")


def clocks(asked: Asked, tell: Findings) -> None:
    """What clocks and meters add to a step."""
    least_s, rounds = (0.02, 2) if asked.small else (1.0, 8)
    taken: dict[str, list[float]] = {"with clocks and meters": [], "without": []}
    with running(spec_of(asked)) as training:
        gpu = provenance.of_rank(training.components.device)["gpu"]
        loops = {"with clocks and meters": ours(training), "without": without_clocks(training)}
        for turn in range(2 * rounds):
            name = list(loops)[(turn + turn // 2) % 2]
            meter = NodeTelemetry([gpu["uuid"]] if gpu else []) if name != "without" else None
            time.sleep(least_s)  # the sampler starts, or the device rests as long
            loops[name](2 * AGREE_EVERY_STEPS)
            taken[name] += in_turns_of_one(asked, loops[name], least_s)
            if meter:
                meter.stop()
    tell_times(tell, taken)
    percent_longer(tell, taken, "with clocks and meters", "without", "at most 2")


def in_turns_of_one(asked: Asked, loop: Loop, least_s: float) -> list[float]:
    """Return the seconds of a step, from one block that takes about `least_s`."""
    wait_for(asked)
    began, taken = time.perf_counter(), 0
    while time.perf_counter() - began < least_s:
        loop(10 * AGREE_EVERY_STEPS)
        taken += 10 * AGREE_EVERY_STEPS
    wait_for(asked)
    return [(time.perf_counter() - began) / taken]


def without_clocks(training: Trainer) -> Loop:
    """Return the trainer's steps, never sampled, without clocks; their losses are read as often."""
    few = AGREE_EVERY_STEPS - 3  # the first steps of a block of captured ones are never sampled

    def take(steps: int) -> None:
        unread = []
        with training.components.timers.redirected(Timers()):
            for number in range(steps):
                unread.append(training.take_step(number % few))
                if number % AGREE_EVERY_STEPS == AGREE_EVERY_STEPS - 1:
                    torch.stack(unread).tolist()
                    unread.clear()

    return take


def resumed(asked: Asked, tell: Findings) -> None:
    """A training that is asked to end and goes on from its checkpoint, against one that is not."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as ranks do that are asked for the same bits
    for what, fields in NETWORKS.items():
        spec = spec_of(asked, **{"budget": {"steps": 60}} | fields)
        whole = losses_of(spec)
        launch = {"run": "r", "code_hash": "c", "launched_on": boot_id(), "launched_ns": time.perf_counter_ns()}
        launch |= {"spec_hash": spec.hash, "world_size": 1}
        signals: list[int] = []
        with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:

            def kept(signals: list[int], folder: str = folder, launch: dict[str, Any] = launch) -> Checkpoints:
                return Checkpoints(CheckpointFolder(Path(folder)), launch, asked=signals)

            ask = lambda step, loss, t_s, signals=signals: signals.append(10)
            first = trainer_of(spec, checkpoints=kept(signals), report=ask).run()
            second = trainer_of(spec, checkpoints=kept([])).run()
        found = torch.from_numpy(second.history_of_losses()[WARM_UP_STEPS:])
        goes_on = first.saved and second.resumes == 1 and len(found) == len(whole)
        off = apart(found, whole) if goes_on else float("inf")
        tell.check(f"{what}: goes on from its checkpoint", off < 1e-2, relative=off)
        tell.note(f"{what}: with the bits of a training that was not interrupted", off == 0, relative=off)


NETWORKS: dict[str, dict[str, Any]] = {
    "perceptron": {},
    "transformer": {
        "model": {"name": "transformer", "layers": 1, "width": 16, "heads": 2, "dropout": 0.1},
        "dataset": {"name": "markov_text", "samples": 400, "context": 16, "alphabet": 8},
        "batch_size": 16,
    },
}
NETWORKS["transformer, deterministic"] = NETWORKS["transformer"] | {"deterministic": True}  # from then on all are


def language_model(asked: Asked, tell: Findings) -> None:
    """Tokens per second, share of the peak and memory of a language model, by precision."""
    context, layers, width = (8, 1, 16) if asked.small else (256, 24, 1024)
    batch_size = 4 if asked.small else 32
    for precision in ("full", "bfloat16") if asked.small else ("full", "tf32", "bfloat16"):
        spec = spec_of(
            asked,
            model={"name": "transformer", "layers": layers, "width": width, "heads": width // 64 or 1},
            dataset={"name": "markov_text", "context": context, "samples": 2 * batch_size},
            batch_size=batch_size,
            precision=precision,
        )
        if asked.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with running(spec) as training:
            seconds = min(in_turns(asked, {precision: ours(training)}, 2, 2.0)[precision])
            replica, inputs = training.components.replica, training.components.dataset.train.inputs[: flops.FEW]
            trained = [span.parameter for span in replica.spans]
            work = batch_size * flops.per_sample(replica.model, trained, inputs) / seconds
        name = torch.cuda.get_device_name() if asked.device == "cuda" else ""
        peak = peak_flop_per_s(name, precision, "float32")
        tell.note(f"{precision}: tokens", batch_size * context / seconds, "per second")
        tell.note(f"{precision}: share of the peak (MFU)", work / peak if peak else None)
        tell.note(f"{precision}: memory", provenance.peak_memory_bytes(torch.device(asked.device)) / 1e9, "GB at most")


def moves(asked: Asked) -> dict[str, float]:
    """Return the seconds of one move of ones in front of a layer's inputs, by way, without launches on a GPU."""
    rows, cols = (75, 6) if asked.small else (75, 600)
    numbers = torch.randn(rows, cols, device=asked.device)
    buffer, ones = numbers.new_ones(rows * (cols + 1)), numbers.new_ones(rows, 1)
    calls: dict[str, Callable[[], object]] = {
        "shift_right": lambda: shift_right(buffer, rows, cols),
        "cat": lambda: torch.cat([ones, numbers], 1),
    }
    taken = in_turns(asked, {name: repeated(asked, call) for name, call in calls.items()}, 5, 0.05)
    return {name: min(seconds) for name, seconds in taken.items()}


def realign(asked: Asked, tell: Findings) -> None:
    """The kernel that moves numbers in place: right, and how fast without its launch."""
    for rows, cols in ((1, 1), (7, 1), (75, 600), (3, 5000)):
        numbers = torch.randn(rows, cols, device=asked.device)
        buffer = numbers.new_zeros(rows * (cols + 1))
        buffer[: rows * cols] = numbers.flatten()
        wide = shift_right(buffer, rows, cols)
        as_cat = torch.equal(wide, torch.cat([numbers.new_ones(rows, 1), numbers], 1))
        back = torch.equal(shift_left(buffer, rows, cols), numbers)
        tell.check(f"ones in front of {rows} x {cols} numbers, and away again", as_cat and back)
    for name, seconds in moves(asked).items():
        tell.note(f"{name}, from a graph", 1e6 * seconds, "us")
    shapes = [folded_bias.Shape(4, 6, 5)] if asked.small else list(folded_bias.SHAPES)
    timed = folded_bias.measure(shapes, asked.device, "float32", 2 if asked.small else 5, asked.folder / "realign")
    for row in timed if not asked.small else ():
        layer = f"{row['rows']}x{row['inputs']}x{row['outputs']}"
        tell.note(f"{layer} {row['part']} {row['way']}", 1e6 * row["median_s"], "us")
