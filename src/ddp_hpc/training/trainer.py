"""The trainer: each rank computes the gradients of its local batch, and an exchange makes the next weights."""

import math
import time
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.exchange._protocol import HasMetrics, Synchronizes
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.training import cuda_graphs, torch_compile
from ddp_hpc.training.beaten import LOOK_EVERY, Limit, why_beaten
from ddp_hpc.training.checkpoint import Checkpoints
from ddp_hpc.training.components import Components, assemble, evaluate
from ddp_hpc.training.placement import Placement, check_exchange, choose_device
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult
from ddp_hpc.training.step import AGREE_EVERY_STEPS, forward_backward, training_step, whole_step

AGREE_EVERY_S = 0.05  # at most, of steps from CUDA graphs, unless AGREE_EVERY_STEPS take longer
MOST_UNREAD = cuda_graphs.LOSSES // 2 // AGREE_EVERY_STEPS * AGREE_EVERY_STEPS  # losses: they wait in so much room

Step = Callable[[int], Tensor]  # of its number, counted from 0; returns the loss of this rank's batch
Exit = Literal["complete", "diverged", "interrupted", "beaten"]


class Meter(Protocol):
    """Meters what a rank consumes."""

    def start(self, device: torch.device) -> None:
        """Begin. All ranks must call, each with its device."""

    def sample_now(self) -> None:
        """Sample at once, beside the samples that are taken anyway."""


class StepTracer(Protocol):
    """Traces steps before they are taken."""

    first: int  # from this step on, counted from 1

    def trace(self, components: Components, take_step: Step) -> float:
        """Take steps, put everything back, and return how many seconds it took. All ranks must call."""


