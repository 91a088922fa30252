"""The steps of a run by rank: who arrived when, and where the ranks sat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.intervals import Array
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

NOT_RECORDED = "it was not recorded"


@dataclass(frozen=True)
class RankSteps:
    """The counted steps of a run whose phases were told apart; every array is steps x ranks."""

    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["step_s"])


def rank_steps(study_runs: StudyRuns, run: str, names: tuple[str, ...]) -> RankSteps:
    """Return columns of the steps record, and `step_s`, NaN where they are null; warm-up and fused steps left out."""
    steps = study_runs.steps(run)
    counted = steps[~steps["warm_up"].astype(bool)]
    if counted["sampled"].astype("boolean").fillna(False).any():
        counted = counted[counted["sampled"].astype(bool)]
    counted = counted.sort_values(["step", "rank"], kind="stable")
    ranks = int(counted["rank"].nunique()) or 1
    return RankSteps({name: _matrix(counted[name], ranks) for name in {*names, "step_s"}})


def _matrix(values: "pd.Series[Any]", ranks: int) -> Array:
    return np.asarray(values.to_numpy(np.float64, na_value=np.nan)).reshape(-1, ranks)


def provenance(study_runs: StudyRuns, run: str) -> dict[str, Any]:
    """Return on what a finished run was made; empty where its record does not say."""
    return dict(records.read_metadata(study_runs.store.file(run)).get("provenance", {}))


def why_null(facts: Mapping[str, Any], column: str) -> str:
    """Return the reason that the provenance gives for a column that is null."""
    return str(facts.get("null_columns", {}).get(column, NOT_RECORDED))
