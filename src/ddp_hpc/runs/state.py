"""The state of a run: from its record, else from its attempts, else from Slurm; a failed query is no end."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ddp_hpc.runs import lease
from ddp_hpc.runs.attempt import Attempt, Store
from ddp_hpc.runs.ending import Ending, classify, written
from ddp_hpc.runs.statuses import FAILED, FINISHED
from ddp_hpc.slurm import client, job_end
from ddp_hpc.system.deadlines import SILENT_S
from ddp_hpc.system.files import write_json
from ddp_hpc.system.terminal import duration

_MARK = "slurm.json"  # in results/: without it no question to Slurm slows the commands of those who do not use it


@dataclass(frozen=True)
class State:
    """Where a run stands: a status of `statuses.STATUSES`, its reason, and how many attempts were made."""

    status: str
    reason: str | None = None
    attempts: int = 0
    job: str | None = field(default=None, compare=False)  # of Slurm: waits or runs, or Slurm alone has told of its end
    progress: dict[str, Any] = field(default_factory=dict, compare=False)  # of a running one, from `ProgressFile`


def state_of(store: Store, run: str) -> State:
    """Return where a run stands. One whose records are damaged is missing, and its reason names the file."""
    folder = store.run(run)
    attempts, damage = folder.attempts, folder.damage()
    ended = folder.has_record and not damage
    state = _of_attempt(attempts[-1], len(attempts)) if attempts and not ended else State("missing")
    if folder.has_record and not damage:  # perhaps it has just ended
        from ddp_hpc.runs import records

        try:
            row = records.read_run(folder.record(), ["status", "reason"]).to_pylist()[0]
        except records.RecordError as error:
            return State("missing", str(error), len(attempts))
        return State(row["status"], row["reason"], len(attempts))
    if damage and state.status in (*FINISHED, "missing"):
        state = State("missing", f"{damage}: the next `ddp-hpc run` trains it again", len(attempts))
    elif state.status in FINISHED:
        told = f"its record was removed; attempt {attempts[-1].number} had ended {state.status}"
        state = State("missing", told, len(attempts))
    if uses_slurm(store) and state.status not in ("running", "queued"):
        last = _job(attempts) if attempts and client.knows(attempts[-1].started) else None
        state = _of_newer_job(store, run, state, int(last or 0))
    step = folder.checkpointed_step if state.status in FAILED else None
    if step is None or "goes on after step" in (state.reason or ""):
        return state
    return replace(state, reason=f"{state.reason}; the next attempt goes on after step {step}")


def record_is_late(store: Store, run: str) -> bool:
    """Return whether a run has ended well and its record is not seen yet: a file system may take a minute."""
    attempts = store.run(run).attempts
    return bool(attempts) and attempts[-1].ended.get("status") in FINISHED and not store.run(run).has_record


def uses_slurm(store: Store) -> bool:
    """Return whether jobs of this project may be in a queue: a driver has said so, and Slurm is here."""
    return (store.root / _MARK).exists() and client.is_here()


def mark_slurm(store: Store) -> None:
    """Note that jobs of this project may be in a queue."""
    if not (store.root / _MARK).exists():
        store.root.mkdir(parents=True, exist_ok=True)
        write_json(store.root / _MARK, {"since": _now()})


def keep_slurm_ends(store: Store, runs: Iterable[str]) -> None:
    """Write down the ends that only Slurm knows, before it forgets."""
    for run in runs:
        state = State("missing") if store.finished(run) else state_of(store, run)
        if state.status in FAILED and state.job:
            keep_end(store, run, Ending(state.status, state.reason), state.job)


def keep_end(store: Store, run: str, ending: Ending, job: str | None = None) -> None:
    """Write down how an attempt ended as Slurm says: the one whose job it was, else one that has not come to begin.

    The ending is that of the job or, without its number, why Slurm has refused it.
    """
    folder = store.run(run)
    attempts = folder.attempts
    if job is None or _job(attempts) != job:
        attempts = [folder.new_attempt()]
        attempts[-1].started = {"slurm_job": job, "request": folder.request or None}
    attempts[-1].slurm_end = {"at": _now(), "status": ending.status, "reason": ending.reason}


def _job(attempts: list[Attempt]) -> str | None:
    """Return the Slurm job of the last attempt."""
    return attempts[-1].started.get("slurm_job") if attempts else None


def _of_attempt(attempt: Attempt, count: int) -> State:
    """Return where an attempt stands; Slurm is asked if nobody has said how it ended, or only that a signal came."""
    evidence, job = written(attempt), _job([attempt])
    if not evidence.ended and not evidence.slurm:
        listed = client.queue().job(job) if job and client.knows(attempt.started) else None
        if listed and listed.waits:
            return State("queued", f"{_waits(listed)}, after Slurm had ended it", count, job)
        alive = lease.alive(attempt)
        if alive is not False:
            doubt = _doubt(attempt, alive)
            return State("running", f"{lease.holder(attempt.started)}{doubt}", count, job, attempt.progress)
        evidence = replace(written(attempt), alive=alive)  # it may have ended between our two looks
    by_signal = evidence.ended is None or "signal" in evidence.ended.numbers
    learned = _end_of_job(attempt, job) if by_signal and not evidence.slurm else None
    ending = classify(replace(evidence, slurm=learned) if learned else evidence)
    assert ending is not None  # it has ended, or its supervisor is dead
    return State(ending.status, ending.reason, count, job if ending is learned else None)


def _doubt(attempt: Attempt, alive: bool | None) -> str:
    silent_s = attempt.silent_s()
    if alive is None:
        return f"; no sign of life for {duration(silent_s)}, and Slurm does not answer: not known whether it still runs"
    return f"; no sign of life for {duration(silent_s)}" if silent_s > SILENT_S else ""


def _end_of_job(attempt: Attempt, job: str | None) -> Ending | None:
    """Return how an attempt's job has ended; None: it has not, or Slurm does not say."""
    if not job or not client.knows(attempt.started):
        return None
    listed = client.queue().job(job)
    if (listed and listed.active) or (listed is None and client.queue().problem):
        return None
    told = client.record(job) or (listed and client.Record(job, listed.state))
    if not told or told.state not in client.ENDED:
        return None
    seen = attempt.progress.get("memory_bytes")  # of rank 0: all ranks are taken to use as much
    return Ending(*job_end.ending(told, seen and int(seen * attempt.launch.get("world_size", 1) / (told.nodes or 1))))


