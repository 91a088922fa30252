"""How long each phase of each step took: host clock on a CPU, CUDA events on a GPU.

Marks, not context managers: one look at the clock per phase, and the phases fill the step without a gap. A phase that
was not marked is 0, which is true: it did not happen (`h2d_s` where the data lie on the device, one rank's exchange).
"""

from array import array
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ddp_hpc.phases import PHASES

_COLUMN = {phase: column for column, phase in enumerate(PHASES)}
_REST = _COLUMN["rest_s"]


@dataclass(frozen=True)
class Timings:
    """What was measured on one rank, one row per step.

    `phases_s` is steps x phases in the order of `PHASES`. `arrived_ns` is when the rank was ready to exchange, on the
    monotonic clock that all processes of a host share; -1 where it did not exchange.
    """

    phases_s: NDArray[np.float64]
    arrived_ns: NDArray[np.int64]


class Timers(Protocol):
    """The clock of one rank."""

    def start(self) -> None:
        """Begin a step here; what went before belongs to none. Called at time zero and after every pause."""

    def mark(self, phase: str) -> None:
        """What this rank did since the last mark was `phase`."""

    def arrived(self) -> None:
        """This rank is ready to exchange; on a GPU, call it when the gradients are complete."""

    def end_step(self) -> None:
        """End the step, and begin the next: what was done since the last mark is its rest."""

    def resolve(self) -> None:
        """Read events that have passed; may wait for the device. Call it every few steps."""

    def timings(self) -> Timings:
        """Return all steps that have been resolved."""


class HostTimers:
    """Phases by the host's monotonic clock."""

    def __init__(self) -> None:
        self._durations_ns, self._arrivals_ns = array("q"), array("q")
        self._row = [0] * len(PHASES)
        self._arrived_ns, self._last_ns = -1, perf_counter_ns()

    def start(self) -> None:
        """Begin a step here."""
        self._last_ns = perf_counter_ns()

    def mark(self, phase: str) -> None:
        """What this rank did since the last mark was `phase`."""
        now = perf_counter_ns()
        self._row[_COLUMN[phase]] += now - self._last_ns
        self._last_ns = now

    def arrived(self) -> None:
        """This rank is ready to exchange."""
        self._arrived_ns = perf_counter_ns()

    def end_step(self) -> None:
        """End the step: what was done since the last mark is its rest."""
        self.mark("rest_s")
        self._durations_ns.extend(self._row)
        self._arrivals_ns.append(self._arrived_ns)
        self._row = [0] * len(PHASES)
        self._arrived_ns = -1

    def resolve(self) -> None:
        """Nothing waits."""

    def timings(self) -> Timings:
        """Return all steps."""
        durations_ns = np.array(self._durations_ns, dtype=np.int64).reshape(-1, len(PHASES))
        return Timings(durations_ns / 1e9, np.array(self._arrivals_ns, dtype=np.int64))


class CudaTimers:
    """Phases by CUDA events: the time at which the device got there, not the host.

    Recording an event does not wait; `resolve` reads those recorded so far and uses them again.
    """

    def __init__(self) -> None:
        self._durations_s, self._arrivals_ns = array("d"), array("q")
        self._free: list[torch.cuda.Event] = []
        self._base = self._event()
        self._pending: list[tuple[int | None, torch.cuda.Event]] = []  # None: not a phase, but a new start
        self._row = [0.0] * len(PHASES)
        self._steps_pending: list[int] = []  # their arrival, in order
        self._arrived_ns = -1

    def _event(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def start(self) -> None:
        """Begin a step here."""
        self._pending.append((None, self._event()))

    def mark(self, phase: str) -> None:
        """What this rank's device did since the last mark was `phase`."""
        self._pending.append((_COLUMN[phase], self._event()))

    def arrived(self) -> None:
        """This rank is ready to exchange: its stream has been synchronised."""
        self._arrived_ns = perf_counter_ns()

    def end_step(self) -> None:
        """End the step: what was done since the last mark is its rest."""
        self.mark("rest_s")
        self._steps_pending.append(self._arrived_ns)
        self._arrived_ns = -1

    def resolve(self) -> None:
        """Wait for the last event, and read all of them."""
        if not self._pending:
            return
        self._pending[-1][1].synchronize()
        for column, event in self._pending:
            if column is not None:
                self._row[column] += self._base.elapsed_time(event) / 1e3
            if column == _REST:
                self._durations_s.extend(self._row)
                self._arrivals_ns.append(self._steps_pending.pop(0))
                self._row = [0.0] * len(PHASES)
            self._free.append(self._base)
            self._base = event
        self._pending.clear()

    def timings(self) -> Timings:
        """Return all steps that have been resolved."""
        durations_s = np.array(self._durations_s, dtype=np.float64).reshape(-1, len(PHASES))
        return Timings(durations_s, np.array(self._arrivals_ns, dtype=np.int64))


def make(device: torch.device) -> Timers:
    """Return the clock that fits the device."""
    return CudaTimers() if device.type == "cuda" else HostTimers()
