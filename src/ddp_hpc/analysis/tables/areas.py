"""The loss area of every point of the search, and whether it may win: what heat maps and bars are drawn from."""

import pandas as pd

from ddp_hpc.analysis.columns import rows_of, search_columns, slow_steps_share
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.analysis.tables._selection import judged_points
from ddp_hpc.config.study import Study
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Loss areas: every point of the search, the median over its repeats."

JUDGED = True

_TYPES = {
    "point": TEXT,
    "repeats": INT,
    "loss_area_loss_s": FLOAT,
    "standard_error_loss_s": FLOAT,
    "min_loss": FLOAT,
    "slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "excluded": TEXT,
}


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point.

    `excluded` says why it may not win, null if it may; `standard_error_loss_s` is from its repeats, else from its
    curve, null where it may not win; `slow_steps_share` is the largest of its repeats.
    """
    candidates, groups, search = judged_points(study_runs)
    share = slow_steps_share(study_runs.runs.set_index("run"))
    candidates["slow_steps_share"] = [float(share[runs].max()) for runs in candidates["runs"]]
    candidates["standard_error_loss_s"] = [area.error if area else None for area in candidates["area"]]
    candidates["excluded"] = candidates["excluded"].replace("", None)
    return typed(rows_of(candidates), types_of([*groups, *search]) | _TYPES)


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: a point names what is searched."""
    return [*search_columns(study), "oversubscribed"]
