"""Training steps recorded once as CUDA graphs, then replayed: a hundred small kernels for the price of one launch.

Where the exchange is CAPTURABLE, the step is recorded twice: whole, as one graph, and cut at every mark of the clock
into one graph per phase. The latter is replayed in one of `SAMPLE_EVERY_STEPS` steps, with the clock between graphs,
so that phases are known; it is slower by a few launches only, which steps sampled without graphs are not. Where
the exchange is not capturable, forward and backward pass are graphs cut in this way in every step: their phases stay
known, and one graph of both would save a launch or two. The optimiser is then not captured: it is one or two kernels.
A wrapper of the model that exchanges within the backward pass (DDP) is never cut: its steps have no phases.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.training.components import Components
from ddp_hpc.training.step import AGREE_EVERY_STEPS

SAMPLE_EVERY_STEPS = 50
LOSSES = 8192  # of captured steps that are kept on the device: those not yet read are fewer

Mode = Literal["whole step", "forward and backward", "off"]
Replay = Callable[[], None]
Work = Callable[[Components], Tensor]  # queues work on the device, and returns where the loss will be


def mode(spec: RunSpec, device: torch.device) -> Mode:
    """Return what of a step is captured."""
    flags = catalog.constants("exchange", spec.exchange.name)
    if device.type != "cuda" or spec.capture == "off":
        return "off"
    capturable = flags["CAPTURABLE"] or catalog.asked(spec.exchange.name, "CAPTURED", spec.exchange.options)
    if capturable and spec.dtype == "float32":  # the fused kernels read a rate on the device as float32
        return "whole step"
    return "off" if flags["OVERLAPS"] else "forward and backward"  # the backward pass calls what cannot be captured


@lru_cache
def sampled_step(block: int, evaluate_every_steps: int | None = None) -> int:
    """Return the number of the step that is sampled of a block of `SAMPLE_EVERY_STEPS`.

    Well after the host has waited for the device, to agree or to evaluate, and not just before it will: else the device
    waits for the host within the step, and that counts as one of its phases.
    """
    first, every = block * SAMPLE_EVERY_STEPS, evaluate_every_steps or 1
    steps = range(first + AGREE_EVERY_STEPS - 3, first + SAMPLE_EVERY_STEPS, AGREE_EVERY_STEPS)
    return max(steps, key=lambda step: step % every)


class CudaGraphs:
    """Records what is queued on the device, in one stream, as CUDA graphs, which live until `destroy`.

    They share their working memory: what one leaves there does not outlive a replay of others, and graphs of which one
    reads what another has left must be replayed in the order in which they were recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: list[torch.cuda.CUDAGraph] = []  # empty ones too: the last to go takes the working memory along
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Work in the stream in which will be recorded, so that libraries and autograd know it."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def begin(self) -> None:
        """Record from here."""
        self._graphs.append(torch.cuda.CUDAGraph())
        # NCCL's watchdog asks for events in a thread of its own, which must not break the recording
        self._recording = torch.cuda.graph(
            self._graphs[-1], self._pool, self._stream, capture_error_mode="thread_local"
        )
        self._recording.__enter__()

    def end(self) -> Replay | None:
        """Record to here; return what queues it again, None if there was nothing."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self._recording.__exit__(None, None, None)
        empty = any("graph is empty" in str(warning.message).lower() for warning in said)
        return None if empty else self._graphs[-1].replay

    def destroy(self) -> None:
        """Destroy all graphs when the device is through with them; none can be replayed after that.

        Call it before an exchange is closed: NCCL does not close while a graph lives that has captured a call of it.
        """
        torch.cuda.synchronize(self._stream.device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()


class _PhaseRecorder(Timers):
    """Timers that are told of a step while it is recorded: at each mark a graph ends, and the next begins."""

    def __init__(self, recorder: CudaGraphs) -> None:
        self._recorder = recorder
        self.pieces: list[tuple[Replay, str, str | None]] = []

    def mark(self, phase: str, part: str | None = None) -> None:
        self.end(phase, part)
        self._recorder.begin()

    def end(self, phase: str, part: str | None = None) -> None:
        if replay := self._recorder.end():
            self.pieces.append((replay, phase, part))


class Captured:
    """A training step from graphs; its `work` goes from the batch to gradients and loss or, if `whole`, to new weights.

    Made after the warmup; what a step changes is to be restored after that. Batches, weights, gradients and the
    optimisers' state stay where they are from now on.

    Raises:
        RuntimeError: something in the step cannot be captured.
    """

    def __init__(
        self,
        components: Components,
        recorder: CudaGraphs,
        work: Work,
        whole: bool,
        *,
        evaluate_every_steps: int | None = None,
    ) -> None:
        self._components, self._clock = components, components.clock
        self._evaluate_every_steps = evaluate_every_steps
        self._whole: Replay | None = None
        self._pieces: list[tuple[Replay, str, str | None]] = []
        components.batches.fix()
        device, weights = components.device, components.replica.weights
        # losses lie in a row on the device, one after the other: each captured step writes its own, and moves on
        self._losses = torch.zeros(LOSSES, dtype=weights.dtype, device=device)
        self._slot, self._used = torch.zeros(1, dtype=torch.int64, device=device), 0
        places = _places_of_buffers(components)
        try:
            if whole:
                for optimizer in components.optimizers:
                    optimizer.rate_to_device()
                self._whole = self._record(recorder, work, Timers())  # nothing happens now
            if not whole or components.replica.wrapper is None:
                phases = _PhaseRecorder(recorder)
                rest = self._record(recorder, work, phases)
                self._pieces = [*phases.pieces, *([(rest, "rest_s", None)] if rest else [])]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(f"{error}\nthis step cannot be captured in a CUDA graph: set `capture: off`") from error
        moved = [name for name, place in _places_of_buffers(components).items() if places.get(name) != place]
        if moved:
            raise RuntimeError(
                f"the model puts a new tensor in the place of its buffer {', '.join(moved)} in each step, which a "
                "captured step does once: change it in place, e.g. with copy_, or set `capture: off`"
            )

    def _record(self, recorder: CudaGraphs, work: Work, listener: Timers) -> Replay | None:
        with self._components.timers.redirected(listener):
            recorder.begin()
            try:
                loss = work(self._components)
                self._losses.index_copy_(0, self._slot, loss.view(1).to(self._losses.dtype))
                torch._foreach_add_([self._slot, *self._components.batches.counters], 1)
            except BaseException:
                with suppress(RuntimeError):  # what is broken cannot be ended properly, but nothing more is recorded
                    recorder.end()
                raise
        return recorder.end()

    def __call__(self, number: int) -> Tensor:
        """Go from one state of the weights to the next; return the loss of this rank's batch, still on the device.

        It lies where that of the `LOSSES`-th step after this one will.
        """
        components = self._components
        if self._used == LOSSES:
            self._slot.zero_()
            self._used = 0
        to_sample = sampled_step(number // SAMPLE_EVERY_STEPS, self._evaluate_every_steps)
        sampled = self._whole is None or (number == to_sample and bool(self._pieces))
        components.batches.load(number)
        if self._whole:
            for optimizer in components.optimizers:
                optimizer.advance()
        if self._whole and not sampled:
            self._whole()
            self._clock.fused()
        else:
            for replay, phase, part in self._pieces:
                replay()
                components.timers.mark(phase, part)
        loss = self._losses[self._used]
        self._used += 1
        components.batches.prefetch(number + 1)
        if self._whole is None:
            components.exchange.update()
        return loss


def _places_of_buffers(components: Components) -> dict[str, int]:
    return {name: buffer.data_ptr() for name, buffer in components.replica.model.named_buffers()}
