"""The progress of a training: a line in the log, and `progress.json` in the folder of its attempt."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.mpi_environment import TERMINAL
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.system.files import text_of
from ddp_hpc.system.progress import ProgressLine
from ddp_hpc.system.terminal import counted
from ddp_hpc.training.placement import Placement

EVERY_S = 3.0


def remaining_s(spec: RunSpec, step: int, elapsed_s: float) -> float:
    """Return the seconds that the training will still take, if it goes on as it did; evaluations not counted."""
    if spec.steps_asked:
        return max(0.0, (spec.steps_asked - step) * elapsed_s / max(step, 1))
    return max(0.0, (spec.budget.seconds or 0.0) - elapsed_s)


class ProgressFile:
    """Writes the latest of what it was told every few seconds, from a thread of its own: no step waits for a disk.

    The keys are step, steps_asked (null: the budget is in seconds), loss (of rank 0), elapsed_s, eta_s, memory_bytes
    (resident, of this process) and at (seconds since the epoch).
    """

    def __init__(self, attempt: Attempt, spec: RunSpec) -> None:
        self._attempt, self._spec = attempt, spec
        self._told: tuple[int, float, float] | None = None
        self._over = threading.Event()
        threading.Thread(target=self._write, name="progress", daemon=True).start()

    def tell(self, step: int, loss: float, elapsed_s: float) -> None:
        """Take note of where the training is. Costs no more than an assignment."""
        self._told = (step, loss, elapsed_s)

    def close(self) -> None:
        """Write no more."""
        self._over.set()

    def _write(self) -> None:
        written = None
        while not self._over.wait(EVERY_S):
            if self._told is None or self._told == written:
                continue
            step, loss, elapsed_s = written = self._told
            pages = text_of(Path("/proc/self/statm")).split()
            content = {
                "step": step,
                "steps_asked": self._spec.steps_asked,
                "loss": loss,
                "elapsed_s": elapsed_s,
                "eta_s": remaining_s(self._spec, step, elapsed_s),
                "memory_bytes": int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else None,
                "at": time.time(),
            }
            with suppress(OSError):  # a full disk must not end a training
                self._attempt.progress = content


def heading(place: Placement, device: str) -> str:
    """Return what the ranks run on, and that a run without GPUs has no GPU columns."""
    hosts = counted(place.hosts, "host")
    text = f"{counted(place.world_size, 'rank')} on {hosts}, {counted(place.threads, 'thread')} each, device {device}"
    if device == "cpu":
        text += "; no GPU is used, GPU metering is off"
    if place.oversubscribed:
        text += "; more threads than cores: its times mean nothing"
    if place.verified is False:
        layout = "+".join(map(str, place.blocks))
        text += f"; placed otherwise than asked, {layout} on {hosts}: kept out of comparisons"
    return text


class StepProgress:
    """Says how far the training is, and tells it to `file`; `heading` gives a line to print before the first.

    Whether it is `on_terminal` the environment variable DDP_HPC_TERMINAL says, if nobody else does.
    """

    def __init__(
        self,
        spec: RunSpec,
        file: ProgressFile | None = None,
        heading: Callable[[], str] | None = None,
        on_terminal: bool | None = None,
    ) -> None:
        self._spec, self._file, self._heading = spec, file, heading
        on_terminal = os.environ.get(TERMINAL) == "1" if on_terminal is None else on_terminal
        self._line = ProgressLine(sparse_s=10.0, on_terminal=on_terminal, at_once=True)

    def __call__(self, step: int, loss: float, elapsed_s: float) -> None:
        """Show a line, if the last one is old enough or the training is over.

        It is e.g. `step 120/400  loss 0.41  3.1e+04 samples/s  ETA 12 s`.
        """
        if self._file:
            self._file.tell(step, loss, elapsed_s)
        if self._heading:
            print(self._heading(), flush=True)
            self._heading = None
        asked, rate = self._spec.steps_asked, step / max(elapsed_s, 1e-9)
        if step == asked or self._line.is_due:
            of = f"/{asked}" if asked else ""
            text = (
                f"step {step}{of}  loss {loss:.4g}  {rate * self._spec.global_batch_size:.2g} samples/s  "
                f"ETA {remaining_s(self._spec, step, elapsed_s):.0f} s"
            )
            self._line.show(text, last=step == asked)

    def close(self) -> None:
        """Leave the line, so that the next output begins a new one."""
        if self._file:
            self._file.close()
        self._line.end(keep=True)
