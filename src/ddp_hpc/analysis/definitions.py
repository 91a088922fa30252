"""Unit and meaning of a column: as the records define it, else by its name."""

import re

from ddp_hpc.runs.schema import SCHEMAS

UNITS = {  # by how a name ends
    "samples_per_s": "samples/s",
    "samples_per_s_per_rank": "samples/s",
    "metric_per_s": "1/s",
    "_loss_s": "loss x s",
    "_bytes_per_s": "B/s",
    "_us": "us",
    "_ms": "ms",
    "_gb_per_s": "GB/s",
    "_s": "s",
    "_j": "J",
    "_w": "W",
    "_mhz": "MHz",
    "_bytes": "B",
    "_percent": "%",
}
# what the table of runs holds beside the records, or judges otherwise
DERIVED = {
    "status": "how the run ended: ok, diverged, oom_gpu, beaten, or why it has no result",
    "min_loss": "least mean loss over the study's loss_window",
    "time_to_s": "training time at the first evaluation that had the test metric of winner_by; null if none had",
    "time_before_s": "training time at the evaluation before that, 0 if it was the first; at the last if none had it",
    "excluded": "why the run may not win; blank if it may",
    "slow_steps_share": "share of train_s beyond steps x step_s: near 0 on a quiet machine",
    "step_low_s": "low end of the 95 % interval of step_s, within this run",
    "step_high_s": "high end of the 95 % interval of step_s, within this run",
    "drift_percent": "trend of the step times from the first step to the last, of the first",
    "drifting": "that trend is beyond the noise of the steps, and at least 5 %",
    "slow_ranks": "ranks whose own work takes longer than that of the others by 10 % or more; blank if none does",
    "attempts": "how often the run was started",
}
_END = re.compile(r"_(low|high|least|largest)$")


def about(name: str, kind: str | None = None) -> tuple[str, str]:
    """Return unit and meaning of a column of this kind of record or, without one, of a table; empty if not known."""
    for one in (kind,) if kind else ("run", "steps", "evaluations"):
        if name in SCHEMAS[one].names:
            unit, meaning = (SCHEMAS[one].field(name).metadata[key].decode() for key in (b"unit", b"meaning"))
            return unit, meaning if kind else DERIVED.get(name, meaning)
    if _END.search(name):  # of an interval or a range
        return about(_END.sub("", name))[0], DERIVED.get(name, "")
    return unit_by_name(name), DERIVED.get(name, "")


def unit_by_name(name: str) -> str:
    """Return the unit that the name of a column ends with; empty: none."""
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")
