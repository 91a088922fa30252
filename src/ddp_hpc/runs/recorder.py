"""What a training program of one's own tells ddp-hpc: `with ddp_hpc.recorder() as record: ... record.step(loss=...)`.

It needs the standard library alone, neither MPI nor torch. What it writes are lines of JSON, of which
docs/your_own_program.md says what a program in another language may write itself.
"""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

FILE = "DDP_HPC_RECORD"  # the variable that names the file to write to; unset: nothing is recorded
FOLDER = "DDP_HPC_CHECKPOINT"  # and the one that names the folder of checkpoints
PHASES = ("data", "compute", "exchange", "update")
EVALUATION = "evaluation"  # off the clock
FLUSH_S = 0.2  # a program that is killed loses what it recorded in so many seconds


class Recorder:
    """Records the steps of one rank, from `with` on. Outside of ddp-hpc it records nothing, and a program still runs.

    Attributes:
        folder: where checkpoints of the run lie, which the next attempt finds; None outside of ddp-hpc.
        steps: that have been recorded, those before a resumption included.
    """

    def __init__(self) -> None:
        self.folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else None
        self.steps = 0
        self._name = os.environ.get(FILE)
        self._file: IO[str] | None = None
        self._row: dict[str, float] = {}  # of this step so far: seconds by phase, ...
        self._asked = self._said = self._broken = False
        self._flushed_s = 0.0

    def __enter__(self) -> "Recorder":
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
        if self._name:
            self._file = open(self._name, "a", encoding="utf-8")
            about: dict[str, Any] = {"begin": time.monotonic(), "pid": os.getpid()}
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGUSR1, self._ask)
                about["signal"] = int(signal.SIGUSR1)
            self._write(about, at_once=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _ask(self, number: int, frame: Any) -> None:
        self._asked = True

    def step(self, loss: float | None = None, samples: int | None = None) -> None:
        """A step is over: its loss and how many samples it took, both of this rank; None: not known."""
        self.steps += 1
        row: dict[str, Any] = {"t": time.monotonic(), **self._row}
        self._row = {}
        if loss is not None:
            row["loss"] = float(loss)
            self._broken = self._broken or not math.isfinite(row["loss"])
        if samples is not None:
            row["samples"] = int(samples)
        self._write(row)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done inside is data, compute, exchange or update; evaluation: off the clock."""
        if name not in (*PHASES, EVALUATION):
            raise ValueError(f"phase: given {name!r}, expected: {', '.join((*PHASES, EVALUATION))}")
        began = time.monotonic()
        if name == "exchange":
            self._row.setdefault("arrived", began)
        try:
            yield
        finally:
            ended = time.monotonic()
            self._row[name] = self._row.get(name, 0.0) + ended - began
            if name == EVALUATION:
                self._row["from"] = ended

    def metric(self, **named: float) -> None:
        """The model's accuracy or error on the test set, after the last step: `record.metric(accuracy=0.97)`.

        `loss` beside it is the test set's.
        """
        wrong = [name for name in named if name not in ("accuracy", "error", "loss")]
        if wrong or not named.keys() & {"accuracy", "error"}:
            given = ", ".join(named) or "nothing"
            raise ValueError(f"metric: given {given}, expected: accuracy (higher is better) or error (lower is better)")
        self._write({"metric": {name: float(value) for name, value in named.items()}}, at_once=True)

    def resumed(self, step: int) -> None:
        """The program goes on after this step, from a checkpoint: earlier attempts' steps up to it count."""
        self.steps = step
        self._write({"resumed": step}, at_once=True)

    @property
    def should_stop(self) -> bool:
        """Whether the program is to leave a checkpoint and end: its time is nearly up, or a loss is not finite.

        Ranks may see it in different steps: let them agree before one leaves an exchange that others wait in.
        """
        if self._asked and not self._said:
            self._said = True
            self._write({"stopped": True}, at_once=True)
        return self._asked or self._broken

    def _write(self, row: dict[str, Any], at_once: bool = False) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        now = time.monotonic()
        if at_once or now - self._flushed_s > FLUSH_S:
            self._file.flush()
            self._flushed_s = now


def recorder() -> Recorder:
    """Return what records the training of this rank; use it in a `with` around the loop."""
    return Recorder()
