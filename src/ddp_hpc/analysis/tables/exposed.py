"""How much of the exchange nothing is computed beside: found in three ways, and how far they disagree.

- By difference: the step with exchange less the step of one rank without, the same batch per rank. What else more
  ranks make slower, memory for instance, is in it.
- By marks: the clock's `exchange_exposed_s`, mean over the ranks. It counts all that a rank does in that phase.
- By trace: the union of the intervals of the exchange less those of the computation, mean over the ranks of traced
  steps. Tracing makes steps slower, and operators within the exchange count as computation.
"""

import pandas as pd

from ddp_hpc.analysis.columns import step_columns, with_standing
from ddp_hpc.analysis.tables._frame import columns, known, median
from ddp_hpc.analysis.tables._groups import Counterparts, Group, Row, by_group, one_rank
from ddp_hpc.analysis.tables._steps import why_null
from ddp_hpc.config.comparability import EXPOSED_BASELINE
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Exposed exchange per step: by difference, by the clock's marks, and by traces; medians over the runs."
GENERAL = True
LEFT_OUT = ("without_s", "traced_steps", "slow_steps_share")

_COLUMNS = columns(
    "runs step_s without_s by_difference_s by_marks_s by_trace_s disagreement_s disagreement_share traced_steps",
    "slow_steps_share oversubscribed reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step with an exchange, in seconds per step.

    `step_s` is the median step, `without_s` that of one rank with exchange none. `disagreement_s` is the largest less
    the least of what is known, `disagreement_share` that over the step. What is not known is null, with the `reason`.
    """
    runs = with_standing(study_runs.runs)
    alone = Counterparts(one_rank(runs), EXPOSED_BASELINE)
    exchanging = runs[runs["exchange"] != "none"]
    return by_group(study_runs, exchanging, step_columns(runs), _COLUMNS, lambda group: _measured(group, alone))


def _measured(group: Group, alone: Counterparts) -> Row:
    if group.by_itself:
        return group.by_itself
    pairs = alone.pairs(group.ended)
    traces = [seconds for row in group.ended if (seconds := _traced(group.study_runs, row["run"])) is not None]
    step_s = group.median("step_s")
    found = {
        "difference": median(row["step_s"] - base["step_s"] for row, base in pairs),
        "marks": group.median("exchange_exposed_s"),
        "trace": median(seconds for trace in traces for seconds in trace),
    }
    why = {
        "difference": f"exchange none at world_size 1 with the same batch {_fate(group, alone)}",
        "marks": why_null(group.study_runs, group.run, "exchange_exposed_s"),
        "trace": "no exchange was recognised in the traces" if traces else "no run was traced",
    }
    seconds = known(found.values())
    apart_s = max(seconds) - min(seconds) if len(seconds) > 1 else None
    return {
        "step_s": step_s,
        "without_s": median(base["step_s"] for _, base in pairs),
        **{f"by_{way}_s": value for way, value in found.items()},
        "disagreement_s": apart_s,
        "disagreement_share": apart_s / step_s if apart_s is not None and step_s else None,
        "traced_steps": sum(map(len, traces)),
        "reason": "; ".join(f"by {way}: {why[way]}" for way, value in found.items() if value is None) or None,
    }


def _fate(group: Group, alone: Counterparts) -> str:
    found = alone.why_none(group.ended)
    return f"is {found}" if found else "is not planned"


def _traced(study_runs: StudyRuns, run: str) -> list[float] | None:
    """Return the exposed exchange of each traced step, mean over the ranks, NaN where none was recognised."""
    file = study_runs.store.file(run, "trace")
    if not file.exists():
        return None
    trace = records.read("trace", file, ["step", "exposed_s"]).to_pandas()
    return [float(seconds) for seconds in trace.groupby("step")["exposed_s"].mean()]
