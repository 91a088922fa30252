"""A few steps under torch's profiler: our phases on its time axis, and what the trace says of computing and exchanging.

While steps are traced the profiler is told of every mark of the clock, as an event of no length; phases are what lies
between two of them. So they stand on the profiler's own axis. Anchors, which carry a reading of the monotonic clock in
their names, tie that axis to the clock.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile, record_function

from ddp_hpc.profiling.timers import Timers

# what our events are called; those with more to say carry it in their names
ANCHOR, MARK, STEP, ARRIVED, FLEW = (f"ddp-hpc {word} " for word in ("clock", "mark", "step", "arrived", "flew"))

Event = dict[str, Any]
Intervals = NDArray[np.float64]  # n x 2: begin and end, in us

# what the profiler calls an exchange of torch's own; ours are known by their marks
_COMMUNICATION = re.compile(r"^(nccl|gloo|mpi|ucc):|^c10d::|record_param_comms|nccl\w*Kernel", re.IGNORECASE)
# they hold others, hooks that exchange among them, so they say nothing of what is computed
_HOLDERS = ("autograd::", "torch::autograd::", "Optimizer.")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


class Marks(Timers):
    """Timers that tell torch's profiler what a step tells its clock."""

    def mark(self, phase: str, part: str | None = None) -> None:
        _note(f"{MARK}{phase}")

    def arrived(self) -> None:
        _note(ARRIVED)

    def overlapped(self, seconds: float) -> None:
        _note(f"{FLEW}{seconds}")


def _note(text: str) -> None:
    with record_function(text):
        pass


