"""When a run is asked to end before it is through: by a signal, or because its time is nearly over.

Its ranks are told by SIGUSR1, through the launcher: at the next step at which they agree they write a checkpoint and
end. Whoever does not within the time that is left is ended. Nothing heavy is imported.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from ddp_hpc.execution.attempt_end import Outcome
from ddp_hpc.system.files import read_json
from ddp_hpc.system.process import INTERRUPTED, Fork

TYPE_CHECKING = False
if TYPE_CHECKING:  # a quick start
    import subprocess
    from typing import Any

# seconds from a signal to when all is ended: Slurm is asked to send SIGUSR1 a minute ahead (`--signal=USR1@60`), and
# kills half a minute after the others
LEAVE_S = {signal.SIGUSR1: 55.0, signal.SIGTERM: 20.0, signal.SIGINT: 20.0, signal.SIGHUP: 20.0}
AHEAD_S, AHEAD = 60.0, 0.1  # so long before the limit the ranks are told, but at most such a part of it
NEAR_S, NEAR = 300.0, 0.25  # a SIGUSR1 so long before the limit, or such a part of it, is taken to be because of it


class Interruption:
    """What asks a run to end. It listens from when it is made until `close`.

    Args:
        time_limit_s: how long the run may take from now; None: any time.
    """

    def __init__(self, time_limit_s: float | None) -> None:
        self._began, self._limit_s = time.monotonic(), time_limit_s
        self._heard: dict[int, float] = {}  # signal: when, in the order in which they came
        self._told = False
        self._previous = {number: signal.signal(number, self._hear) for number in LEAVE_S}

    def _hear(self, number: int, frame: Any) -> None:
        self._heard.setdefault(number, time.monotonic())

    def close(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def pass_on(self, process: subprocess.Popen[bytes] | Fork) -> bool:
        """Tell the ranks if it is time; return whether they have had all the time that there is."""
        now = time.monotonic()
        if not self._told and (self._heard or self._is_near(now)):
            process.send_signal(signal.SIGUSR1)
            self._told = True
        ends = [at + LEAVE_S[signal.Signals(number)] for number, at in self._heard.items()]
        if self._limit_s is not None:
            ends.append(self._began + self._limit_s)
        return bool(ends) and now > min(ends)

    def _is_near(self, now: float) -> bool:
        limit_s = self._limit_s
        return limit_s is not None and now - self._began > limit_s - min(AHEAD_S, AHEAD * limit_s)

    def outcome(self, attempt: Path, checkpoint: Path) -> Outcome | None:
        """Return how the run ended if it was asked to; None if nobody did.

        Args:
            attempt: its journal, where the ranks may say that they were told by others, such as srun.
            checkpoint: the manifest of the run's last checkpoint.
        """
        left = read_json(attempt / INTERRUPTED)
        if not (self._told or self._heard or left):
            return None
        step = read_json(checkpoint).get("step")
        rest = f"the next attempt goes on after step {step}" if step else "there is no checkpoint, it starts anew"
        numbers = {"steps": left.get("steps")}
        if self._told and not self._heard:
            return Outcome("timeout", f"the time limit of {self._limit_s:.0f} s was reached; {rest}", numbers)
        number = next(iter(self._heard), None) or left.get("signal") or signal.SIGUSR1
        name = signal.Signals(number).name
        numbers["signal"] = name  # `states` asks Slurm why, if it was Slurm
        if number != signal.SIGUSR1:
            return Outcome("cancelled", f"{name}: asked to end, or the driver went away; {rest}", numbers)
        if self._limit_s is not None and self._since_heard() > self._limit_s - min(NEAR_S, NEAR * self._limit_s):
            return Outcome("timeout", f"{name}, near the time limit of {self._limit_s:.0f} s; {rest}", numbers)
        return Outcome("preempted", f"{name}: asked to make room; {rest}", numbers)

    def _since_heard(self) -> float:
        return self._heard.get(signal.SIGUSR1, time.monotonic()) - self._began