class Trainer:
    """The training of one rank. All ranks of `comm` must make one, and `run` it.

    Args:
        spec: what to train.
        comm: its ranks train together.
        placement: where this rank sits, from `placement.survey`.
        data_dir: fetched files of a dataset lie in a folder of its name below.
        checkpoints: where the training resumes, and what it leaves if it is asked to end; None: it is never asked.
        report: called every few steps with the step, this rank's loss and the seconds since time zero.
        meter: started with this rank's device, before anything is put there; samples where the clock starts or stops.
        tracer: traces some steps, off the clock.
        limit: what rank 0 knows of the runs that this one competes with; None: it is trained to its end.

    Raises:
        LaunchError: GPUs, hosts, ranks and the exchange do not fit together.
    """

    spec: RunSpec
    comm: MPI.Intracomm
    components: Components
    checkpoints: Checkpoints
    result: TrainResult  # filled as the training goes, so that one that fails leaves its part too
    take_step: Step
    steps: int  # taken so far, in this process and in those before
    agree_at: int  # so many steps, unless the training ends before
    exit: Exit | None  # why the training ends after this step; None: it goes on

    def __init__(
        self,
        spec: RunSpec,
        comm: MPI.Intracomm,
        placement: Placement,
        data_dir: Path,
        *,
        checkpoints: Checkpoints | None = None,
        report: Callable[[int, float, float], None] | None = None,
        meter: Meter | None = None,
        tracer: StepTracer | None = None,
        limit: Limit | None = None,
    ) -> None:
        self.spec, self.comm, self.tracer, self.report = spec, comm, tracer, report
        self.meter, self.limit = meter, limit
        self.checkpoints = checkpoints or Checkpoints()
        device = choose_device(spec, placement, comm)
        check_exchange(spec, placement, device)
        if meter:
            meter.start(device)
        torch.set_num_threads(placement.threads)
        captured = cuda_graphs.mode(spec, device)
        self._graphs = cuda_graphs.CudaGraphs(device) if captured != "off" else None
        with self._graphs.warming_up() if self._graphs else nullcontext():  # what autograd makes here, DDP keeps
            self.components = assemble(spec, comm, data_dir, device)
        self.result = TrainResult(
            clock=self.components.clock,
            metric_name=self.components.task.metric,
            chance_metric=self.components.chance_metric,
            parameters=self.components.replica.parameters,
            train_samples=len(self.components.dataset.train),
            example=self.components.dataset.train.inputs[0],
            device=device.type,
            captured=captured,
        )
        self.steps, self.exit = 0, None
        self.agree_at, self._every = 0, AGREE_EVERY_STEPS
        self._seldom = device.type == "cuda" and self.result.captured != "off"  # a GPU is idle while ranks agree
        self._unread: list[Tensor] = []  # losses that lie on the device
        self._look, self._look_at = False, 0  # whether to look at other runs after this step; not before that one
        self._save = False  # the ranks have agreed to write a checkpoint after this step

    def run(self) -> TrainResult:
        """Train until the budget is used up, a loss is not finite, or the training is asked to end."""
        self.start()
        while not self.exit:
            self.step()
            if self.steps in (self.spec.steps_asked, self.agree_at):
                self.agree()
            self.end_step()
        self.finish()
        return self.result

    def start(self) -> None:
        """Resume, compile and warm up; time zero is when all ranks are through with it."""
        self.steps = self.checkpoints.resume(self.components, self.result, self.comm)
        if self.spec.compile:
            began, result, compile_step = time.perf_counter(), self.result, torch_compile.compile_step
            self.components, result.compiled = compile_step(self.spec, self.components, self.comm, self.steps)
            if not result.resumes:  # else it is the first one's, before time zero
                result.compile_s = time.perf_counter() - began
        self.warm_up()
        self.comm.Barrier()
        self.result.begin()
        self.checkpoints.wait()
        self._start_clock()
        self._agree_next()
        if self.steps == self.spec.steps_asked:  # an asynchronous rank that was through when others were interrupted
            self.synchronize()
            self.exit = "complete"

    def step(self) -> None:
        """Go from one state of the weights to the next; but trace the steps to come, if the tracer begins here."""
        if self.tracer is not None and self.steps + 1 == self.tracer.first:
            self._sample()
            self.result.traced_s = self.tracer.trace(self.components, self.take_step)
            self._start_clock()
        self._unread.append(self.take_step(self.steps))
        self.steps += 1

    def agree(self) -> None:
        """Decide with the other ranks whether to go on; without them, where each takes its steps by itself."""
        result, seconds, synchronous = self.result, self.spec.budget.seconds, self.components.synchronous
        losses = self.read_losses()
        before_s, result.trained_s = result.trained_s, result.since_start()
        if synchronous:
            check_warm_up(result.losses)
        diverged, time_over, self._save, leave, long_enough = on_any_rank(
            self.comm if synchronous else MPI.COMM_SELF,
            not all(map(math.isfinite, losses)),
            seconds is not None and result.trained_s >= seconds,
            self.checkpoints.due(),
            bool(self.checkpoints.asked),
            not self._seldom or result.trained_s - before_s > AGREE_EVERY_S / 2,
        )
        self._agree_next(1 if long_enough else 2)
        if diverged:
            self.exit = "diverged"
        elif time_over or self.steps == self.spec.steps_asked:
            self.exit = "complete"
        elif leave:
            self.exit = "interrupted"
        self._look = self.limit is not None and synchronous and not self.exit and self.steps >= self._look_at
        if self.report:
            self.report(self.steps, losses[-1], result.trained_s)
        self.components.clock.resolve()

    def _agree_next(self, times: int = 1) -> None:
        """Set the step of the next agreement: a multiple of the interval, which becomes so many times as long."""
        self._every = min(self._every * times, MOST_UNREAD)
        self.agree_at = (self.steps // self._every + 1) * self._every

    def end_step(self) -> None:
        """End the step on the clock; then evaluate or write a checkpoint, off the clock, where that is due."""
        clock, every = self.components.clock, self.spec.evaluate_every_steps
        resumable = self.exit == "interrupted" and self.components.synchronous  # from weights that may differ
        if self.exit and not resumable:
            self.synchronize()
        clock.end_step()
        evaluating = every is not None and self.steps % every == 0 and self.exit in (None, "interrupted")
        saving, self._save = self._save and not self.exit, False
        looking, self._look = self._look, False
        if evaluating or saving or looking or self.exit:
            self._sample()
        if evaluating:
            self.evaluate()
        if saving:
            self.checkpoints.save(self.steps, self.components, self.result, self.comm)
        if looking:
            self.look()
        if (evaluating or saving or looking) and not self.exit:
            self.comm.Barrier()
            self._start_clock()

    def _start_clock(self) -> None:
        self._sample()
        self.components.clock.start()

    def _sample(self) -> None:
        """Let the meters sample where the time that counts begins or ends: what they read there is exact."""
        if self.meter:
            self.meter.sample_now()

    def finish(self) -> None:
        """Leave a checkpoint, if the training was interrupted or beaten, else say how good the model is."""
        components, result = self.components, self.result
        components.clock.resolve()
        result.end()
        result.interrupted = self.exit == "interrupted"
        if not components.synchronous:
            result.interrupted = on_any_rank(self.comm, result.interrupted)[0]
        if result.interrupted:
            result.saved = self.checkpoints.save(self.steps, components, result, self.comm)
        else:
            components.replica.check()
            if isinstance(components.exchange, HasMetrics):
                result.metrics = components.exchange.metrics()
            finite = bool(components.replica.weights.isfinite().all())  # the last update has no loss
            result.diverged = on_any_rank(self.comm, self.exit == "diverged" or not finite)[0]
            if self.exit == "beaten":  # it may have to go on; an exchange that closes may take the weights along
                self.checkpoints.save(self.steps, components, result, self.comm)
            elif not result.diverged:
                self.evaluate()
        if self._graphs:
            self._graphs.destroy()
        components.exchange.close()

    def warm_up(self) -> None:
        """Take the few steps to come, so that nothing is done for the first time later, and put everything back.

        Steps are taken from CUDA graphs from then on, where the spec and the exchange allow it.
        """
        began, components, result = time.perf_counter(), self.components, self.result
        before = components.snapshot()
        self.comm.Barrier()  # no rank moves weights that it may share with one that still copies them
        graphs, whole = self._graphs, result.captured == "whole step"
        more = catalog.constants("exchange", self.spec.exchange.name).get("WARM_UP_STEPS", 0) if whole else 0
        self.take_step = partial(training_step, components)
        with graphs.warming_up() if graphs else nullcontext():
            components.clock.start()
            for number in range(WARM_UP_STEPS):
                self._unread.append(self.take_step(self.steps + number))
                if number == WARM_UP_STEPS - 1:
                    self.synchronize()
                components.clock.end_step()
            self.read_losses()
            components.clock.resolve()
            with components.timers.redirected(Timers()):
                for number in range(WARM_UP_STEPS, more):  # before its exchange can be captured; nobody asks for these
                    self.take_step(self.steps + number)
        components.replica.check()
        if graphs:
            # exchanges that go on beside the backward pass, and wait for hooks, are not captured
            work = whole_step if whole else partial(forward_backward, hooks=False)
            every = self.spec.evaluate_every_steps
            self.take_step = cuda_graphs.Captured(components, graphs, work, whole, evaluate_every_steps=every)
        before.restore()
        if not result.resumes:  # else it is the first one's, before time zero
            result.warm_up_s = time.perf_counter() - began

    def read_losses(self) -> list[float]:
        """Move losses from the device to the result, and return them."""
        values: list[float] = torch.stack(self._unread).tolist()
        self.result.losses.extend(values)
        self._unread.clear()
        return values

    def synchronize(self) -> None:
        """Bring all ranks to the same weights, where they can differ; the time counts as exchange."""
        if isinstance(self.components.exchange, Synchronizes):
            self.components.exchange.synchronize()
            self.components.clock.mark("exchange_exposed_s")

    def look(self) -> None:
        """End the training if it cannot win any more against runs that have ended; its clock does not notice."""
        assert self.limit is not None
        began = time.perf_counter()
        self.components.clock.resolve()
        self.result.beaten = why_beaten(self.comm, self.result, self.limit)
        self.exit = "beaten" if self.result.beaten else None
        self._look_at = int(LOOK_EVERY * self.steps)
        self.result.looked_s += time.perf_counter() - began

    def evaluate(self) -> None:
        """Add the test set's metric and loss to the result; training does not notice, nor its clock."""
        began, components = time.perf_counter(), self.components
        weights, exchange = components.replica.weights, components.exchange
        own = weights.clone() if isinstance(exchange, Synchronizes) else None
        if isinstance(exchange, Synchronizes):
            exchange.synchronize()
        metric, loss, others = evaluate(components, self.comm)
        self.result.evaluations.append((self.steps, metric, loss))
        self.result.own_metrics.append(others)
        if own is not None:
            self.comm.Barrier()  # the weights may be shared
            weights.copy_(own)
        self.result.evaluation_s += time.perf_counter() - began


def check_warm_up(losses: "array[float]") -> None:
    """Refuse to go on if the first step of this process differs from the first of its warmup, of the same batch and
    state: then something was not put back."""
    warm, first = losses[0], losses[WARM_UP_STEPS]
    if math.isfinite(warm) and math.isfinite(first) and not math.isclose(warm, first, rel_tol=1e-3, abs_tol=1e-6):
        raise RuntimeError(
            f"the loss of step 1 is {first}, but it was {warm} on the same batch in the warm-up, before all was put "
            "back: the model keeps state outside its parameters and buffers, which it must not"
        )


def on_any_rank(comm: MPI.Intracomm, *facts: bool) -> list[bool]:
    """Return of each fact whether it is true on some rank. One rank alone knows without MPI."""
    flags = np.array(facts, dtype=np.int8)
    if comm.size > 1:
        comm.Allreduce(MPI.IN_PLACE, flags, MPI.MAX)
    return [bool(flag) for flag in flags]
