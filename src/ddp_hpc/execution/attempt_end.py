"""How an attempt at a run ended, from what its ranks, its launcher and the kernel left behind."""

from __future__ import annotations

import signal
from pathlib import Path

from ddp_hpc.runs.statuses import STATUSES
from ddp_hpc.system.files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:  # a quick start
    from collections.abc import Sequence
    from typing import Any

KINDS = ("steps", "evaluations", "gpu", "run")  # of records


class Outcome:
    """How an attempt ended: a status, its reason, and what the journal keeps beside (`steps`, `train_s`, ...)."""

    def __init__(self, status: str, reason: str | None = None, numbers: dict[str, Any] | None = None) -> None:
        self.status, self.reason, self.numbers = status, reason, numbers or {}

    @property
    def exit_code(self) -> int:
        """The exit code of the job: 0 for a result or a finding."""
        code = STATUSES[self.status][1]
        return 1 if code is None else code


def complete(attempt: Path) -> bool:
    """Return whether the ranks have left all their records."""
    return all((attempt / name).exists() for name in ("summary.json", *(f"{kind}.parquet" for kind in KINDS)))


def judge(code: int, attempt: Path, tail: Sequence[str], interrupted: Outcome | None = None) -> Outcome:
    """Return the outcome from what the ranks said, else from the launcher's exit code and last words.

    Args:
        code: of the launcher.
        attempt: the journal.
        tail: the last words of the launcher and its ranks.
        interrupted: the outcome if the run was asked to end: ranks that it found in their steps were ended for that.
    """
    first = first_report(attempt)
    if first and not interrupted:
        error = f"{first['error']}: " if first.get("error") else ""
        who = f"rank {first['rank']} on {first['host']}: "
        # it could not write a report, on a full disk say, but has printed what it would have written
        printed = "" if error else next((line for line in tail if line.startswith(who) and "Error: " in line), "")
        reason = printed or f"{who}{error}{first['message']}"
        status = {"oom_gpu": "oom_gpu", "oom_host": "oom_host", "launch": "launch_failed"}.get(first["kind"], "crashed")
        return _memory(Outcome(status, reason, {"steps": first.get("steps")}), tail)
    if complete(attempt) and not first:  # whatever then kept the launcher, the training was done
        summary = read_json(attempt / "summary.json")
        numbers = {key: summary.get(key) for key in ("steps", "train_s", "startup_s", "resumes")}
        if summary.get("resumes"):  # what the run takes in one go; this attempt was the last part of it
            numbers["wall_s"] = summary["wall_s"] - summary["lost_s"]
        return Outcome(summary["status"], summary.get("reason"), numbers)
    if interrupted:
        return interrupted
    said = "; ".join(line.strip(" -*|") for line in tail if line.strip(" -*|"))[-600:] or "it said nothing"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    failed = Outcome("launch_failed", f"the launcher {how}, and no rank left a record or a reason: {said}")
    return _lost_node(_memory(failed, tail), tail)


def _memory(outcome: Outcome, tail: Sequence[str]) -> Outcome:
    """Return `oom_host` if the launcher's last words say that ranks were killed for memory, else `outcome`."""
    if outcome.status in ("crashed", "launch_failed"):
        from ddp_hpc.slurm.job_end import memory_words

        words = memory_words("\n".join(tail))
        if words:
            return Outcome("oom_host", f"{outcome.reason}; the launcher said: {words[:200]}", outcome.numbers)
    return outcome


def _lost_node(outcome: Outcome, tail: Sequence[str]) -> Outcome:
    """Return `node_fail` if the launcher's last words say that it lost a node: Slurm may notice minutes later."""
    if outcome.status == "launch_failed":
        from ddp_hpc.slurm.job_end import node_words

        words = node_words("\n".join(tail))
        if words:
            return Outcome("node_fail", f"a node does not answer: {words[:200]}; {outcome.reason}", outcome.numbers)
    return outcome


def first_report(attempt: Path) -> dict[str, Any]:
    """Return the report of the rank that failed first, empty if none did.

    A rank that was ended because another had failed reports later, and an exception says more than a signal; but one
    that says no more than that another rank has gone is a consequence, whoever was quicker.
    """
    reports = sorted((read_json(file) for file in attempt.glob("rank-*.json")), key=lambda report: report.get("at", 0))
    causes = [report for report in reports if report.get("kind") != "lost"] or reports
    return next((report for report in causes if report.get("error")), causes[0] if causes else {})
