"""Data-parallel training: each rank computes gradients of its part of a batch, an exchange makes the next weights."""

import itertools
import math
import time
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc import capture
from ddp_hpc.exchange._helpers import Reports, Settles
from ddp_hpc.placement import Placement, check_exchange, choose_device
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.replica import Replica
from ddp_hpc.setup import Setup, assemble, evaluate
from ddp_hpc.spec import RunSpec

Step = Callable[[int], Tensor]  # of its number, counted from 0; returns the loss of this rank's batch


class Tracer(Protocol):
    """Traces steps before they are taken."""

    first: int  # from this step on, counted from 1

    def trace(self, setup: Setup, take_step: Step) -> float:
        """Take steps, put everything back, and return how many seconds it took. All ranks must call."""


WARM_UP_STEPS = 3
AGREE_EVERY_STEPS = 10  # how often the ranks ask each other whether to stop


@dataclass
class Outcome:
    """What a training leaves on one rank. It is filled as it goes, so that a failed training leaves its part too."""

    losses: "array[float]" = field(default_factory=lambda: array("d"))  # of this rank's batches; warm-up steps first
    timers: Timers | None = None
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, metric, loss
    metric_name: str = ""
    diverged: bool = False
    parameters: int = 0
    device: str = ""
    captured: capture.Mode = "off"
    warm_up_s: float = 0.0
    time_zero_ns: int = 0  # on the host's monotonic clock, which nobody sets back
    ended_ns: int = 0  # on the same; evaluation at the end comes later
    evaluation_s: float = 0.0
    traced_s: float = 0.0  # spent on tracing
    reported: dict[str, float | None] = field(default_factory=dict)  # what the exchange says of itself

    @property
    def steps(self) -> int:
        """Counted steps whose loss has been read."""
        return max(0, len(self.losses) - WARM_UP_STEPS)


def train(
    spec: RunSpec,
    comm: MPI.Intracomm,
    placement: Placement,
    data_dir: Path,
    outcome: Outcome,
    report: Callable[[int, float, float], None] = lambda step, loss, elapsed_s: None,
    meter: Callable[[torch.device], None] = lambda device: None,
    tracer: Tracer | None = None,
) -> Replica:
    """Train as `spec` says; return the trained replica. All ranks of `comm` must call.

    Args:
        spec: what to train.
        comm: its ranks train together.
        placement: where this rank sits, from `placement.survey`.
        data_dir: fetched files of a dataset lie in a folder of its name below.
        outcome: filled while the training runs.
        report: called every few steps with the step, this rank's loss and the seconds since time zero.
        meter: called once, with this rank's device, before anything is put there.
        tracer: traces some steps, off the clock.

    Raises:
        LaunchError: GPUs, hosts, ranks and the exchange do not fit together.
    """
    device = choose_device(spec, placement, comm)
    check_exchange(spec, placement, device)
    meter(device)
    torch.set_num_threads(placement.threads)
    setup = assemble(spec, comm, data_dir, device)
    outcome.timers, outcome.metric_name = setup.timers, setup.task.metric
    outcome.parameters, outcome.device = setup.replica.parameters, device.type

    outcome.captured = capture.mode(spec, device)
    take_step = warm_up(setup, outcome, comm)
    comm.Barrier()
    outcome.time_zero_ns, zero = time.perf_counter_ns(), time.perf_counter()
    setup.timers.start()

    together = comm if setup.synchronous else MPI.COMM_SELF  # else every rank stops by itself
    unread: list[Tensor] = []
    for step in itertools.count(1):
        if tracer is not None and step == tracer.first:
            outcome.traced_s = tracer.trace(setup, take_step)
            setup.timers.start()
        unread.append(take_step(step - 1))
        stop = None
        if step == spec.steps_asked or step % AGREE_EVERY_STEPS == 0:
            losses, paused_s = read_losses(unread, outcome), outcome.evaluation_s + outcome.traced_s
            elapsed_s = time.perf_counter() - zero - paused_s
            if setup.synchronous:
                check_warm_up(outcome.losses)
            stop = agree(together, losses, time_is_over(spec, elapsed_s))
            report(step, losses[-1], elapsed_s)
            setup.timers.resolve()
        if stop or step == spec.steps_asked:
            settle(setup)
        setup.timers.end_step()
        if stop or step == spec.steps_asked:
            break
        if spec.evaluate_every_steps and step % spec.evaluate_every_steps == 0:
            evaluate_after(step, setup, comm, outcome)
            comm.Barrier()
            setup.timers.start()

    setup.timers.resolve()
    outcome.ended_ns = time.perf_counter_ns()
    if isinstance(setup.exchange, Reports):
        outcome.reported = setup.exchange.report()
    broken = stop == "diverged" or not bool(setup.replica.weights.isfinite().all())  # the last update has no loss
    outcome.diverged = agree(comm, [math.nan if broken else 0.0], False) is not None  # an asynchronous rank stops alone
    if not outcome.diverged:
        evaluate_after(step, setup, comm, outcome)
    setup.exchange.close()
    return setup.replica


