"""The loss area of every point of the search, and whether it may win: what heat maps and bars are drawn from."""

import pandas as pd

from ddp_hpc.columns import rows_of
from ddp_hpc.ledger import Ledger
from ddp_hpc.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.tables._judge import judged_points

CAPTION = "Loss areas: every point of the search, the median over its repeats."

_TYPES = {
    "point": TEXT,
    "repeats": INT,
    "loss_area_loss_s": FLOAT,
    "min_loss": FLOAT,
    "oversubscribed": FLAG,
    "excluded": TEXT,
}


def build(ledger: Ledger) -> pd.DataFrame:
    """Return one row per planned point; `excluded` says why it may not win and is empty if it may."""
    candidates, groups, search = judged_points(ledger)
    return typed(rows_of(candidates), types_of([*groups, *search]) | _TYPES)
