"""The loss area of every point of the search, and whether it may win: what heat maps and bars are drawn from."""

import pandas as pd

from ddp_hpc.analysis.columns import rows_of, search_columns, slow_steps_share
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._winner_selection import ranked_points
from ddp_hpc.config.study import Study
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Loss areas: every point of the search, the median over its repeats."
GENERAL = True

RANKED = True

_COLUMNS = columns(
    "point repeats loss_area_loss_s standard_error_loss_s min_loss slow_steps_share oversubscribed excluded"
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point.

    `excluded` says why it may not win, null if it may; `standard_error_loss_s` is from its repeats, else from the
    noise of time, null where that is not known or it may not win; `slow_steps_share` is the largest of its repeats.
    """
    candidates, groups, search, _ = ranked_points(study_runs)
    share = slow_steps_share(study_runs.runs.set_index("run"))
    candidates["slow_steps_share"] = [float(share[runs].max()) for runs in candidates["runs"]]
    candidates["standard_error_loss_s"] = [area.error if area else None for area in candidates["area"]]
    candidates["excluded"] = candidates["excluded"].replace("", None)
    return typed(rows_of(candidates), [*groups, *search, *_COLUMNS])


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: a point names what is searched."""
    return [*search_columns(study), "oversubscribed"]
