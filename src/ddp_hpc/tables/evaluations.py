"""The test metric and loss of each run over its steps: every evaluation, the last one too."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ddp_hpc import records
from ddp_hpc.columns import group_columns, rows_of, search_columns
from ddp_hpc.ledger import Ledger
from ddp_hpc.statuses import FINISHED
from ddp_hpc.tables._frame import FLOAT, TEXT, typed, types_of

CAPTION = "Evaluations: metric and loss on the whole test set, over steps, samples and training time."
FOR_READING = False

_MEASURED = {"metric": "test_metric", "loss": "test_loss"}  # as the table names them; the others keep their names


def build(ledger: Ledger) -> pd.DataFrame:
    """Return one row per evaluation of each finished run; a run that was never evaluated has none."""
    runs = ledger.runs
    axes = [*group_columns(runs, ledger.study), *search_columns(ledger.study), "seed"]
    own = {"run": TEXT} | types_of(axes) | {"status": TEXT, "test_metric_name": TEXT}
    measured = types_of(["step", "samples_seen", "t_s"], records.EVALUATIONS)
    types = own | measured | dict.fromkeys(_MEASURED.values(), FLOAT)
    return typed(_evaluations(ledger, runs[runs["status"].isin(FINISHED)][list(own)]), types)


def _evaluations(ledger: Ledger, runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in rows_of(runs):
        if not ledger.store.file(str(row["run"]), "evaluations").is_file():
            continue  # it diverged before the first
        for evaluation in rows_of(ledger.evaluations(str(row["run"])).rename(columns=_MEASURED)):
            yield row | evaluation
