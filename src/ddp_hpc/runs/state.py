"""Where a run stands: from its record, else from its journal, else from Slurm. What nobody knows is not an end."""

import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_hpc.runs import lease
from ddp_hpc.runs.statuses import FAILED, FINISHED
from ddp_hpc.runs.store import Store
from ddp_hpc.slurm import client
from ddp_hpc.slurm.job_end import ending, log_says
from ddp_hpc.system.files import read_json, write_json
from ddp_hpc.system.terminal import duration

_MARK = "slurm.json"  # in results/: without it no question to Slurm slows the commands of those who do not use it


@dataclass(frozen=True)
class State:
    """Where a run stands: a status of `statuses.STATUSES`, its reason, and how many attempts were made.

    Args:
        job: the Slurm job that waits or runs, or of whose end Slurm has told.
        progress: of a running one, what `ProgressFile` has written; empty if nothing yet.
        learned: the end is known from Slurm alone, which forgets: `keep` writes it down.
    """

    status: str
    reason: str | None = None
    attempts: int = 0
    job: str | None = field(default=None, compare=False)
    progress: dict[str, Any] = field(default_factory=dict, compare=False)
    learned: bool = field(default=False, compare=False)


def state_of(store: Store, run: str) -> State:
    """Return where a run stands.

    Raises:
        RecordError: the record cannot be read, or is of another run.
    """
    tried = store.attempts(run)
    if store.finished(run):
        return _finished(store, run, len(tried))
    started = read_json(tried[-1] / "started.json") if tried else {}
    state = _of_attempt(tried[-1], started, len(tried)) if tried else State("missing")
    if state.status in FINISHED:
        if store.finished(run):  # it has just ended
            return _finished(store, run, len(tried))
        told = f"its record was removed; attempt {tried[-1].name} had ended {state.status}"
        state = State("missing", told, len(tried))
    state = _of_newer_job(store, run, state, started) if uses_slurm(store) else state
    return _with_checkpoint(state, store.checkpointed_step(run)) if state.status in FAILED else state


def _with_checkpoint(state: State, step: int | None) -> State:
    """Say where the next attempt goes on, of an end of which only Slurm knows: it does not know of checkpoints."""
    if step is None or "goes on after step" in (state.reason or ""):
        return state
    return replace(state, reason=f"{state.reason}; the next attempt goes on after step {step}")


def record_is_late(store: Store, run: str) -> bool:
    """Return whether a run has ended well and its record is not seen yet: a file system may take a minute."""
    tried = store.attempts(run)
    return bool(tried) and read_json(tried[-1] / "ended.json").get("status") in FINISHED and not store.finished(run)


def uses_slurm(store: Store) -> bool:
    """Return whether jobs of this project may be in a queue: a driver has said so, and Slurm is here."""
    return (store.root / _MARK).exists() and client.is_here()


def mark_slurm(store: Store) -> None:
    """Note that jobs of this project may be in a queue."""
    if not (store.root / _MARK).exists():
        store.root.mkdir(parents=True, exist_ok=True)
        write_json(store.root / _MARK, {"since": datetime.now(UTC).isoformat(timespec="seconds")})


def keep(store: Store, run: str, state: State) -> None:
    """Write an end that nobody else has written into the journal: of the attempt whose job it was, else as a new one.

    Args:
        store: where the run is.
        run: its name.
        state: as `state_of` says (`learned`), or what the driver knows of a job that never came to be.
    """
    tried = store.attempts(run)
    journal = tried[-1] if tried else None
    if journal is None or read_json(journal / "started.json").get("slurm_job") != state.job or state.job is None:
        journal = store.folder(run) / "attempts" / str(int(journal.name) + 1 if journal else 1)
        journal.mkdir(parents=True, exist_ok=True)
        asked = read_json(store.folder(run) / "request.json") or None
        write_json(journal / "started.json", {"slurm_job": state.job, "request": asked})
    said = read_json(journal / "ended.json")
    if said and "signal" not in said:
        return  # its supervisor has given a better reason meanwhile
    said.pop("signal", None)
    now = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(journal / "ended.json", now | said | {"status": state.status, "reason": state.reason})


