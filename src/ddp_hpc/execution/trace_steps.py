"""Traced steps of a run: taken twice, once under the profiler and off the clock, then as if nothing had been.

The state of the training is saved before and put back after, as around the warmup. So a trace changes neither the
result of a run nor its times, and is no part of its spec.
"""

import gzip
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ddp_hpc.config.errors import LaunchError
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.clock_sync import ClockReading, reading
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.system.files import naming
from ddp_hpc.training.components import Components
from ddp_hpc.training.placement import Placement


class Tracer:
    """Traces the first to the last of `steps`, counted from 1, on all ranks; each must make one.

    Raises:
        LaunchError: there are no such steps, or the ranks take their steps each by itself.
    """

    def __init__(self, steps: Sequence[int], spec: RunSpec, comm: MPI.Intracomm) -> None:
        self.first, self._last = steps
        if reason := spec.why_not_traced(*steps):
            raise LaunchError(f"trace: {reason}; expected: steps that the run has, of a synchronous exchange")
        self._comm = comm
        self._events: list[dict[str, Any]] = []
        self._clock, self._zero_ns = ClockReading(0, 0.0, 0.0), 0

    def trace(self, components: Components, take_step: Callable[[int], object]) -> float:
        """Take the steps under the profiler, put everything back, and return how many seconds it took."""
        from ddp_hpc.profiling import trace  # brings torch's profiler

        began, before = time.perf_counter(), components.snapshot()
        self._clock = reading(self._comm)
        self._comm.Barrier()  # no rank moves weights that it may share with one that still copies them

        def put_back() -> None:
            self._comm.Barrier()
            before.restore()
            self._comm.Barrier()

        def begin() -> None:
            put_back()
            self._zero_ns = time.perf_counter_ns()

        with components.timers.redirected(trace.Marks()):
            self._events = trace.record(take_step, self.first, self._last, components.device, begin)
        put_back()
        return time.perf_counter() - began

    def write(self, attempt: Attempt, place: Placement) -> None:
        """Write each rank's trace and the merged one of an attempt, and the record of the trace. All ranks must call.

        If the run ended before the steps were reached, or went on from a later one, nothing is written.
        """
        from ddp_hpc.profiling import trace
        from ddp_hpc.runs import records
        from ddp_hpc.runs.schema import TRACE

        if not self._events:
            if place.rank == 0:
                print(f"trace: step {self.first} was not taken in this attempt, nothing is traced", flush=True)
            return
        zero_ns = self._comm.bcast(self._zero_ns)
        offset_ns, error_ns = self._clock.offset_ns, self._clock.error_ns
        events = trace.on_one_axis(self._events, place.rank, place.host, offset_ns, zero_ns)
        attempt.trace_file(place.rank).parent.mkdir(parents=True, exist_ok=True)
        clock = {"offset_ns": offset_ns, "error_ns": error_ns}
        facts = {"rank": place.rank, "world_size": place.world_size, "backend": "ddp-hpc", "clock": clock}
        _write(attempt.trace_file(place.rank), events, {"distributedInfo": facts})
        own = {"rank": place.rank, "clock_offset_s": offset_ns / 1e9, "clock_error_s": error_ns / 1e9}
        mine = (events, [row | own for row in trace.summary(events)])
        if place.rank:
            self._comm.send(mine, dest=0)
            return
        # one rank after the other: MPI counts the bytes of a message up to 2^31
        gathered = [mine, *(self._comm.recv(source=rank) for rank in range(1, place.world_size))]
        _write(attempt.trace_file(None), [event for events, _ in gathered for event in events], {})
        rows = [row for _, rows in gathered for row in rows]
        for row in rows:
            if place.world_size > 1 and not row["exchange_s"]:  # nothing recognised, which is not: nothing exposed
                row["exchange_s"] = row["exposed_s"] = None
        records.write("trace", {name: [row[name] for row in rows] for name in TRACE.names}, attempt.record("trace"))


def _write(file: Path, events: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Write Chrome's trace format, which Perfetto reads too: https://ui.perfetto.dev."""
    content = {"displayTimeUnit": "ms", "traceEvents": events} | facts
    with naming(file), gzip.open(file, "wt", encoding="utf-8", compresslevel=5) as opened:
        json.dump(content, opened)
