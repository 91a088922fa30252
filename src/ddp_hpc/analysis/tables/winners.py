"""The winner of each group: complete, below the threshold, not oversubscribed, least loss area; and how sure that is.

Repeats of a point are combined: the median of their areas counts, and all must be able to win. `cannot_be_told_from`
lists the points whose area is not larger beyond doubt (see `_winner_selection.compare`).
"""

import pandas as pd

from ddp_hpc.analysis.columns import search_columns
from ddp_hpc.analysis.tables._winner_selection import numbers, pick_winners, ranked_points
from ddp_hpc.config.study import Study
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Winners: the point with the least loss area of each group, and those that cannot be distinguished from it."
GENERAL = True
RANKED = True
COUNTS = ("repeats", "cannot_be_told_from_count", "excluded_points", "runs", "excluded_runs", "winner_runs")


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per group: its winner, the margin to the second, who cannot be told from it, who is excluded."""
    candidates, groups, search = ranked_points(study_runs)
    return pick_winners(candidates, groups, search, study_runs.study.rules.area_noise)


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: `winner` names what is searched."""
    search = search_columns(study)
    return [*search, *(f"{name}_{end}" for name in numbers(search) for end in ("low", "high")), *COUNTS]
