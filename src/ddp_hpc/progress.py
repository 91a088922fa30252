"""How far a study is: one line that updates on a terminal, sparse lines in a log."""

import sys
import time
from collections.abc import Sequence

from ddp_hpc.ledger import Ledger, Planned, state_of
from ddp_hpc.statuses import FAILED

SPARSE_S = 15.0


class Progress:
    """Counts the runs that were missing when the study was started."""

    def __init__(self, ledger: Ledger, missing: Sequence[Planned]) -> None:
        self.ledger = ledger
        self.waiting = {planned.run: len(ledger.store.attempts(planned.run)) for planned in missing}
        self.total = len(missing)
        self.failed = 0
        self.began = self.shown = time.monotonic()
        self.line = ""
        self.terminal = sys.stdout.isatty()

    def show(self) -> None:
        """Show where the study stands, if that is news."""
        running = self._look()
        done = self.total - len(self.waiting)
        elapsed = time.monotonic() - self.began
        ended = done - self.failed
        left = f", about {_duration(elapsed / done * len(self.waiting))} left" if done and self.waiting else ""
        failed = f", {self.failed} failed" if self.failed else ""
        now = f"  now {running[0]}" if len(running) == 1 else f"  {len(running)} running" if running else ""
        line = f"{ended} of {self.total} runs trained{failed}, {_duration(elapsed)}{left}{now}"
        if self.terminal:
            width = len(self.line)
            sys.stdout.write("\r" + line.ljust(width))
            self.line = line
        elif time.monotonic() - self.shown >= SPARSE_S:
            sys.stdout.write(line + "\n")
            self.shown = time.monotonic()
        sys.stdout.flush()

    def end(self) -> None:
        """Leave the line."""
        if self.terminal and self.line:
            sys.stdout.write("\r" + " " * len(self.line) + "\r")
            sys.stdout.flush()

    def _look(self) -> list[str]:
        """Drop the runs that have ended since we last looked, and return those that run now."""
        running = []
        store = self.ledger.store
        for run, attempts_before in list(self.waiting.items()):
            if store.finished(run):
                del self.waiting[run]
                continue
            if len(store.attempts(run)) == attempts_before:
                continue
            status = state_of(store, run).status
            if status in FAILED:
                del self.waiting[run]
                self.failed += 1
            elif status == "running":
                running.append(run)
        return running


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
