"""How far a training is, for whoever asks meanwhile: `progress.json` in the journal of its attempt."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.system.files import write_json

EVERY_S = 3.0


def remaining_s(spec: RunSpec, step: int, elapsed_s: float) -> float:
    """Return the seconds that the training will still take, if it goes on as it did; evaluations not counted."""
    if spec.steps_asked:
        return max(0.0, (spec.steps_asked - step) * elapsed_s / max(step, 1))
    return max(0.0, (spec.budget.seconds or 0.0) - elapsed_s)


class Live:
    """Writes the latest of what it was told every few seconds, from a thread of its own: no step waits for a disk.

    Args:
        file: what to write; its keys are step, steps_asked (null: the budget is in seconds), loss (of rank 0),
            elapsed_s, eta_s, memory_bytes (resident, of this process) and at (seconds since the epoch).
        spec: how much there is to do.
    """

    def __init__(self, file: Path, spec: RunSpec) -> None:
        self._file, self._spec = file, spec
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
            content = {
                "step": step,
                "steps_asked": self._spec.steps_asked,
                "loss": loss,
                "elapsed_s": elapsed_s,
                "eta_s": remaining_s(self._spec, step, elapsed_s),
                "memory_bytes": _resident_bytes(),
                "at": time.time(),
            }
            with suppress(OSError):  # a full disk must not end a training
                write_json(self._file, content)


def _resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
