"""What the threshold lets through by luck: winners by the study's rule, and by losses averaged over enough samples.

The least loss of single batches says little where a batch is small: a run that has learnt nothing has, among thousands
of batches of eight, one that is easy. Averaged over 256 samples, no lucky batch brings a run under the threshold.
"""

import pandas as pd

from ddp_hpc.analysis.columns import decisive, key_of, rows_of
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Row
from ddp_hpc.analysis.tables._winner_selection import pick_winners, ranked_points
from ddp_hpc.analysis.tables.winners import ENOUGH_SAMPLES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = f"Windows of the loss: who wins by the rule, and with losses averaged over {ENOUGH_SAMPLES} samples at least."
RANKED = True

_COLUMNS = columns(
    "points eligible_points winner winner_over_samples eligible_points_over_samples only_by_luck winner_changes"
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per group: its winner by the rule of the study, and with the loss averaged over enough samples.

    `only_by_luck` lists the points that may win by the rule alone: no mean over so many samples comes down to the
    threshold.
    """
    _, groups, _, _ = ranked_points(study_runs)
    by_rule, over_samples = (_winners(study_runs, samples) for samples in (1, ENOUGH_SAMPLES))
    rows = []
    for key, (winner, open_) in by_rule.items():
        other, still = over_samples[key]
        rows.append(
            dict(zip(groups, key, strict=True))
            | {
                "points": winner["points"],
                "eligible_points": winner["eligible_points"],
                "winner": winner["winner"],
                "winner_over_samples": other["winner"],
                "eligible_points_over_samples": other["eligible_points"],
                "only_by_luck": "; ".join(point for point in open_ if point not in still) or None,
                "winner_changes": winner["winner"] != other["winner"],
            }
        )
    return typed(rows, [*groups, *_COLUMNS])


def _winners(study_runs: StudyRuns, samples: int) -> dict[tuple[object, ...], tuple[Row, list[str]]]:
    """Return for each group its row of the table of winners, and the points that may win."""
    candidates, groups, search, time = ranked_points(study_runs, samples)
    rules, looks = study_runs.study.rules, len(study_runs.study.looks)
    found = pick_winners(candidates, groups, search, rules.area_noise, time, by=decisive(rules), looks=looks)
    fit: dict[tuple[object, ...], list[str]] = {}
    for row in rows_of(candidates[candidates["excluded"] == ""]):
        fit.setdefault(key_of(row, groups), []).append(str(row["point"]))
    return {key_of(row, groups): (row, fit.get(key_of(row, groups), [])) for row in rows_of(found)}
