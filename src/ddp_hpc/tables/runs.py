"""Every planned run is a row: its spec, how it ended and why, all that was measured, and whether it may win."""

import pandas as pd

from ddp_hpc.columns import SPEC_COLUMNS, varying
from ddp_hpc.ledger import Ledger
from ddp_hpc.tables._judge import judged

CAPTION = "Runs: every planned run, whatever became of it."
HIDDEN = ("run", "spec_hash", "code_hash", "ended_at", "attempts")


def build(ledger: Ledger) -> pd.DataFrame:
    """Return one row per planned run, in the order of the plan; the spec columns that vary stand first.

    `min_loss` is over the study's `loss_window`; `excluded` says why the run may not win and is empty if it may.
    """
    runs = judged(ledger)
    front = [*(varying(runs) or ["world_size"]), "status", "reason", "excluded"]
    back = [name for name in SPEC_COLUMNS if name not in front]
    middle = [name for name in runs if name not in {*front, *back, "run", "spec_hash", "code_hash"}]
    return runs[[*front, *middle, *back, "run", "spec_hash", "code_hash"]].copy()
