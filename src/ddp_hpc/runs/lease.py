"""Who works at a run: an attempt is held by its supervisor for as long as that lives.

Where its process can be seen a supervisor is known by that, elsewhere (another host, another container) by its Slurm
job and by a heartbeat, the date of a file in the folder of the attempt; on another cluster by the heartbeat alone.
Nothing heavy is imported: a supervisor asks before it starts.
"""

import time
from typing import Any

from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.system import deadlines
from ddp_hpc.system.process import lives


class HeldError(RuntimeError):
    """Another supervisor works at the run."""


def alive(attempt: Attempt) -> bool | None:
    """Return whether the supervisor of an attempt that has not ended lives; None: nobody can tell."""
    started = attempt.started
    if not started:  # not there yet, or not to be read
        return not attempt.has_ended and attempt.silent_s() <= deadlines.SILENT_S
    if not {"at", "host", "pid", "process_created"} <= started.keys():
        return False
    if (seen := lives(started)) is not None:
        return seen
    silent = attempt.silent_s() > deadlines.SILENT_S
    if number := started.get("slurm_job"):
        from ddp_hpc.slurm import client

        if client.knows(started):
            active, listed = client.is_active(number), client.queue().job(number)
            if active and silent and listed and listed.run is None:
                return False  # the job is an allocation for many runs: it outlives each of them
            return active if active is not None or silent else True
    return not silent


def take(attempt: Attempt) -> None:
    """Make sure that nobody else works at the run, or raise a HeldError that says who. Of several the first goes on."""
    attempt.beat()
    deadline = time.monotonic() + deadlines.PREDECESSOR_S
    before = [other for other in attempt.run.attempts if other.number < attempt.number]
    while other := next((other for other in before if not other.has_ended and alive(other)), None):
        started = other.started
        if lives(started) is None or time.monotonic() > deadline:
            raise HeldError(
                f"{attempt.run.path.name} is being trained already, by attempt {other.number}: {holder(started)}. "
                "Wait for it or end it; `ddp-hpc status STUDY` shows how far it is"
            )
        time.sleep(0.2)


def holder(started: dict[str, Any]) -> str:
    """Return e.g. `since 2026-01-31T08:00:00+00:00 on node1, pid 4, Slurm job 17`."""
    if not started:
        return "it has just begun"
    cluster = f" of {started['slurm_cluster']}" if started.get("slurm_cluster") else ""
    job = f", Slurm job {started['slurm_job']}{cluster}" if started.get("slurm_job") else ""
    return f"since {started['at']} on {started['host']}, pid {started['pid']}{job}"
