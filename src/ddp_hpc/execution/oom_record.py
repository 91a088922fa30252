"""The record of a run that ran out of GPU memory, written by its supervisor."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ddp_hpc.config import spec
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import RunFolder
from ddp_hpc.runs.ending import Ending


def write(run: RunFolder, ending: Ending, report: Mapping[str, Any], wall_s: float) -> None:
    """Write the records of a finding: the curve up to there, as far as the failing rank knew it.

    Args:
        run: where to.
        ending: `oom_gpu`, with the rank's error.
        report: what the rank that failed has left.
        wall_s: seconds from the launch to the end.
    """
    planned = run.plan
    one = spec.load(planned["spec"])
    curve = report.get("curve") or {}
    losses, times = curve.get("rank_loss", []), curve.get("t_s", [])
    alone = one.world_size == 1  # only then is the rank's loss the loss
    steps = {
        "step": list(range(1, len(losses) + 1)),
        "rank": [report.get("rank", 0)] * len(losses),
        "rank_loss": losses,
        "rank_t_s": times,
        "loss": losses if alone else [None] * len(losses),
        "t_s": times if alone else [None] * len(losses),
        "warm_up": [False] * len(losses),
        "sampled": [False] * len(losses),
    }
    row = one.columns() | {
        "run": planned["run"],
        "spec_hash": planned["spec_hash"],
        "code_hash": planned["code_hash"],
        "status": ending.status,
        "reason": ending.reason,
        "samples_asked": one.samples_asked,
        "samples_seen": report["steps"] * one.global_batch_size if report.get("steps") is not None else None,
        "steps": report.get("steps"),
        "wall_s": wall_s,
        "first_loss": losses[0] if losses and alone else None,
        "min_loss": min(losses) if losses and alone else None,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    records.write("steps", steps, run.record("steps"))
    records.write("evaluations", {"step": []}, run.record("evaluations"))
    records.write("gpu", {"t_s": []}, run.record("gpu"))
    notes = {
        "run": planned["run"],
        "provenance": {"host": report.get("host")},
        "spec": planned["spec"],
        "files": planned["files"],
    }
    records.write("run", {name: [value] for name, value in row.items()}, run.record(), notes)