def training_step(setup: Setup, number: int) -> Tensor:
    """Go from one state of the weights to the next; return the loss of this rank's batch, still on the device."""
    setup.batches.load(number)
    loss = forward_backward(setup)
    setup.batches.prefetch(number + 1)
    setup.exchange.update()
    return loss


def forward_backward(setup: Setup) -> Tensor:
    """Make the gradients of this rank's batch; return its loss."""
    replica, batch = setup.replica, setup.batches.batch()
    with setup.arithmetic():
        loss = setup.loss(replica.forward(batch.inputs), batch.targets)
    setup.marks.mark("forward_s")
    replica.zero_gradients()
    loss.backward()  # type: ignore[no-untyped-call]
    setup.marks.mark(setup.last_of_backward)
    return loss.detach()


def whole_step(setup: Setup) -> Tensor:
    """Go from this rank's batch to the next weights; return its loss."""
    loss = forward_backward(setup)
    setup.exchange.update()
    return loss


def settle(setup: Setup) -> None:
    """Bring all ranks to the same weights, where they can differ; the time counts as exchange."""
    if isinstance(setup.exchange, Settles):
        setup.exchange.settle()
        setup.timers.mark("exchange_exposed_s")


def warm_up(setup: Setup, outcome: Outcome, comm: MPI.Intracomm) -> Step:
    """Take a few steps, so that nothing is done for the first time later, and put everything back.

    Returns:
        What takes a step from then on: from the graphs of a captured one, where the spec and the exchange allow it.
    """
    began, before = time.perf_counter(), setup.snapshot()
    comm.Barrier()  # no rank moves weights that it may share with one that still copies them
    graphs = capture.CudaGraphs(setup.device) if outcome.captured != "off" else None
    with graphs.warming_up() if graphs else nullcontext():
        setup.timers.start()
        losses = []
        for number in range(WARM_UP_STEPS):
            losses.append(training_step(setup, number))
            if number == WARM_UP_STEPS - 1:
                settle(setup)
            setup.timers.end_step()
        read_losses(losses, outcome)
        setup.timers.resolve()
    step: Step = partial(training_step, setup)
    if graphs:
        whole = outcome.captured == "whole step"
        step = capture.Captured(setup, graphs, whole_step if whole else forward_backward, whole)
    before.restore()
    outcome.warm_up_s = time.perf_counter() - began
    return step


def check_warm_up(losses: "array[float]") -> None:
    """Compare the first step with the first of the warm-up: the same batch from the same state.

    Raises:
        RuntimeError: they differ, so something was not put back.
    """
    warm, first = losses[0], losses[WARM_UP_STEPS]
    if math.isfinite(warm) and math.isfinite(first) and not math.isclose(warm, first, rel_tol=1e-3, abs_tol=1e-6):
        raise RuntimeError(
            f"the loss of step 1 is {first}, but it was {warm} on the same batch in the warm-up, before all was put "
            "back: the model keeps state outside its parameters and buffers, which it must not"
        )


def read_losses(unread: list[Tensor], outcome: Outcome) -> list[float]:
    """Move losses from the device to the outcome, and return them."""
    values: list[float] = torch.stack(unread).tolist()
    outcome.losses.extend(values)
    unread.clear()
    return values


def time_is_over(spec: RunSpec, elapsed_s: float) -> bool:
    """Return whether a budget in seconds is used up."""
    return spec.budget.seconds is not None and elapsed_s >= spec.budget.seconds


def agree(comm: MPI.Intracomm, losses: list[float], time_over: bool) -> str | None:
    """Return why to stop, the same on all ranks: `diverged` or `time`; None to go on.

    One rank alone decides without MPI.
    """
    flags = np.array([not all(map(math.isfinite, losses)), time_over], dtype=np.int8)
    if comm.size > 1:
        comm.Allreduce(MPI.IN_PLACE, flags, MPI.MAX)
    diverged, over = map(bool, flags)
    return "diverged" if diverged else "time" if over else None


def evaluate_after(step: int, setup: Setup, comm: MPI.Intracomm, outcome: Outcome) -> None:
    """Add the test set's metric and loss after `step` to the outcome; training does not notice, nor its clock."""
    began = time.perf_counter()
    if isinstance(setup.exchange, Settles):
        own = setup.replica.weights.clone()
        setup.exchange.settle()
        outcome.evaluations.append((step, *evaluate(setup, comm)))
        comm.Barrier()  # the weights may be shared
        setup.replica.weights.copy_(own)
    else:
        outcome.evaluations.append((step, *evaluate(setup, comm)))
    outcome.evaluation_s += time.perf_counter() - began
