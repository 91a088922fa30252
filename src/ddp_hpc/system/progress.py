"""Progress lines: one that is updated on a terminal, a few in a log."""

import shutil
import sys
import time
from typing import TextIO

RENEW_S = 0.2
CLEAR = "\r\x1b[K"


class ProgressLine:
    """The line of one activity, on standard output or `stream`.

    Plain writes and no display library: a rank shows its line between two steps that are timed. In a log there are
    lines, `sparse_s` apart, the first after as long or `at_once`. `on_terminal`: one lies behind the stream though that
    does not say so, e.g. at the other end of mpirun's pipe.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        sparse_s: float = 15.0,
        on_terminal: bool | None = None,
        at_once: bool = False,
    ) -> None:
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty() if on_terminal is None else on_terminal
        self._every_s = RENEW_S if self._terminal else sparse_s
        self._next = time.monotonic() + (0 if at_once or self._terminal else sparse_s)
        self._shown = False

    @property
    def is_due(self) -> bool:
        """Whether the next `show` writes."""
        return time.monotonic() >= self._next

    def show(self, text: str, last: bool = False) -> None:
        """Write `text`, if it is time to or if it is the last."""
        if not (last or self.is_due):
            return
        self._next = time.monotonic() + self._every_s
        if self._terminal:
            self._stream.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            self._shown = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self, keep: bool = False) -> None:
        """Leave the line: what comes next takes its place or, to keep it, begins a new one."""
        if self._shown:
            self._stream.write("\n" if keep else CLEAR)
            self._stream.flush()
            self._shown = False
