"""The record of a run that ran out of GPU memory, written by its supervisor."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ddp_hpc.config import spec
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.runs.ending import Ending


def write(attempt: Attempt, ending: Ending, report: Mapping[str, Any], wall_s: float) -> None:
    """Write the records of a finding that took `wall_s`: the curve up to there, as the failing rank has reported it."""
    planned = attempt.run.plan
    one = spec.load(planned["spec"])
    curve = report.get("curve") or {}
    losses, times = curve.get("rank_loss", []), curve.get("t_s", [])
    alone = one.world_size == 1  # only then is the rank's loss the loss
    steps = {
        "step": list(range(1, len(losses) + 1)),
        "rank": [report.get("rank", 0)] * len(losses),
        "rank_loss": losses,
        "rank_t_s": times,
        **({"loss": losses, "t_s": times} if alone else {}),
        **dict.fromkeys(("warm_up", "sampled"), [False] * len(losses)),
    }
    row = one.columns() | {
        **{name: planned[name] for name in ("run", "spec_hash", "code_hash")},
        "status": ending.status,
        "reason": ending.reason,
        "samples_asked": one.samples_asked,
        "samples_seen": None if report.get("steps") is None else report["steps"] * one.global_batch_size,
        "steps": report.get("steps"),
        "wall_s": wall_s,
        "first_loss": losses[0] if losses and alone else None,
        "min_loss": min(losses) if losses and alone else None,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    records.write("steps", steps, attempt.record("steps"))
    for kind in ("evaluations", "gpu"):
        records.write(kind, {}, attempt.record(kind))
    notes = {name: planned[name] for name in ("run", "spec", "files")} | {"provenance": {"host": report.get("host")}}
    records.write("run", {name: [value] for name, value in row.items()}, attempt.record(), notes)
