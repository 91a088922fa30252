"""How many steps lead to the loss threshold at each global batch, measured and predicted from the noise scale.

The model is in `analysis/prediction/noise_scale.py`. Beside each prediction stands by how much the same model is off at
the largest measured batch if it is fitted to the others.
"""

from collections.abc import Iterator

import pandas as pd

from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables._approaches import NOT_THERE, Approach, approaches, kind_columns
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._goals import to_threshold
from ddp_hpc.analysis.tables._groups import Row, spread
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = (
    "Steps to the loss threshold at each global batch, with the best learning rate: measured, and predicted from the "
    "gradient noise scale, with 95 % intervals."
)
LEFT_OUT = columns("measured_steps_from critical_batch_low critical_batch_high")
_COLUMNS = columns(
    "global_batch_size runs learning_rate measured_steps measured_steps_low measured_steps_high predicted_steps",
    "predicted_steps_low predicted_steps_high least_steps critical_batch critical_batch_low critical_batch_high",
    "critical_batch_of_steps held_out_batch held_out_error_percent doubt reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind and global batch: those measured, half the smallest, 2 to 8 times the largest.

    A training is of one kind whatever its ranks, learning rate and exact exchange. `measured_steps` are those with the
    `learning_rate` that is there in the fewest, median over the seeds; `doubt` says where it may not be the best.
    `predicted_steps` = `least_steps` (1 + `critical_batch` / batch): `critical_batch` is the noise scale that the
    gradients showed on the way, `least_steps` is fitted to the measured steps. `critical_batch_of_steps` is what the
    steps alone would give, from two batches or more. `held_out_error_percent` is how far the model is off at
    `held_out_batch`, fitted to the others.
    """
    names = [name for name in kind_columns(study_runs.runs) if name not in _COLUMNS]
    reached = to_threshold(study_runs)
    found = approaches(study_runs, reached) if reached else []
    return typed([row for one in found for row in _rows(one)], [*names, *_COLUMNS])


def batches(approach: Approach) -> list[int]:
    """Return the global batches of which something is said."""
    measured = [one.way.batch for one in approach.found]
    return sorted({*measured, max(1, measured[0] // 2), *(times * measured[-1] for times in (2, 4, 8))})


def _rows(approach: Approach) -> Iterator[Row]:
    if not approach.found:
        yield {**approach.key, "reason": NOT_THERE}
        return
    measured, model = {one.way.batch: one for one in approach.found}, approach.model
    for batch in batches(approach):
        about = {**approach.key, "global_batch_size": batch, "runs": 0}
        if one := measured.get(batch):
            steps = over_runs(one.way.steps)
            about |= {"runs": len(one.way.steps), "learning_rate": one.learning_rate, "doubt": one.doubt}
            about |= spread("measured_steps", "", steps)
        if why := approach.doubt(batch):
            yield about | {"reason": why}
            continue
        about |= spread("predicted_steps", "", model.interval(batch)) | spread(
            "critical_batch", "", model.critical_batch()
        )
        about |= {"least_steps": model.least_steps(), "critical_batch_of_steps": model.noise_scale_of_steps}
        held_out = model.held_out or (None, None)
        yield about | dict(zip(("held_out_batch", "held_out_error_percent"), held_out, strict=True))
