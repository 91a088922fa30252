"""One line on a terminal, sparse lines in a log."""

import io

from ddp_hpc.system import progress
from ddp_hpc.system.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_a_line_now_and_then(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    log = io.StringIO()
    line = ProgressLine(log, sparse_s=15)
    for second in range(40):
        clock[0] = 100.0 + second
        line.show(f"{second} s")
    line.end()
    assert log.getvalue() == "15 s\n30 s\n"


def test_the_first_and_the_last_line_of_a_log_may_come_at_once():
    log = io.StringIO()
    line = ProgressLine(log, sparse_s=1e9, at_once=True)
    for text in ("first", "second"):
        line.show(text)
    line.show("all done", last=True)
    assert log.getvalue() == "first\nall done\n"


def test_a_terminal_has_one_line_that_fits(monkeypatch):
    monkeypatch.setattr(progress, "RENEW_S", 0)
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal()
    line = ProgressLine(terminal)
    for text in ("a long line of words", "short"):
        line.show(text)
    line.end()
    shown = terminal.getvalue()
    assert "\n" not in shown
    assert [part.removeprefix("\x1b[K") for part in shown.split("\r")[1:]] == ["a long li", "short", ""]


def test_a_line_may_stay_and_one_may_lie_behind_a_pipe():
    pipe = io.StringIO()
    line = ProgressLine(pipe, on_terminal=True)
    line.show("step 400/400", last=True)
    line.end(keep=True)
    assert pipe.getvalue() == "\r\x1b[Kstep 400/400\n"
    quiet = io.StringIO()
    ProgressLine(quiet, on_terminal=True).end(keep=True)
    assert quiet.getvalue() == ""
