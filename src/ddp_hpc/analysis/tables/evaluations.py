"""The test metric and loss of each run over its steps: every evaluation, the last one too."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import rows_of, run_columns
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._steps import train_samples
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Evaluations: metric and loss on the whole test set, over steps, samples, epochs and training time."
GENERAL = True
FOR_READING = False

_MEASURED = {"metric": "test_metric", "loss": "test_loss"}  # as the table names them; the others keep their names


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per evaluation of each finished run; a run that was never evaluated has none.

    `epoch` is samples_seen over the samples that there are to train on, null where the record does not say; `t_s` the
    training time at that step, without evaluations; `last` is true after a run's last step.
    """
    runs = study_runs.runs
    own = ["run", *run_columns(runs, study_runs.study), "status", "oversubscribed", "test_metric_name"]
    measured = columns("step samples_seen epoch t_s", *_MEASURED.values(), "last")
    finished = runs[runs["status"].isin(FINISHED)]
    return typed(_evaluations(study_runs, finished[[*own, "steps"]]), [*own, *measured])


def _evaluations(study_runs: StudyRuns, runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in rows_of(runs):
        run = str(row["run"])
        if not study_runs.store.file(run, "evaluations").is_file():
            continue  # it diverged before the first
        epoch = train_samples(study_runs, [row])
        for evaluation in rows_of(study_runs.evaluations(run).rename(columns=_MEASURED)):
            seen, last = evaluation["samples_seen"], evaluation["step"] == row["steps"]
            yield row | evaluation | {"epoch": seen / epoch if epoch else None, "last": last}
