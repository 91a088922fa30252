"""Where the time of a step goes: the phases of a step, in seconds, by world size, exchange and batch size."""

from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import ordered, split, varying, with_standing
from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.analysis.tables._stationarity import of_median_step
from ddp_hpc.config.comparability import SAME_WORK
from ddp_hpc.config.study import Study
from ddp_hpc.profiling.phases import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Phases of a step in seconds: medians over the complete runs; the learning rate and the seed change no work."

_EXPOSED = ("exchange_exposed_low_s", "exchange_exposed_high_s")
_PARTS = ("forward_backward_s", "wait_s", "move_s", "exchange_busy_s")


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step: median phases over all its runs with status ok, null where there is none.

    `step_s` is the median step, with the least and the largest of the runs, and its 95 % interval, `step_low_s` to
    `step_high_s`, as that of `exchange_exposed_s`: over the runs, or within the only one (`interval_from`).
    `mean_step_s` is the training time over the steps, which speedups compare: what it is longer than the median was
    lost in slow steps; `slow_steps_share` is the largest of the runs. `exchange_share` is exchange_exposed_s over the
    sum of the phases. Medians do not add up: the phases sum to the step within one run's step only.
    """
    runs = with_standing(study_runs.runs)
    axes = ordered({*varying(runs), "exchange", "world_size", "batch_size"} - (SAME_WORK - {"budget"}))
    spread = ["step_least_s", "step_largest_s", "step_low_s", "step_high_s"]
    columns = ["step_s", *spread, "mean_step_s", *PHASES, *_PARTS, *_EXPOSED, "exchange_share"]
    types = types_of(axes) | {"runs": INT} | dict.fromkeys(columns, FLOAT)
    types |= {"interval_from": TEXT, "slow_steps_share": FLOAT, "oversubscribed": FLAG}
    return typed((key | _row(study_runs, rows[rows["status"] == "ok"]) for key, rows in split(runs, axes)), types)


def _row(study_runs: StudyRuns, ended: pd.DataFrame) -> dict[str, Any]:
    medians = {name: ended[name].median() for name in ("step_s", *PHASES, *_PARTS)}
    known = [medians[name] for name in (*PHASES, "forward_backward_s") if pd.notna(medians[name])]
    exposed = medians["exchange_exposed_s"]
    steps = ended["step_s"].dropna().astype(float).tolist()
    alone = of_median_step(study_runs, ended["run"].iloc[0]) if len(steps) == 1 else None
    step = over_runs(steps, alone)
    moved = over_runs(ended["exchange_exposed_s"].dropna().astype(float).tolist())
    return medians | {
        "runs": len(ended),
        "step_low_s": step.low,
        "step_high_s": step.high,
        **dict(zip(_EXPOSED, (moved.low, moved.high), strict=True)),
        "interval_from": step.basis if steps else None,
        "step_least_s": ended["step_s"].min(),
        "step_largest_s": ended["step_s"].max(),
        "mean_step_s": (ended["train_s"] / ended["steps"]).astype(float).median(),
        "exchange_share": exposed / sum(known) if pd.notna(exposed) and sum(known) > 0 else None,
        "slow_steps_share": ended["slow_steps_share"].max(),
        "oversubscribed": bool(ended["oversubscribed"].fillna(False).any()) if len(ended) else None,
    }


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    return ["step_least_s", "step_largest_s", "exchange_busy_s", *_EXPOSED, "slow_steps_share"]
