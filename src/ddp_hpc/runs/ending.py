"""How an attempt at a run ended: all that is known of it is one value, and one function decides.

The supervisor calls it when the launcher has ended, with what it has seen; whoever asks later, with what the supervisor
wrote, what Slurm says, and whether the supervisor lives.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.runs.statuses import PEER_FAILURE, STATUSES
from ddp_hpc.slurm.job_end import memory_words, node_words
from ddp_hpc.system.deadlines import NEAR, NEAR_S
from ddp_hpc.system.process import CRASHES

_OWN_END = re.compile(r"rank (\d+) on (\S+): (\w*Error): (.*)")  # the last that a rank prints of how it failed
TIME_LIMIT = "time limit"  # what asks a run to end, where it is no signal


@dataclass(frozen=True)
class Ending:
    """A status, its reason, and what else is kept of the end: `steps`, `train_s`, `signal`, ..."""

    status: str
    reason: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code of the job: 0 for a result or a finding."""
        code = STATUSES[self.status][1]
        return 1 if code is None else code


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of an attempt. Its supervisor sees all but the last three, which are known later."""

    refused: str | None = None  # why no rank was started
    launcher: str = "the launcher"
    exit_code: int | None = None  # of it, negative for a signal; None: nobody saw it end
    last_words: Sequence[str] = ()  # of it and its ranks
    last_seen_step: int | None = None  # of rank 0, which says it now and then
    reports: Sequence[Mapping[str, Any]] = ()  # of ranks that failed, the first first
    summary: Mapping[str, Any] = field(default_factory=dict)  # of rank 0; empty: the records are not whole
    asked_by: str | None = None  # the name of the signal that asked the run to end, or `TIME_LIMIT`; None: nothing did
    asked_after_s: float = 0.0  # when that was, since the start
    limit_s: float | None = None  # the supervisor's own time limit
    left: Mapping[str, Any] = field(default_factory=dict)  # what rank 0 said when the ranks left, asked to
    checkpointed_step: int | None = None  # where the next attempt goes on
    oom_kills: int = 0  # how many processes the kernel has killed for memory meanwhile
    ended: Ending | None = None  # what the supervisor has written
    slurm: Ending | None = None  # the end of the job, as Slurm says
    alive: bool | None = None  # whether the supervisor lives; None: not known, or it has ended


def classify(e: Evidence) -> Ending | None:
    """Return how an attempt ended; None: it has not, as far as is known. The first rule that has an answer counts."""
    if e.ended and "signal" not in e.ended.numbers:
        return e.ended
    if e.slurm and not (e.ended and e.slurm.status == "crashed"):
        return e.slurm  # it knows why a signal was sent; that the job then failed is what the supervisor knows better
    if e.ended:
        return e.ended
    if e.alive is False:
        return Ending("cancelled", "its supervisor ended without a word: killed, or the machine went down")
    if e.refused:
        return Ending("launch_failed", e.refused)
    rules = (_failed_rank, _done, _asked_to_end, _failed_launcher)  # by the supervisor, at once
    return next((ending for rule in rules if (ending := rule(e))), None)


def written(attempt: Attempt) -> Evidence:
    """Return what supervisor and driver have written of the end of an attempt."""

    def read(content: dict[str, Any]) -> Ending | None:
        return Ending(content.pop("status"), content.pop("reason", None), content) if "status" in content else None

    return Evidence(ended=read(attempt.ended), slurm=read(attempt.slurm_end))


def first_report(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the report of the rank that failed first, empty if none did.

    A rank that was ended because another had failed reports later, and an exception says more than a signal; but one
    that says no more than that another rank has gone is a consequence, whoever was quicker.
    """
    causes = [report for report in reports if report.get("status") != PEER_FAILURE] or reports
    return next((report for report in causes if report.get("error")), causes[0] if causes else {})


def may_have_lost_another(report: Mapping[str, Any]) -> bool:
    """Tell whether a rank may have ended for the end of another: MPI and Gloo notice it before Slurm does."""
    return report.get("status") == PEER_FAILURE or bool(report.get("ended_by_others"))


