"""Watches over one rank, because a dead rank cannot say why it died.

`python -m ddp_hpc.shepherd ATTEMPT` forks before anything heavy is imported: the child becomes the rank, the parent
waits. A rank that is killed, fails before MPI is up, or ends cleanly too early leaves a report, and a non-zero exit
that makes the launcher end the other ranks.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from ddp_hpc._process import DONE_FD, die_with_parent, rank_from_environment, write_json

BROKEN = 70  # exit code where the rank's own would be 0


def main() -> NoReturn:
    """Fork a rank, wait for it, report how it ended."""
    attempt = Path(sys.argv[1])
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        die_with_parent(signal.SIGKILL)
        os.environ[DONE_FD] = str(start)
        from ddp_hpc import rank

        rank.main([str(attempt)])
        os._exit(0)  # rank.main ends the process itself; without b"done" this counts as too early
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
        _report(attempt, child, code)
    sys.exit(code if code > 0 else 128 - code if code < 0 else 0 if done else BROKEN)


def _end(child: int, number: int) -> NoReturn:
    os.kill(child, signal.SIGKILL)
    os._exit(128 + number)


def _report(attempt: Path, pid: int, code: int) -> None:
    rank = rank_from_environment()
    if (attempt / f"rank-{rank}.json").exists():
        return  # it has said why itself
    if code < 0:
        message = f"killed by {signal.Signals(-code).name}"
    elif code == 0:
        message = "ended with exit code 0 before the training was done"
    else:
        message = f"ended with exit code {code} and no word of why"
    host = os.uname().nodename
    print(f"rank {rank} on {host}: {message}", file=sys.stderr, flush=True)
    kind = "killed" if code == -signal.SIGKILL else "error"
    report = {
        "rank": rank,
        "host": host,
        "pid": pid,
        "error": None,
        "message": message,
        "at": time.time(),
        "kind": kind,
    }
    write_json(attempt / f"rank-{rank}.json", report)


if __name__ == "__main__":
    main()
