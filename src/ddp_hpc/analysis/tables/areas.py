"""What decides of every point of the search, and whether it may win: what heat maps and bars are drawn from."""

import pandas as pd

from ddp_hpc.analysis.columns import ERRORS, decisive, rows_of, search_columns, slow_steps_share
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._winner_selection import ranked_points
from ddp_hpc.config.study import Study
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Loss areas and what decides: every point of the search, the median over its repeats."
GENERAL = True

RANKED = True


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point, with its loss area and the column that decides (`winner_by`).

    `excluded` says why it may not win, null if it may; the standard error of what decides is from its repeats, else
    from the noise of time, null where that is not known or it may not win; `slow_steps_share` is the largest of its
    repeats.
    """
    by = decisive(study_runs.study.rules)
    candidates, groups, search, _ = ranked_points(study_runs)
    share = slow_steps_share(study_runs.runs.set_index("run"))
    candidates["slow_steps_share"] = [float(share[runs].max()) for runs in candidates["runs"]]
    candidates[ERRORS[by]] = [score.error if score else None for score in candidates["score"]]
    candidates["excluded"] = candidates["excluded"].replace("", None)
    names = columns(
        f"point repeats {by} {ERRORS[by]} loss_area_loss_s min_loss slow_steps_share oversubscribed excluded"
    )
    return typed(rows_of(candidates), dict.fromkeys([*groups, *search, *names]))


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: a point names what is searched."""
    return [*search_columns(study), "oversubscribed"]