def stranger(file: Path, owner: str) -> str:
    """Return the words for a record that lies in the folder of another run."""
    return f"{file} is the record of {owner}: delete what was put in the wrong folder, and run the study again"


def _finished(store: Store, run: str, count: int) -> State:
    from ddp_hpc.runs import records

    row = records.read("run", store.file(run), ["run", "status", "reason"]).to_pylist()[0]
    if row["run"] != run:
        raise records.RecordError(stranger(store.file(run), row["run"]))
    return State(row["status"], row["reason"], count)


def _of_attempt(journal: Path, started: dict[str, Any], count: int) -> State:
    """Return the state as the journal of the last attempt has it; a status of FINISHED if it ended as such."""
    ended, number = read_json(journal / "ended.json"), started.get("slurm_job")
    if ended.get("status") in FINISHED:
        return State(ended["status"], ended.get("reason"), count)
    told = _told_by_slurm(journal, number, count) if not ended or "signal" in ended else None
    if ended.get("status") in FAILED:  # if by a signal, Slurm may know better why it was sent
        better = told is not None and told.status not in ("crashed", "running", "queued")
        return told if told and better else State(ended["status"], ended.get("reason"), count)
    alive = lease.alive(journal, started)
    if alive is False:
        if told and told.status not in ("running", "queued"):
            return told
        if not ended and read_json(journal / "ended.json"):  # it ended between our two looks
            return _of_attempt(journal, started, count)
        return State("cancelled", "its supervisor ended without a word: killed, or the machine went down", count)
    if told and told.status == "queued":
        return told
    progress = read_json(journal / "progress.json")
    return State("running", f"{lease.holder(started)}{_doubt(journal, alive)}", count, number, progress)


def _doubt(journal: Path, alive: bool | None) -> str:
    silent_s = lease.silent_s(journal)
    if alive is None:
        return f"; no sign of life for {duration(silent_s)}, and Slurm does not answer: not known whether it still runs"
    return f"; no sign of life for {duration(silent_s)}" if silent_s > lease.SILENT_S else ""


def _told_by_slurm(journal: Path, number: str | None, count: int) -> State | None:
    """Return what has become of an attempt's job: queued again, running, or its end; None if Slurm cannot tell."""
    if not number or not client.is_here():
        return None
    listed = client.queue().job(number)
    if listed and listed.active:
        if listed.waits:
            return State("queued", f"{_waits(listed)}, after Slurm had ended it", count, number)
        return State("running", None, count, number)
    if listed is None and client.queue().problem:
        return None
    told = client.record(number) or (listed and client.Record(number, listed.state))
    if not told or told.state not in client.ENDED:
        return None
    status, reason = ending(told, _seen_bytes(journal, told.nodes or 1))
    return State(status, reason, count, number, learned=True)


def _seen_bytes(journal: Path, nodes: int) -> int | None:
    """Return the memory of a node's ranks, if all take as much as rank 0 was last seen to."""
    seen, ranks = read_json(journal / "progress.json").get("memory_bytes"), read_json(journal / "launch.json")
    return int(seen * ranks.get("world_size", 1) / nodes) if seen else None


def _of_newer_job(store: Store, run: str, state: State, started: dict[str, Any]) -> State:
    """Return what a job says that was submitted after the last attempt; else `state`."""
    if state.status in ("running", "queued"):
        return state
    last = int(started.get("slurm_job") or 0)
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
    status, reason = ending(told)
    says = log_says(told) if status == "crashed" else ""
    status = "launch_failed" if status == "crashed" else status
    return State(status, f"{reason}, before its supervisor began{says}", state.attempts, job.number, learned=True)


def why_queued(state_reason: str | None) -> str:
    """Return why a job waits in Slurm's word, from the reason of its state."""
    return (state_reason or "").partition(" waits")[2].lstrip(":, ") or "no reason is given"


def _waits(job: client.Job) -> str:
    """Return why a job waits, in Slurm's word: `Resources`, `Priority`, `QOSMaxJobsPerUserLimit`, ..."""
    because = f": {job.reason}" if job.reason not in ("None", "") else ""
    return f"Slurm job {job.number} waits{because}"
