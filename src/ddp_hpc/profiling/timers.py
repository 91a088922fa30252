"""How long each phase of each step took: host clock on a CPU, CUDA events on a GPU.

Marks, not context managers: one look at the clock per phase, and the phases fill the step without a gap. A phase that
was not marked is 0, which is true: it did not happen (`h2d_s` where the data lie on the device, one rank's exchange).
"""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ddp_hpc.profiling.phase_names import PARTS, PHASES

_COLUMN = {phase: column for column, phase in enumerate(PHASES)}
_PART = {part: len(PHASES) + column for column, part in enumerate(PARTS)}
_WIDTH = len(PHASES) + len(PARTS)


@dataclass(frozen=True)
class Timings:
    """What was measured on one rank, one row per step.

    `phases_s` is steps x phases in the order of `PHASES`, `parts_s` steps x parts in that of `PARTS`; `overlapped_s` is
    for how long an exchange was in flight beside the backward pass. `arrived_ns` is when the rank was ready to
    exchange, on the monotonic clock that all processes of a host share; -1 where it did not exchange. `fused`: the
    phases of this step were not told apart, and all of it is in `rest_s`. `starts` has a row for time zero and after
    every pause, the warmup's first: how many steps had been taken, and when, on that clock, the next began.
    """

    phases_s: NDArray[np.float64]
    parts_s: NDArray[np.float64]
    overlapped_s: NDArray[np.float64]
    arrived_ns: NDArray[np.int64]
    fused: NDArray[np.bool_]
    starts: NDArray[np.int64]


class Timers:
    """What data, model and exchange tell the clock. These do not listen: nothing is noted."""

    def mark(self, phase: str, part: str | None = None) -> None:
        """What this rank did since the last mark was `phase` (of `phases.PHASES`), and of that the `part` (`PARTS`)."""

    def arrived(self) -> None:
        """This rank's gradients are complete: from now on it waits for others, or moves data. On a GPU, call it when
        the stream has been synchronised."""

    def overlapped(self, seconds: float) -> None:
        """An exchange was in flight beside the backward pass of this step, for so long."""


class TimerProxy(Timers):
    """Timers that pass on what they are told: to the clock, or to others while a step is traced, captured or compiled.

    Whoever was built with it need not know: data, model and exchange keep it for the whole training.
    """

    def __init__(self, target: Timers) -> None:
        self.target = target

    def mark(self, phase: str, part: str | None = None) -> None:
        self.target.mark(phase, part)

    def arrived(self) -> None:
        self.target.arrived()

    def overlapped(self, seconds: float) -> None:
        self.target.overlapped(seconds)

    @contextmanager
    def redirected(self, target: Timers) -> Iterator[None]:
        """Pass on to `target` meanwhile."""
        before, self.target = self.target, target
        try:
            yield
        finally:
            self.target = before


class Clock(Timers):
    """What is noted of each step. Subclasses add the times of its phases to `_row`, and a full row to `_durations`."""

    def __init__(self, durations: "array[Any]", per_second: float) -> None:
        """Keep durations in an array, in a unit of which there are so many in a second."""
        self._durations, self._per_second = durations, per_second
        self._row: list[float] = [0] * _WIDTH
        self._arrivals_ns, self._overlaps_s, self._fused_steps = array("q"), array("d"), array("b")
        self._starts: list[tuple[int, int]] = []
        self._arrived_ns, self._overlapped_s, self._fused = -1, 0.0, False

    def start(self) -> None:
        """Begin a step here; what went before belongs to none. Called at time zero and after every pause."""
        self._arrived_ns, self._overlapped_s, self._fused = -1, 0.0, False
        self._starts.append((len(self._arrivals_ns), perf_counter_ns()))

    def arrived(self) -> None:
        self._arrived_ns = perf_counter_ns()

    def overlapped(self, seconds: float) -> None:
        self._overlapped_s += seconds

    def fused(self) -> None:
        """The phases of this step cannot be told apart."""
        self._fused = True

    def end_step(self) -> None:
        """End the step, and begin the next: what was done since the last mark is its rest."""
        self.mark("rest_s")
        self._arrivals_ns.append(self._arrived_ns)
        self._overlaps_s.append(self._overlapped_s)
        self._fused_steps.append(self._fused)
        self._arrived_ns, self._overlapped_s, self._fused = -1, 0.0, False

    def resolve(self) -> None:
        """Read events that have passed; may wait for the device. Call it every few steps."""

    def timings(self) -> Timings:
        """Return all steps that have been resolved."""
        rows = np.array(self._durations).reshape(-1, _WIDTH) / self._per_second
        steps = len(rows)
        return Timings(
            rows[:, : len(PHASES)],
            rows[:, len(PHASES) :],
            np.array(self._overlaps_s)[:steps],
            np.array(self._arrivals_ns)[:steps],
            np.array(self._fused_steps, dtype=np.bool_)[:steps],
            np.array(self._starts, dtype=np.int64).reshape(-1, 2),
        )


class HostClock(Clock):
    """Phases by the host's monotonic clock; there is nothing to resolve."""

    def __init__(self) -> None:
        super().__init__(array("q"), per_second=1e9)
        self._last_ns = perf_counter_ns()

    def start(self) -> None:
        super().start()
        self._last_ns = self._starts[-1][1]

    def mark(self, phase: str, part: str | None = None) -> None:
        now = perf_counter_ns()
        self._row[_COLUMN[phase]] += now - self._last_ns
        if part:
            self._row[_PART[part]] += now - self._last_ns
        self._last_ns = now

    def end_step(self) -> None:
        Clock.end_step(self)  # super() takes longer, and steps may be short
        self._durations.extend(self._row)
        self._row = [0] * _WIDTH


class CudaClock(Clock):
    """Phases by CUDA events: the time at which the device got there, not the host.

    Recording an event does not wait; `resolve` reads those recorded so far and uses them again.
    """

    def __init__(self) -> None:
        super().__init__(array("d"), per_second=1e3)
        self._free: list[torch.cuda.Event] = []
        self._base = self._event()
        # no column: not a phase, but a new start; and whether a step ends there
        self._pending: list[tuple[tuple[int, ...], torch.cuda.Event, bool]] = []

    def _event(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def start(self) -> None:
        super().start()
        self._pending.append(((), self._event(), False))

    def mark(self, phase: str, part: str | None = None) -> None:
        columns = (_COLUMN[phase], _PART[part]) if part else (_COLUMN[phase],)
        self._pending.append((columns, self._event(), False))

    def end_step(self) -> None:
        super().end_step()
        columns, event, _ = self._pending[-1]
        self._pending[-1] = columns, event, True

    def resolve(self) -> None:
        """Wait for the last event, and read all of them."""
        if not self._pending:
            return
        self._pending[-1][1].synchronize()
        for columns, event, ends in self._pending:
            for column in columns:
                self._row[column] += self._base.elapsed_time(event)
            if ends:
                self._durations.extend(self._row)
                self._row = [0] * _WIDTH
            self._free.append(self._base)
            self._base = event
        self._pending.clear()


def make(device: torch.device) -> Clock:
    """Return the clock that fits the device."""
    return CudaClock() if device.type == "cuda" else HostClock()
