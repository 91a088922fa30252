"""Reads what one rank of a program of one's own has recorded: lines of JSON, as `ddp_hpc.runs.recorder` writes them."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_hpc.runs.recorder import EVALUATION, PHASES


class RecordingError(ValueError):
    """A line that a program has written, and why it cannot be understood."""


@dataclass
class Recording:
    """The steps of one rank; times are in seconds. What a step does not say is None."""

    begin_s: float | None = None  # of the last process, on its clock; None: nothing was recorded
    first_s: float = 0.0  # of the first one whose steps count
    step_s: list[float] = field(default_factory=list)  # without evaluations
    ended_s: list[float] = field(default_factory=list)  # on the program's clock
    loss: list[float | None] = field(default_factory=list)
    samples: list[int | None] = field(default_factory=list)
    phases_s: list[dict[str, float]] = field(default_factory=list)  # those that were told
    arrived_s: list[float | None] = field(default_factory=list)  # at the exchange, on the program's clock
    starts: list[tuple[int, float]] = field(default_factory=list)  # after so many steps the next one began then
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # after which step
    evaluation_s: float = 0.0
    resumes: int = 0
    evaluated_before_s: float = 0.0  # part of evaluation_s, before the last of them
    stopped: bool = False  # it was told to end, and has seen that
    listens: tuple[int, int] | None = None  # process and signal by which it wants to be told
    before: "Recording | None" = None  # of earlier processes

    @property
    def steps(self) -> int:
        """How many were recorded."""
        return len(self.step_s)

    @property
    def diverged(self) -> bool:
        """Whether a loss is not finite."""
        return any(loss is not None and not math.isfinite(loss) for loss in self.loss)

    def take(self, row: dict[str, Any]) -> None:
        """Add what a line says."""
        if "begin" in row:
            self._begin(row)
        elif "resumed" in row:
            self._cut(int(row["resumed"]))
        elif "t" in row:
            self._step(row)
        elif "metric" in row:
            self.metrics.append((self.steps, {name: float(value) for name, value in row["metric"].items()}))
        elif row.get("stopped"):
            self.stopped = True
        else:
            raise RecordingError(f"has none of begin, t, metric, resumed, stopped; given {', '.join(row) or 'nothing'}")

    def _begin(self, row: dict[str, Any]) -> None:
        """A process begins. What earlier ones took counts only if it says that it goes on from there."""
        kept = {name: getattr(self, name) for name in (*_OF_STEPS, "resumes", "first_s")}
        self.before = Recording(**kept)
        for name in _OF_STEPS:
            setattr(self, name, type(getattr(self, name))())
        self.begin_s = self.first_s = float(row["begin"])
        self.stopped, self.resumes = False, 0
        self.starts = [(0, self.begin_s)]
        self.listens = (int(row["pid"]), int(row["signal"])) if row.keys() >= {"pid", "signal"} else None

    def _cut(self, step: int) -> None:
        """The process goes on after a step of the one before."""
        before = self.before or Recording()
        if self.steps or not 0 <= step <= before.steps:
            raise RecordingError(f"resumed: given {step}, expected: before any step, 0 to {before.steps} recorded ones")
        for name in ("step_s", "ended_s", "loss", "samples", "phases_s", "arrived_s"):
            setattr(self, name, getattr(before, name)[:step])
        self.metrics = [(at, values) for at, values in before.metrics if at <= step]
        self.evaluation_s, self.resumes, self.first_s = before.evaluation_s, before.resumes + 1, before.first_s
        self.evaluated_before_s = before.evaluation_s
        assert self.begin_s is not None
        self.starts = [(step, self.begin_s)]

    def _step(self, row: dict[str, Any]) -> None:
        if self.begin_s is None:
            raise RecordingError('comes before {"begin": ...}, the time at which the first step begins')
        last_s = self.ended_s[-1] if self.steps > self.starts[0][0] else self.begin_s
        off_s = float(row.get(EVALUATION, 0.0))
        step_s = float(row["t"]) - last_s - off_s
        if not step_s >= 0:
            raise RecordingError(f"t: given {row['t']}, expected: seconds, not before {last_s + off_s}")
        if "from" in row:
            self.starts.append((self.steps, float(row["from"])))
        self.step_s.append(step_s)
        self.ended_s.append(float(row["t"]))
        self.loss.append(None if row.get("loss") is None else float(row["loss"]))
        self.samples.append(None if row.get("samples") is None else int(row["samples"]))
        self.phases_s.append({name: float(row[name]) for name in PHASES if name in row})
        self.arrived_s.append(float(row["arrived"]) if "arrived" in row else None)
        self.evaluation_s += off_s


_OF_STEPS = ("step_s", "ended_s", "loss", "samples", "phases_s", "arrived_s", "starts", "metrics", "evaluation_s")


class Reader:
    """Reads the file of a rank as it grows."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset, self._lines = file, 0, 0
        self._error: RecordingError | None = None
        self.recording = Recording()

    def read(self) -> Recording:
        """Return what has been recorded until now: a line without an end is left for the next time."""
        if self._error:
            raise self._error
        try:
            with open(self._file, "rb") as opened:
                opened.seek(self._offset)
                whole, _, _ = opened.read().rpartition(b"\n")
        except FileNotFoundError:
            return self.recording
        for line in whole.splitlines():
            self._lines += 1
            self._take(line.decode(errors="replace"))
        self._offset += len(whole) + bool(whole)
        return self.recording

    def _take(self, line: str) -> None:
        try:
            row = json.loads(line) if line.strip() else None
            if row is not None and not isinstance(row, dict):
                raise RecordingError("is no object")
            if row is not None:
                self.recording.take(row)
        except (ValueError, TypeError, KeyError) as error:
            why = error if isinstance(error, RecordingError) else f"cannot be understood: {error}"
            where = f"line {self._lines} of the record of the program, {line[:100]!r},"
            self._error = RecordingError(f"{where} {why}")
            raise self._error from None