def _of_newer_job(store: Store, run: str, state: State, last: int) -> State:
    """Return what a job says that was submitted after the last attempt, whose job was `last`; else `state`."""
    jobs = [job for job in client.queue().of(os.path.abspath(store.root.parent), run) if int(job.number) > last]
    if not jobs:
        return state
    job = jobs[-1]
    if job.waits:
        return State("queued", _waits(job), state.attempts, job.number)
    if job.active:
        return State("running", f"Slurm job {job.number} has begun, its ranks not yet", state.attempts, job.number)
    if job.state == "COMPLETED" or (state.attempts and not last):  # an attempt without Slurm came later, or before
        return state
    told = client.record(job.number) or client.Record(job.number, job.state)
    status, reason = job_end.ending(told)
    says = job_end.log_says(told) if status == "crashed" else ""
    status = "launch_failed" if status == "crashed" else status
    return State(status, f"{reason}, before its supervisor began{says}", state.attempts + 1, job.number)


def why_queued(state_reason: str | None) -> str:
    """Return why a job waits in Slurm's word, from the reason of its state."""
    return (state_reason or "").partition(" waits")[2].lstrip(":, ") or "no reason is given"


def _waits(job: client.Job) -> str:
    """Return why a job waits, in Slurm's word: `Resources`, `Priority`, `QOSMaxJobsPerUserLimit`, ..."""
    because = f": {job.reason}" if job.reason not in ("None", "") else ""
    return f"Slurm job {job.number} waits{because}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
