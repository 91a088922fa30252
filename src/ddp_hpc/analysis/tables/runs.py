"""Every planned run is a row: its spec, how it ended and why, all that was measured, and whether it may win."""

import pandas as pd

from ddp_hpc.analysis.columns import rows_of, varying
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._steps import steadiness
from ddp_hpc.analysis.tables._winner_selection import with_exclusions
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import Study
from ddp_hpc.runs.schema import RUN
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Runs: every planned run, whatever became of it."
GENERAL = True
RANKED = True
READ = columns("steps train_s samples_per_s min_loss final_loss loss_area_loss_s test_metric status reason")

_STEADY = ("step_low_s", "step_high_s", "drift_percent", "drifting", "slow_ranks")
_FOR_PROGRAMS = ("attempts", "step_low_s", "step_high_s", "drift_percent", "time_before_s")


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned run, in the order of the plan; the spec columns that vary stand first.

    `min_loss` is over the study's `loss_window`; `excluded` says why the run may not win and is null if it may.
    `step_low_s` and `step_high_s` are the 95 % interval of the median step within that run (`intervals.of_median`),
    `drift_percent` the trend of its steps from the first to the last, `drifting` whether that is beyond their noise,
    `slow_ranks` names ranks whose own work takes longer than that of the others; null where it is not known.
    """
    runs = with_exclusions(study_runs)
    steady = typed((steadiness(study_runs, row) for row in rows_of(runs)), _STEADY)
    runs = pd.concat([runs, steady.set_axis(runs.index)], axis="columns")
    runs["excluded"] = runs["excluded"].replace("", pd.NA)
    front = [*(varying(runs) or ["world_size"]), "status", "reason", "excluded"]
    back = [name for name in SPEC_COLUMNS if name not in front]
    middle = [name for name in runs if name not in {*front, *back, "run", "spec_hash", "code_hash"}]
    return runs[[*front, *middle, *back, "run", "spec_hash", "code_hash"]].copy()


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: all measurements but a few."""
    return [name for name in [*RUN.names, *_FOR_PROGRAMS] if name not in {*SPEC_COLUMNS, *READ}]
