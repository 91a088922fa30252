"""Data-parallel training: each rank computes gradients of its part of a batch, an exchange makes the next weights."""

import math
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.exchange._protocol import HasMetrics, Synchronizes
from ddp_hpc.models._replica import Replica
from ddp_hpc.training import cuda_graphs, torch_compile
from ddp_hpc.training.checkpoint import Checkpoints
from ddp_hpc.training.components import Components, assemble, evaluate
from ddp_hpc.training.placement import Placement, check_exchange, choose_device
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult

Step = Callable[[int], Tensor]  # of its number, counted from 0; returns the loss of this rank's batch


class Tracer(Protocol):
    """Traces steps before they are taken."""

    first: int  # from this step on, counted from 1

    def trace(self, components: Components, take_step: Step) -> float:
        """Take steps, put everything back, and return how many seconds it took. All ranks must call."""


AGREE_EVERY_STEPS = 10  # how often the ranks ask each other whether to stop


class Verdict(NamedTuple):
    """What the ranks have agreed on: why to stop, whether to write a checkpoint, whether somebody asked to end."""

    diverged: bool = False
    time_over: bool = False
    save: bool = False
    leave: bool = False


def train(
    spec: RunSpec,
    comm: MPI.Intracomm,
    placement: Placement,
    data_dir: Path,
    outcome: TrainResult,
    report: Callable[[int, float, float], None] = lambda step, loss, elapsed_s: None,
    meter: Callable[[torch.device], None] = lambda device: None,
    tracer: Tracer | None = None,
    checkpoints: Checkpoints | None = None,
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
        checkpoints: where the training goes on, and what it leaves if it is asked to end; None: it is never asked.

    Raises:
        LaunchError: GPUs, hosts, ranks and the exchange do not fit together.
    """
    checkpoints = checkpoints or Checkpoints()
    device = choose_device(spec, placement, comm)
    check_exchange(spec, placement, device)
    meter(device)
    torch.set_num_threads(placement.threads)
    components = assemble(spec, comm, data_dir, device)
    outcome.timers, outcome.metric_name = components.timers, components.task.metric
    outcome.parameters, outcome.device = components.replica.parameters, device.type
    outcome.train_samples, outcome.example = len(components.dataset.train), components.dataset.train.inputs[0]

    outcome.captured = cuda_graphs.mode(spec, device)
    done = step = checkpoints.resume(components, outcome, comm)
    if spec.compile:
        components = compile_step(spec, components, outcome, comm, done)
    take_step = warm_up(components, outcome, comm, done)
    comm.Barrier()
    began = outcome.begin()
    checkpoints.wait()
    components.timers.start()

    together = comm if components.synchronous else MPI.COMM_SELF  # else every rank stops by itself
    unread: list[Tensor] = []
    verdict, leaving = Verdict(), False
    if done == spec.steps_asked:  # an asynchronous rank that was through when the others were asked to end
        synchronize(components)
    for step in range(done + 1, (spec.steps_asked or sys.maxsize) + 1):
        if tracer is not None and step == tracer.first:
            outcome.traced_s = tracer.trace(components, take_step)
            components.timers.start()
        unread.append(take_step(step - 1))
        verdict = Verdict()
        if step == spec.steps_asked or step % AGREE_EVERY_STEPS == 0:
            losses, outcome.trained_s = read_losses(unread, outcome), outcome.since(began)
            if components.synchronous:
                check_warm_up(outcome.losses)
            verdict = agree(together, losses, time_is_over(spec, outcome.trained_s), checkpoints)
            report(step, losses[-1], outcome.trained_s)
            components.timers.resolve()
        last = step == spec.steps_asked or verdict.diverged or verdict.time_over
        leaving = verdict.leave and not last
        if last or (leaving and not components.synchronous):
            synchronize(components)
        components.timers.end_step()
        if last:
            break
        evaluating = spec.evaluate_every_steps and step % spec.evaluate_every_steps == 0
        if evaluating:
            evaluate_after(step, components, comm, outcome)
        if leaving:
            break
        if verdict.save:
            checkpoints.save(step, components, outcome, comm)
        if evaluating or verdict.save:
            comm.Barrier()
            components.timers.start()

    components.timers.resolve()
    outcome.end()
    outcome.interrupted = leaving if components.synchronous else comm.allreduce(leaving, MPI.LOR)
    if outcome.interrupted:
        outcome.saved = checkpoints.save(step, components, outcome, comm)
    else:
        conclude(step, verdict, components, outcome, comm)
    components.exchange.close()
    return components.replica


def conclude(step: int, verdict: Verdict, components: Components, outcome: TrainResult, comm: MPI.Intracomm) -> None:
    """Say what there is to say of a training that has taken all of its steps, `step` of them, or diverged."""
    components.replica.check()
    if isinstance(components.exchange, HasMetrics):
        outcome.reported = components.exchange.metrics()
    broken = verdict.diverged or not bool(components.replica.weights.isfinite().all())  # the last update has no loss
    outcome.diverged = agree(comm, [math.nan if broken else 0.0]).diverged  # an asynchronous rank stops alone
    if not outcome.diverged:
        evaluate_after(step, components, comm, outcome)


def training_step(components: Components, number: int) -> Tensor:
    """Go from one state of the weights to the next; return the loss of this rank's batch, still on the device."""
    components.batches.load(number)
    loss = forward_backward(components)
    components.batches.prefetch(number + 1)
    components.exchange.update()
    return loss


def forward_backward(components: Components) -> Tensor:
    """Make the gradients of this rank's batch; return its loss."""
    replica, batch = components.replica, components.batches.batch()
    with components.arithmetic():
        loss = components.compute(batch.inputs, batch.targets)
    components.marks.mark("forward_s")
    replica.zero_gradients()
    loss.backward()  # type: ignore[no-untyped-call]
    components.marks.mark(components.last_of_backward)
    return loss.detach()


def whole_step(components: Components) -> Tensor:
    """Go from this rank's batch to the next weights; return its loss."""
    loss = forward_backward(components)
    components.exchange.update()
    return loss


def synchronize(components: Components) -> None:
    """Bring all ranks to the same weights, where they can differ; the time counts as exchange."""
    if isinstance(components.exchange, Synchronizes):
        components.exchange.synchronize()
        components.timers.mark("exchange_exposed_s")


def compile_step(
    spec: RunSpec, components: Components, outcome: TrainResult, comm: MPI.Intracomm, done: int
) -> Components:
    """Compile what computes gradients, before time zero, by the batch after the steps that are `done`."""
    began = time.perf_counter()
    components, outcome.compiled = torch_compile.compile_step(spec, components, comm, done)
    if not outcome.resumes:  # else it is the first one's, before time zero
        outcome.compile_s = time.perf_counter() - began
    return components


def warm_up(components: Components, outcome: TrainResult, comm: MPI.Intracomm, done: int) -> Step:
    """Take the few steps after those that are `done`, so that nothing is done for the first time later, and put
    everything back.

    Returns:
        What takes a step from then on: from the graphs of a captured one, where the spec and the exchange allow it.
    """
    began, before = time.perf_counter(), components.snapshot()
    comm.Barrier()  # no rank moves weights that it may share with one that still copies them
    graphs = cuda_graphs.CudaGraphs(components.device) if outcome.captured != "off" else None
    with graphs.warming_up() if graphs else nullcontext():
        components.timers.start()
        losses = []
        for number in range(WARM_UP_STEPS):
            losses.append(training_step(components, done + number))
            if number == WARM_UP_STEPS - 1:
                synchronize(components)
            components.timers.end_step()
        read_losses(losses, outcome)
        components.timers.resolve()
    components.replica.check()
    step: Step = partial(training_step, components)
    if graphs:
        whole = outcome.captured == "whole step"
        step = cuda_graphs.Captured(components, graphs, whole_step if whole else forward_backward, whole)
    before.restore()
    if not outcome.resumes:  # else it is the first one's, before time zero
        outcome.warm_up_s = time.perf_counter() - began
    return step


def check_warm_up(losses: "array[float]") -> None:
    """Compare the first step of this process with the first of its warm-up: the same batch from the same state.

    Raises:
        RuntimeError: they differ, so something was not put back.
    """
    warm, first = losses[0], losses[WARM_UP_STEPS]
    if math.isfinite(warm) and math.isfinite(first) and not math.isclose(warm, first, rel_tol=1e-3, abs_tol=1e-6):
        raise RuntimeError(
            f"the loss of step 1 is {first}, but it was {warm} on the same batch in the warm-up, before all was put "
            "back: the model keeps state outside its parameters and buffers, which it must not"
        )


def read_losses(unread: list[Tensor], outcome: TrainResult) -> list[float]:
    """Move losses from the device to the outcome, and return them."""
    values: list[float] = torch.stack(unread).tolist()
    outcome.losses.extend(values)
    unread.clear()
    return values


def time_is_over(spec: RunSpec, elapsed_s: float) -> bool:
    """Return whether a budget in seconds is used up."""
    return spec.budget.seconds is not None and elapsed_s >= spec.budget.seconds


def agree(
    comm: MPI.Intracomm, losses: list[float], time_over: bool = False, checkpoints: Checkpoints | None = None
) -> Verdict:
    """Return what the ranks do next, the same on all of them. One rank alone decides without MPI."""
    save, leave = (checkpoints.due(), bool(checkpoints.asked)) if checkpoints else (False, False)
    flags = np.array([not all(map(math.isfinite, losses)), time_over, save, leave], dtype=np.int8)
    if comm.size > 1:
        comm.Allreduce(MPI.IN_PLACE, flags, MPI.MAX)
    return Verdict(*map(bool, flags))


def evaluate_after(step: int, components: Components, comm: MPI.Intracomm, outcome: TrainResult) -> None:
    """Add the test set's metric and loss after `step` to the outcome; training does not notice, nor its clock."""
    began = time.perf_counter()
    if isinstance(components.exchange, Synchronizes):
        own = components.replica.weights.clone()
        components.exchange.synchronize()
        outcome.evaluations.append((step, *evaluate(components, comm)))
        comm.Barrier()  # the weights may be shared
        components.replica.weights.copy_(own)
    else:
        outcome.evaluations.append((step, *evaluate(components, comm)))
    outcome.evaluation_s += time.perf_counter() - began
