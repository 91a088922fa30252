"""When a run is asked to end before it is through: by a signal, or because its time is nearly over.

Its ranks are told by SIGUSR1, through the launcher: at the next step at which they agree they write a checkpoint and
end. Whoever does not within the time that is left is ended. Nothing heavy is imported.
"""

import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from ddp_hpc.runs.ending import TIME_LIMIT
from ddp_hpc.system.deadlines import AHEAD, LEAVE_S, LEAVE_WARNED_S, WARNED_S
from ddp_hpc.system.process import Fork, heeded

_LEAVE_S = {signal.SIGUSR1: LEAVE_WARNED_S, **dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), LEAVE_S)}


class Interruption:
    """What asks a run to end: signals until `close`, but ignored ones; and the time limit, `time_limit_s` from now."""

    def __init__(self, time_limit_s: float | None) -> None:
        self._began, self._limit_s = time.monotonic(), time_limit_s
        self._heard: dict[int, float] = {}  # signal: when, in the order in which they came
        self._told = False
        self._previous = {number: signal.signal(number, self._hear) for number in heeded(*_LEAVE_S)}

    def _hear(self, number: int, frame: Any) -> None:
        self._heard.setdefault(number, time.monotonic())

    def close(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def pass_on(self, process: subprocess.Popen[bytes] | Fork) -> bool:
        """Tell the ranks if it is time; return whether they have had all the time that there is."""
        now, limit_s = time.monotonic(), self._limit_s
        near = limit_s is not None and now - self._began > limit_s - min(WARNED_S, AHEAD * limit_s)
        if not self._told and (self._heard or near):
            process.send_signal(signal.SIGUSR1)
            self._told = True
        ends = [at + _LEAVE_S[signal.Signals(number)] for number, at in self._heard.items()]
        if limit_s is not None:
            ends.append(self._began + limit_s)
        return bool(ends) and now > min(ends)

    def evidence(self, left: Mapping[str, Any]) -> dict[str, Any]:
        """Return who asked the run to end, as `Evidence` has it.

        `left` is what rank 0 said when the ranks left: others, such as srun, may have told them.
        """
        by = TIME_LIMIT if self._told else None
        if self._heard or (left and not self._told):
            by = signal.Signals(next(iter(self._heard), None) or left.get("signal") or signal.SIGUSR1).name
        after_s = self._heard.get(signal.SIGUSR1, time.monotonic()) - self._began
        return {"left": left, "asked_by": by, "asked_after_s": after_s, "limit_s": self._limit_s}
