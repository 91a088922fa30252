"""Watches over one rank, because a dead rank cannot say why it died.

`python -m ddp_hpc.shepherd ATTEMPT` forks before anything heavy is imported: the child becomes the rank, the parent
waits. A rank that is killed, fails before MPI is up, or ends cleanly too early leaves a report, and a non-zero exit
that makes the launcher end the other ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ddp_hpc._process import DONE_FD, die_with_parent, rank_from_environment, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:  # a quick start
    from typing import NoReturn

BROKEN = 70  # exit code where the rank's own would be 0


def main(attempt: Path) -> NoReturn:
    """Fork a rank, wait for it, report how it ended; `attempt` is its journal."""
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        die_with_parent(signal.SIGKILL)
        os.environ[DONE_FD] = str(start)
        _be_the_rank(attempt)
    os.close(start)
    signal.signal(signal.SIGTERM, lambda number, frame: _end(child, number))
    signal.signal(signal.SIGINT, lambda number, frame: _end(child, number))
    _, status = os.waitpid(child, 0)
    os.set_blocking(end, False)
    try:
        done = os.read(end, 16) == b"done"
    except BlockingIOError:  # a process that the rank started still holds the pipe
        done = False
    code = os.waitstatus_to_exitcode(status)
    if not done:
        _report(attempt, None, _how(code))
    sys.exit(code if code > 0 else 128 - code if code < 0 else 0 if done else BROKEN)


def _be_the_rank(attempt: Path) -> NoReturn:
    try:
        from ddp_hpc import rank
    except BaseException as error:  # a broken installation on this node, say
        _report(attempt, type(error).__name__, str(error))
        os._exit(1)
    rank.main([str(attempt)])


def _end(child: int, number: int) -> NoReturn:
    os.kill(child, signal.SIGKILL)
    os._exit(128 + number)


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code} {'and no word of why' if code else 'before the training was done'}"


def _report(attempt: Path, error: str | None, message: str) -> None:
    """Say why the rank ended, unless it has said so itself."""
    rank, host = rank_from_environment(), os.uname().nodename
    file = attempt / f"rank-{rank}.json"
    if file.exists():
        return
    print(f"rank {rank} on {host}: {f'{error}: ' if error else ''}{message}", file=sys.stderr, flush=True)
    write_json(
        file, {"rank": rank, "host": host, "error": error, "message": message, "at": time.time(), "kind": "error"}
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
