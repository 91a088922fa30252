"""How much of the exchange nothing is computed beside: found in three ways, and how far they disagree.

- By difference: the step with exchange less the step of one rank without, the same batch per rank. What else more
  ranks make slower, memory for instance, is in it.
- By marks: the clock's `exchange_exposed_s`, mean over the ranks. It counts all that a rank does in that phase.
- By trace: the union of the intervals of the exchange less those of the computation, mean over the ranks of traced
  steps. Tracing makes steps slower, and operators within the exchange count as computation.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import key_of, ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, largest, median, typed, types_of
from ddp_hpc.analysis.tables._ranks import provenance, why_null
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import EXPOSED_BASELINE, SAME_WORK, agreeing
from ddp_hpc.config.study import Study
from ddp_hpc.runs import records
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Exposed exchange per step: by difference, by the clock's marks, and by traces; medians over the runs."

WAYS = ("difference", "marks", "trace")
_TYPES = {
    "runs": INT,
    "step_s": FLOAT,
    "without_s": FLOAT,
    **{f"by_{way}_s": FLOAT for way in WAYS},
    "disagreement_s": FLOAT,
    "disagreement_share": FLOAT,
    "traced_steps": INT,
    "slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}
Row = dict[str, Any]


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step with an exchange, in seconds per step.

    `step_s` is the median step, `without_s` that of one rank with exchange none. `disagreement_s` is the largest less
    the least of what is known, `disagreement_share` that over the step. What is not known is null, with the `reason`.
    """
    runs = with_standing(study_runs.runs)
    axes = ordered({*varying(runs), "exchange", "world_size", "batch_size"} - SAME_WORK)
    ended = runs[runs["status"] == "ok"]
    alone = {_key(row): row for row in rows_of(ended[(ended["exchange"] == "none") & (ended["world_size"] == 1)])}
    groups = split(runs[runs["exchange"] != "none"], axes)
    return typed((key | _row(study_runs, rows, alone) for key, rows in groups), types_of(axes) | _TYPES)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return key_of(row, agreeing(EXPOSED_BASELINE))


def _row(study_runs: StudyRuns, group: pd.DataFrame, alone: Mapping[tuple[Any, ...], Row]) -> Row:
    rows = rows_of(group[group["status"] == "ok"])
    if not rows:
        words = ", ".join(sorted({in_words(str(status)) for status in group["status"]}))
        return {"runs": 0, "reason": f"not complete: {words}"}
    if not catalog.constants("exchange", rows[0]["exchange"])["SYNCHRONOUS"]:
        return {"runs": len(rows), "reason": "each rank takes its steps by itself"}
    reasons: dict[str, str] = {}
    pairs = [(row, alone[_key(row)]) for row in rows if _key(row) in alone]
    step_s = median([row["step_s"] for row in rows])
    found: dict[str, float | None] = {
        "difference": median([row["step_s"] - base["step_s"] for row, base in pairs]),
        "marks": median([row["exchange_exposed_s"] for row in rows]),
    }
    if not pairs:
        reasons["difference"] = "exchange none at world_size 1 with the same batch has not run"
    if found["marks"] is None:
        reasons["marks"] = why_null(provenance(study_runs, rows[0]["run"]), "exchange_exposed_s")
    traces = [trace for row in rows if (trace := _traced(study_runs, row["run"])) is not None]
    found["trace"] = median([seconds for trace in traces for seconds in trace])
    if not traces:
        reasons["trace"] = "no run was traced"
    elif found["trace"] is None:
        reasons["trace"] = "no exchange was recognised in the traces"
    known = [seconds for seconds in found.values() if seconds is not None]
    apart_s = max(known) - min(known) if len(known) > 1 else None
    return {
        "runs": len(rows),
        "step_s": step_s,
        "without_s": median([base["step_s"] for _, base in pairs]),
        **{f"by_{way}_s": seconds for way, seconds in found.items()},
        "disagreement_s": apart_s,
        "disagreement_share": apart_s / step_s if apart_s is not None and step_s else None,
        "traced_steps": sum(map(len, traces)),
        "slow_steps_share": largest(row["slow_steps_share"] for row in rows),
        "oversubscribed": any(pd.notna(row["oversubscribed"]) and row["oversubscribed"] for row in rows),
        "reason": "; ".join(f"by {way}: {reason}" for way, reason in reasons.items()) or None,
    }


def _traced(study_runs: StudyRuns, run: str) -> list[float] | None:
    """Return the exposed exchange of each traced step, mean over the ranks, NaN where none was recognised."""
    file = study_runs.store.file(run, "trace")
    if not file.exists():
        return None
    trace = records.read("trace", file, ["step", "exposed_s"]).to_pandas()
    return [float(seconds) for seconds in trace.groupby("step")["exposed_s"].mean()]


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    return ["without_s", "traced_steps", "slow_steps_share"]
