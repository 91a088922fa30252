"""Tables and rules for readers: short numbers, nothing for null, what is the same in all rows said once."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.study import Rules


def cell(value: Any) -> str:
    """Return a value for reading: five significant digits, yes or no, nothing for null."""
    if pd.isna(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def readable(frame: pd.DataFrame, hidden: Collection[str] = ()) -> tuple[pd.DataFrame, str]:
    """Return a table as texts, without `hidden` columns, and a note with the columns that hold one value only."""
    kept = [name for name in frame if name not in hidden]
    same = [name for name in kept if len(frame) > 1 and frame[name].nunique(dropna=False) == 1]
    known = [f"{name} {cell(frame[name].iloc[0])}" for name in same if cell(frame[name].iloc[0])]
    texts = frame[[name for name in kept if name not in same]].astype(object).map(cell)
    return texts, f"The same in all rows: {', '.join(known)}." if known else ""


def in_words(rules: Rules) -> list[str]:
    """Return the rules of the judgement as sentences."""
    steps = "one step" if rules.loss_window == 1 else f"{rules.loss_window} steps"
    threshold = "any min_loss" if rules.loss_threshold is None else f"min_loss up to {rules.loss_threshold:g}"
    return [
        f"Of the runs with status ok, all samples seen, {threshold} (over {steps}) and a core for every thread, "
        "the one with the least loss area wins.",
        "Two points are told apart if the 95 % interval of the difference of their areas excludes 0: Welch's from "
        "repeats (two are a weak test); else from a block bootstrap of each curve, which cannot show how one run "
        f"differs from the next, so differences below {100 * rules.area_noise:g} % are not told apart either.",
    ]
