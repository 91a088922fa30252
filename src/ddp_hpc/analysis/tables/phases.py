"""Where the time of a step goes: the phases of a step, in seconds, by world size, exchange and batch size."""

import pandas as pd

from ddp_hpc.analysis.columns import step_columns, with_standing
from ddp_hpc.analysis.intervals import of_median, over_runs
from ddp_hpc.analysis.tables._frame import columns, known, median
from ddp_hpc.analysis.tables._groups import Group, Row, by_group, spread
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Phases of a step in seconds: medians over the complete runs; the learning rate and the seed change no work."
GENERAL = True
LEFT_OUT = columns(
    "step_least_s step_largest_s exchange_busy_s exchange_exposed_low_s exchange_exposed_high_s slow_steps_share"
)

_PARTS = ("forward_backward_s", "wait_s", "move_s", "exchange_busy_s")
_COLUMNS = columns(
    "runs step_s step_least_s step_largest_s step_low_s step_high_s mean_step_s",
    *PHASES,
    *_PARTS,
    "exchange_exposed_low_s exchange_exposed_high_s exchange_share interval_from slow_steps_share oversubscribed",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step: median phases over all its runs with status ok, null where there is none.

    `step_s` is the median step, with the least and the largest of the runs, and its 95 % interval, `step_low_s` to
    `step_high_s`, as that of `exchange_exposed_s`: over the runs, or within the only one (`interval_from`).
    `mean_step_s` is the training time over the steps, which speedups compare: what it is longer than the median was
    lost in slow steps; `slow_steps_share` is the largest of the runs. `exchange_share` is exchange_exposed_s over the
    sum of the phases. Medians do not add up: the phases sum to the step within one run's step only.
    """
    runs = with_standing(study_runs.runs)
    return by_group(study_runs, runs, step_columns(runs, free={"budget"}), _COLUMNS, _measured)


def _measured(group: Group) -> Row:
    medians = {name: group.median(name) for name in (*PHASES, *_PARTS)}
    whole = sum(known(medians[name] for name in (*PHASES, "forward_backward_s")))
    exposed = medians["exchange_exposed_s"]
    steps = known(row["step_s"] for row in group.ended)
    step = group.over_runs(steps, of_median)
    return {
        **spread("exchange_exposed", "_s", over_runs(known(row["exchange_exposed_s"] for row in group.ended))),
        **medians,
        **spread("step", "_s", step, steps),
        "interval_from": step.basis if steps else None,
        "mean_step_s": median(row["train_s"] / row["steps"] for row in group.ended),
        "exchange_share": exposed / whole if exposed is not None and whole > 0 else None,
    }
