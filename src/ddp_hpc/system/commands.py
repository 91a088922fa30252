"""Commands that may be absent or hang, run with a time limit and without input."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended: `code` is None if it was not there or took too long."""

    code: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line that it wrote, of errors if there are any."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with {self.code} and said nothing"


def run(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Said:
    """Run a command without input; end it and all that it started if it takes longer than `timeout_s`."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        return Said(None, "", f"{command[0]}: {error.strerror}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its ranks, which lead groups of their own
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        return Said(None, "", f"no answer within {timeout_s:g} s")
    return Said(process.returncode, out, err)
