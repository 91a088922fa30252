"""Watches over one rank, because a dead rank cannot say why it died.

`python -m ddp_hpc.execution.rank_watchdog ATTEMPT` forks before anything heavy is imported: the child becomes
the rank, the parent waits. A rank that is killed, fails before MPI is up, or ends cleanly too early leaves a report,
and a non-zero exit that makes the launcher end the other ranks. SIGUSR1 is passed on: the rank is to leave a
checkpoint and end.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ddp_hpc.execution import mpi_environment
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.system.deadlines import LEAVE_S
from ddp_hpc.system.files import write_json
from ddp_hpc.system.process import CRASHES, DONE_FD, die_with_parent, heeded, rank_from_environment, remember

BROKEN = 70  # exit code where the rank's own would be 0

_FULL = ", which comes of memory with nothing behind it: most often /dev/shm is full (see `df /dev/shm`)"


def main(attempt: Attempt) -> NoReturn:
    """Fork a rank of an attempt, wait for it, report how it ended."""
    asked, parent, started = remember(signal.SIGUSR1), os.getppid(), attempt.started
    mpi_environment.for_rank(started)
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        die_with_parent(signal.SIGKILL)
        remember(signal.SIGTERM)  # who signals all processes, as Slurm does, leaves it to the watchdog what follows
        os.environ[DONE_FD] = str(start)
        try:
            from ddp_hpc.execution import rank
        except BaseException as error:  # a broken installation on this node, say
            _report(attempt, type(error).__name__, str(error))
            os._exit(1)
        rank.main([str(attempt.path)], asked)
    os.close(start)
    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(child, number))
    if asked:
        os.kill(child, signal.SIGUSR1)
    signal.signal(signal.SIGALRM, lambda number, frame: _end(child, started, signal.SIGTERM))
    signal.signal(signal.SIGTERM, lambda number, frame: _end_soon(child, started, attempt, parent))
    if heeded(signal.SIGINT):
        signal.signal(signal.SIGINT, lambda number, frame: _end(child, started, number))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)  # the child's number may be another process's from now on
    _, status = os.waitpid(child, 0)
    os.set_blocking(end, False)
    try:
        done = os.read(end, 16) == b"done"
    except BlockingIOError:  # a process that the rank started still holds the pipe
        done = False
    code = os.waitstatus_to_exitcode(status)
    if not done:
        # It did not come to our code. Open MPI 5.0 does so now and then under srun, on several nodes: a message of a
        # peer that is through MPI_Init is too early for one that is not (github.com/open-mpi/ompi/issues/12495).
        early = -code in CRASHES and not attempt.process_file(rank_from_environment()).exists()
        why = f"ended with exit code {code} {'and no word of why' if code else 'before the training was done'}"
        if code < 0:
            why = f"killed by {signal.Signals(-code).name}"
        why += " before MPI was up" * early + _FULL * (code == -signal.SIGBUS)
        _report(attempt, None, why, "launch_failed" if early else "crashed", code != 0 and -code not in CRASHES)
    mpi_environment.remove_scratch(started, if_empty=done)
    sys.exit(code if code > 0 else 128 - code if code < 0 else 0 if done else BROKEN)


def _end_soon(child: int, started: Mapping[str, Any], attempt: Attempt, parent: int) -> None:
    """End the rank: at once if another has failed or the launcher is gone, else with time to leave a checkpoint.

    Then it was the scheduler that has sent the signal, to all processes of the job.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: _end(child, started, number))
    if os.getppid() != parent or attempt.has_failed:
        _end(child, started, signal.SIGTERM)
    os.kill(child, signal.SIGUSR1)
    signal.alarm(int(LEAVE_S))


def _end(child: int, started: Mapping[str, Any], number: int) -> NoReturn:
    os.kill(child, signal.SIGKILL)
    mpi_environment.remove_scratch(started)
    os._exit(128 + number)


def _report(
    attempt: Attempt, error: str | None, message: str, status: str = "crashed", by_others: bool = False
) -> None:
    """Say why the rank ended, unless it has said so itself; `by_others`: MPI, or a signal that tells of no fault."""
    rank, host = rank_from_environment(), os.uname().nodename
    file = attempt.report_file(rank)
    if file.exists():
        return
    print(f"rank {rank} on {host}: {f'{error}: ' if error else ''}{message}", file=sys.stderr, flush=True)
    report = {"rank": rank, "host": host, "error": error, "message": message, "at": time.time(), "status": status}
    report["ended_by_others"] = by_others
    with suppress(OSError):  # a full disk: the launcher's last words have it
        write_json(file, report)


if __name__ == "__main__":
    main(Attempt(Path(sys.argv[1])))
