"""Which runs have a part in who wins: what disturbs any other run changes no winner."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import CROWDED, crowded, decisive, drift_cost, key_of, rows_of, slow_steps_share
from ddp_hpc.analysis.tables._winner_selection import NO_WINNER, ranked_points, with_exclusions
from ddp_hpc.runs.eligibility import AREA, NO_NUMBER
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

BY_LOSSES = {in_words("diverged"), "above threshold", NO_NUMBER}  # why a run is out, however long it took


def contenders(study_runs: StudyRuns, winners: pd.DataFrame, table_of_runs: pd.DataFrame) -> set[str]:
    """Return the names of the runs that win, may win, or might have won if nothing had disturbed them.

    The others are those that their losses exclude and, where the least loss area wins, those that stay behind every
    run of the winner's point and its rivals even without what slow steps and a drift can have cost them. What other
    work on the machine has cost is not known, and of a budget in seconds losses depend on times, too: such runs stay.
    """
    runs = with_exclusions(study_runs).set_index("run", drop=False)
    fixed = runs["samples_asked"].notna()
    out = set(runs.index[fixed & runs["excluded"].isin(BY_LOSSES)])
    if decisive(study_runs.study.rules) == AREA:
        known = ~crowded(runs) & ~(runs["other_trainings"].astype("float64") > 0)
        known &= ~(runs["throttled_by_quota_share"].astype("float64") > CROWDED)
        drifts = drift_cost(table_of_runs.set_index("run").reindex(runs.index))
        area = runs[AREA].astype("float64") * (1 - slow_steps_share(runs)) * (1 - drifts)
        for group in _that_may_win(study_runs, winners):
            inside = runs.index.isin(group["runs"])
            behind = area > runs.loc[group["may_win"], AREA].astype("float64").max()
            out |= set(runs.index[inside & fixed & known & behind])
    return set(runs.index) - out


def _that_may_win(study_runs: StudyRuns, winners: pd.DataFrame) -> Iterator[Mapping[str, Any]]:
    """Yield for each group that has a winner the names of its `runs` and of those that `may_win`."""
    candidates, groups, _, _ = ranked_points(study_runs)
    points = rows_of(candidates)
    for row in rows_of(winners):
        if row["winner"] == NO_WINNER or pd.isna(row["winner"]):
            continue
        rivals = {row["winner"], *str(row["cannot_be_told_from"] or "").split("; ")}
        mine = [point for point in points if key_of(point, groups) == key_of(row, groups)]
        yield {
            "runs": [run for point in mine for run in point["runs"]],
            "may_win": [run for point in mine if point["point"] in rivals for run in point["runs"]],
        }
