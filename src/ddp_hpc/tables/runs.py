"""Every planned run is a row: its spec, how it ended and why, all that was measured, and whether it may win."""

import pandas as pd

from ddp_hpc import records
from ddp_hpc.columns import SPEC_COLUMNS, varying
from ddp_hpc.ledger import Ledger
from ddp_hpc.study import Study
from ddp_hpc.tables._judge import judged

CAPTION = "Runs: every planned run, whatever became of it."
JUDGED = True
READ = (
    "steps",
    "train_s",
    "samples_per_s",
    "min_loss",
    "final_loss",
    "loss_area_loss_s",
    "test_metric",
    "status",
    "reason",
)


def build(ledger: Ledger) -> pd.DataFrame:
    """Return one row per planned run, in the order of the plan; the spec columns that vary stand first.

    `min_loss` is over the study's `loss_window`; `excluded` says why the run may not win and is null if it may.
    """
    runs = judged(ledger)
    runs["excluded"] = runs["excluded"].replace("", pd.NA)
    front = [*(varying(runs) or ["world_size"]), "status", "reason", "excluded"]
    back = [name for name in SPEC_COLUMNS if name not in front]
    middle = [name for name in runs if name not in {*front, *back, "run", "spec_hash", "code_hash"}]
    return runs[[*front, *middle, *back, "run", "spec_hash", "code_hash"]].copy()


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: all measurements but a few."""
    return [name for name in [*records.RUN.names, "attempts"] if name not in {*SPEC_COLUMNS, *READ}]