def record(
    take_step: Callable[[int], object], first: int, last: int, device: torch.device, begin: Callable[[], None]
) -> list[Event]:
    """Take the steps `first` to `last`, counted from 1, under the profiler, and return its events.

    Whoever calls sees to it that the steps tell `Marks`. The first step is taken once more before, because under the
    profiler the first of everything is slow; its events are there too, before those of the first step that is named.

    Args:
        take_step: of its number, counted from 0.
        first: is named and traced, as all up to `last`.
        last: included.
        device: whose kernels are traced too, if it is a GPU.
        begin: called between the two, puts the state of the training back as it was before.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        take_step(first - 1)
        begin()
        _note(f"{ANCHOR}{perf_counter_ns()}")
        for step in range(first, last + 1):
            _note(f"{STEP}{step}")
            take_step(step - 1)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            _note(f"{MARK}rest_s")
        _note(f"{ANCHOR}{perf_counter_ns()}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events: list[Event] = json.loads(file.read_text())["traceEvents"]
    return events


def on_one_axis(events: Iterable[Event], rank: int, host: str, offset_ns: float, zero_ns: float) -> list[Event]:
    """Return the events of a rank as those of the process `rank`, in us of rank 0's clock since `zero_ns`.

    This rank's clock is ahead of rank 0's by `offset_ns`. Our marks become slices, named after steps and phases, in a
    thread of their own. Without an anchor it is no trace of ours: a ValueError.
    """
    kept = [event for event in events if event.get("ph") == "X" and isinstance(event.get("tid"), int)]
    begin = min((event["ts"] for event in kept if event["name"].startswith(STEP)), default=0.0)
    anchors = [(event["ts"], int(event["name"][len(ANCHOR) :])) for event in kept if event["name"].startswith(ANCHOR)]
    if not anchors:
        raise ValueError("the trace has no anchor that ties it to a clock")
    # an event begins after its clock was read: the least difference is the nearest
    shift_us = min(ts - clock_ns / 1e3 for ts, clock_ns in anchors) + (offset_ns + zero_ns) / 1e3
    moved = [event | {"ts": event["ts"] - shift_us, "pid": rank} for event in kept if event["ts"] >= begin]
    ours = (ANCHOR, MARK, STEP, ARRIVED, FLEW)
    others = [event for event in moved if not event["name"].startswith(ours)]
    names = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} on {host}"}},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "steps and phases"}},
    ]
    return names + slices(moved, rank) + others


def slices(moved: Iterable[Event], rank: int) -> list[Event]:
    """Return steps and phases as slices, from the marks between which they lie; with what an exchange told besides."""
    found: list[Event] = []
    step: Event | None = None
    at, more = 0.0, {}
    for event in sorted(moved, key=lambda one: one["ts"]):
        name, ts = event["name"], event["ts"]
        if name.startswith(STEP):
            step = {"ph": "X", "cat": "step", "name": f"step {name[len(STEP) :]}", "ts": ts, "pid": rank, "tid": 0}
            found.append(step)
            at = ts
        elif step is None:
            continue
        elif name.startswith(ARRIVED):
            more = {"arrived_us": ts}
        elif name.startswith(FLEW):
            flight = {"ts": ts - 1e6 * float(name[len(FLEW) :]), "dur": 1e6 * float(name[len(FLEW) :])}
            found.append({"ph": "X", "cat": "flight", "name": "in flight", "pid": rank, "tid": "in flight"} | flight)
        elif name.startswith(MARK):
            phase = {"cat": "phase", "name": name[len(MARK) :].removesuffix("_s"), "ts": at, "dur": ts - at}
            found.append({"ph": "X", "pid": rank, "tid": 0, "args": more} | phase)
            step["dur"] = ts - step["ts"]
            at, more = ts, {}
    return found


def summary(events: Iterable[Event]) -> list[dict[str, float]]:
    """Return for each step of one rank how long it exchanged, computed, and exchanged without computing, in s.

    Each is the length of a union of intervals. A rank computes while an operator runs that is no exchange, or, where
    the trace has kernels of a GPU, while one of them does. It exchanges between its arrival and the end of the phase,
    while something is in flight, and while an operator or kernel of an exchange of torch's own runs.
    """
    listed = [event for event in events if event["ph"] == "X"]
    kernels = [event for event in listed if event.get("cat") in _KERNELS]
    operators = [event for event in listed if event.get("cat") == "cpu_op" and not event["name"].startswith(_HOLDERS)]
    torchs = [event for event in [*kernels, *operators] if _COMMUNICATION.search(event["name"])]
    talking = union([*_spans(torchs), *(_exchanges(listed, bool(kernels)))])
    work = [event for event in (kernels or operators) if not _COMMUNICATION.search(event["name"])]
    computing = union(_spans(work))
    rows = []
    for step in (event for event in listed if event.get("cat") == "step"):
        begin, end = step["ts"], step["ts"] + step["dur"]
        talks, computes = within(talking, begin, end), within(computing, begin, end)
        both = length(union([*talks, *computes]))
        rows.append(
            {
                "step": int(step["name"].split()[1]),
                "begin_s": begin / 1e6,
                "step_s": step["dur"] / 1e6,
                "exchange_s": length(talks) / 1e6,
                "compute_s": length(computes) / 1e6,
                "exposed_s": (both - length(computes)) / 1e6,
            }
        )
    return rows


def _exchanges(events: list[Event], on_gpu: bool) -> list[tuple[float, float]]:
    """Return when our own exchange is known to have gone on: on a GPU only from the arrival, which waited for it."""
    spans = _spans(event for event in events if event.get("cat") == "flight")
    for event in events:
        if event.get("cat") == "phase" and event["name"] == "exchange_exposed":
            arrived = event["args"].get("arrived_us", None if on_gpu else event["ts"])
            if arrived is not None:
                spans.append((max(arrived, event["ts"]), event["ts"] + event["dur"]))
    return spans


def _spans(events: Iterable[Event]) -> list[tuple[float, float]]:
    return [(event["ts"], event["ts"] + event["dur"]) for event in events]


def union(spans: Iterable[Any]) -> Intervals:
    """Return intervals that do not overlap and cover just what `spans`, of begin and end, cover."""
    found: list[list[float]] = []
    for begin, end in sorted((float(begin), float(end)) for begin, end in spans):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        elif end > begin:
            found.append([begin, end])
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def within(intervals: Intervals, begin: float, end: float) -> Intervals:
    """Return the parts of intervals that lie between `begin` and `end`."""
    cut = np.clip(intervals, begin, end)
    return cut[cut[:, 1] > cut[:, 0]]


def length(intervals: Intervals) -> float:
    """Return how much intervals cover that do not overlap."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())
