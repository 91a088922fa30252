"""Translates the end of a Slurm job to the status of its run, with the reason."""

import re
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a supervisor asks no scheduler
    from ddp_hpc.slurm.client import Record

NEAR_LIMIT = 0.9  # of the memory: a job that was killed so close to it was most likely killed for it

_TAIL_BYTES = 20_000
_MEMORY_WORDS = re.compile(
    r"oom[-_ ]?kill|out[ -]of[ -]memory|exceeded (job |step |virtual )?memory|memory limit.*exceeded"
    r"|OverMemoryKill|being killed.*memory",
    re.IGNORECASE,
)
# srun's, for a node that it cannot reach, or that does not say that its ranks have ended
_NODE_WORDS = re.compile(
    r"node failure on|communication connection failure|timed out waiting for job step to complete"
    r"|unable to contact slurmd|zero bytes were transmitted or received|due to node failure",
    re.IGNORECASE,
)

# in the log of a job that has not come to its training: Snakemake's words for an exception, and what follows them
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception)\b|.*\b(error|command not found|No such file or directory)\b")
_BESIDE = re.compile(r"(Wildcards|Traceback|Attributes)\b.*:|File \"")

# words of a refusal: the controller, or accounting, does not answer
_AWAY = re.compile(
    "contact slurm controller|socket timed out|connection refused|unable to test the validity", re.IGNORECASE
)


def refused(words: str) -> tuple[str, str]:
    """Return status and reason of a run whose job sbatch has refused."""
    return ("launch_failed" if _AWAY.search(words) else "rejected"), words


def ending(job: "Record", seen_bytes: int | None = None) -> tuple[str, str]:
    """Return status and reason of a run whose job, in one of `client.ENDED`, has ended without its supervisor's word.

    `seen_bytes` is the memory that the run was last seen to use on a node; None: unknown.
    """
    name, where = f"Slurm job {job.number}", f" on {job.hosts}" if job.hosts else ""
    by, because = f" by user {job.by}" if job.by else "", f" ({job.reason})" if job.reason else ""
    timeout = "timeout", f"reached its time limit{f' of {job.limit}' if job.limit else ''}: {job.state}"
    node_fail = "node_fail", f"lost a node: {job.state}"
    cancelled = "cancelled", f"was cancelled{by}{because}"
    ends = {
        "OUT_OF_MEMORY": ("oom_host", f"used more memory than it may{_of(job)}: {job.state}"),
        "PREEMPTED": ("preempted", f"had to make room for another: {job.state}"),
        **dict.fromkeys(("TIMEOUT", "DEADLINE"), timeout),
        **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL"), node_fail),
        **dict.fromkeys(("CANCELLED", "REVOKED"), cancelled),
    }
    if job.preempted_at:  # it was given time, and left before that was over
        ends["FAILED"] = "preempted", f"had to make room for another: told to at {job.preempted_at}"
    if job.state in ends:
        status, words = ends[job.state]
        return status, f"{name} {words}{where}"
    if job.state == "COMPLETED":
        return "crashed", f"{name} completed, but left no record"
    return _failed(job, name, where, seen_bytes)


def _first_line(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first line of a text with a match, None if there is none."""
    return next((line.strip() for line in text.splitlines() if pattern.search(line)), None)


memory_words = partial(_first_line, _MEMORY_WORDS)  # in which Slurm or the kernel says that it killed for memory
node_words = partial(_first_line, _NODE_WORDS)  # in which a launcher says that it lost a node


def log_says(job: "Record") -> str:
    """Return the first error in the log of a job, else its last line, as the end of a reason; empty without a log.

    Of a job whose supervisor never began nobody else says why.
    """
    lines = [line.strip() for line in _tail(job.log).splitlines() if line.strip()]
    if not lines:
        return ""
    first = next((number for number, line in enumerate(lines) if _ERROR.match(line)), None)
    told = lines[-1:] if first is None else list(takewhile(lambda line: not _BESIDE.match(line), lines[first:]))
    return f"; its log, {job.log}, says: {' '.join(told)[:400]}"


def _failed(job: "Record", name: str, where: str, seen_bytes: int | None) -> tuple[str, str]:
    """Tell a lack of memory from other failures: Slurm may report it as FAILED with exit code 0:9."""
    how = f"{job.state}, exit code {job.exit_code}:{job.exit_signal}{where}"
    words = memory_words(_tail(job.log))
    if words:
        return "oom_host", f"{name} used more memory than it may{_of(job)}: {how}; its log says: {words[:200]}"
    peak = max(job.peak_bytes or 0, seen_bytes or 0)
    killed = job.exit_signal == 9 or job.exit_code in (9, 137)
    if killed and job.memory_bytes and peak > NEAR_LIMIT * job.memory_bytes:
        return "oom_host", (
            f"{name} was killed with {peak / 1e9:.2f} of {job.memory_bytes / 1e9:.2f} GB in use: most likely for lack "
            f"of memory, but nobody says so ({how})"
        )
    return "crashed", f"{name} failed without a word of its supervisor: {how}"


def _of(job: "Record") -> str:
    return f" ({job.memory_bytes / 1e9:.2f} GB)" if job.memory_bytes else ""


def _tail(file: str | None) -> str:
    """Return the end of a log; empty if it cannot be read here."""
    try:
        with Path(file or "").open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