def _failed_rank(e: Evidence) -> Ending | None:
    """Ranks that were asked to end, and found in their steps, were ended for that."""
    first = first_report(e.reports) or ({} if e.summary else _printed(e.last_words))
    if not first or e.asked_by:
        return None
    who, error = f"rank {first['rank']} on {first['host']}: ", f"{first['error']}: " if first.get("error") else ""
    # it could not write a report, on a full disk say, but has printed what it would have written
    printed = "" if error else next((line for line in e.last_words if line.startswith(who) and "Error: " in line), "")
    reason = printed or f"{who}{error}{first['message']}"
    status, numbers = first.get("status", "crashed"), {"steps": first.get("steps")}
    if first.get("shared_by"):
        numbers["shared_by"] = first["shared_by"]
    status = "crashed" if status == PEER_FAILURE else status
    # of what a rank says of itself, it has made its status; a GPU's memory is none of the host's
    own = {line.strip() for one in e.reports for line in f"{one.get('traceback')}\n{one.get('message')}".splitlines()}
    by_others = [line for line in e.last_words if line.strip() not in own and not _OWN_END.match(line)]
    if status in ("crashed", "launch_failed") and (words := memory_words("\n".join(by_others))):
        return Ending("oom_host", f"{reason}; the launcher said: {words[:200]}", numbers)
    if status == "crashed" and e.oom_kills:
        return Ending("oom_host", f"{reason}; the kernel killed a process for memory meanwhile", numbers)
    if may_have_lost_another(first) and (words := node_words("\n".join(by_others))):
        return Ending("node_fail", f"a node does not answer: {words[:200]}; {reason}", numbers)
    return Ending(status, reason, numbers)


def _printed(last_words: Sequence[str]) -> Mapping[str, Any]:
    """Return what a rank has printed of how it failed, as its report has it: on a full disk it cannot write that."""
    found = (_OWN_END.fullmatch(line) for line in last_words)
    names = ("rank", "host", "error", "message")
    return next((dict(zip(names, one.groups(), strict=True)) for one in found if one), {})


def _done(e: Evidence) -> Ending | None:
    """Whatever then kept the launcher, the training was done."""
    if not e.summary or e.reports:
        return None
    numbers = {key: e.summary.get(key) for key in ("steps", "train_s", "startup_s", "resumes")}
    if e.summary.get("resumes"):  # what the run takes in one go; this attempt was the last part of it
        numbers["wall_s"] = e.summary["wall_s"] - e.summary["lost_s"]
    return Ending(e.summary["status"], e.summary.get("reason"), numbers)


def _asked_to_end(e: Evidence) -> Ending | None:
    if not e.asked_by:
        return None
    step, numbers = e.checkpointed_step, {"steps": e.left.get("steps")}
    rest = f"the next attempt goes on after step {step}" if step else "there is no checkpoint, it starts anew"
    if e.asked_by == TIME_LIMIT:
        return Ending("timeout", f"the time limit of {e.limit_s:.0f} s was reached; {rest}", numbers)
    numbers["signal"] = e.asked_by
    if e.asked_by != "SIGUSR1":
        return Ending("cancelled", f"{e.asked_by}: asked to end, or the driver went away; {rest}", numbers)
    if e.limit_s is not None and e.asked_after_s > e.limit_s - min(NEAR_S, NEAR * e.limit_s):
        return Ending("timeout", f"SIGUSR1, near the time limit of {e.limit_s:.0f} s; {rest}", numbers)
    return Ending("preempted", f"SIGUSR1: asked to make room; {rest}", numbers)


def _shortened(lines: Sequence[str], length: int = 600) -> str:
    """Return lines as one, without those in the middle if it is long: what is wrong stands first, or last."""
    kept = list(lines)
    while len(kept) > 2 and len("; ".join(kept)) > length:
        del kept[len(kept) // 2]
    if len(kept) < len(lines):
        kept.insert(len(kept) // 2, "...")
    text = "; ".join(kept)
    return text if len(text) <= length else f"{text[: length // 2]} ... {text[-length // 2 :]}"


def _failed_launcher(e: Evidence) -> Ending | None:
    if e.exit_code is None:
        return None
    said = _shortened([line.strip(" -*|") for line in e.last_words if line.strip(" -*|")]) or "it said nothing"
    code = e.exit_code
    killed = code < 0 and -code not in CRASHES  # no launcher fails so: somebody, or something, did that
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    reason = f"{e.launcher} {how}"
    reason += f", its ranks last seen at step {e.last_seen_step}" if e.last_seen_step else ""
    reason += "" if killed else f", and no rank left a record or a reason: {said}"
    if words := memory_words("\n".join(e.last_words)):
        return Ending("oom_host", f"{reason}; the launcher said: {words[:200]}")
    if words := node_words("\n".join(e.last_words)):  # Slurm may notice minutes later
        return Ending("node_fail", f"a node does not answer: {words[:200]}; {reason}")
    if e.oom_kills:
        return Ending("oom_host", f"{reason}; the kernel killed a process for memory meanwhile")
    if killed or e.last_seen_step:
        return Ending("crashed", reason, {"steps": e.last_seen_step})
    return Ending("launch_failed", reason)
