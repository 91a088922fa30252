"""How long a step takes at world sizes that were not measured, how sure that is, and where it cannot be said.

The model is in `analysis/prediction/step_model.py`. Beside each prediction stands by how much the same model is off at
the largest measured world size if it is fitted to the others.
"""

from collections.abc import Iterator, Sequence
from math import nan

import numpy as np
import pandas as pd

from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.prediction.measured import Place
from ddp_hpc.analysis.prediction.step_model import Prediction
from ddp_hpc.analysis.prediction.trust import FARTHEST, Doubt
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Row, doubt, spread
from ddp_hpc.analysis.tables._scaling_lines import Elsewhere, Line, axes_of, scaling_lines
from ddp_hpc.analysis.tables._steps import train_samples
from ddp_hpc.analysis.tables._to_run import as_yaml
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = (
    "Predicted steps: mean seconds of a step and its parts, with 95 % intervals, and the error of the same model at "
    "the largest measured world size, left out of the fit."
)
LEFT_OUT = columns(
    "measured_low_s measured_high_s epoch_low_s epoch_high_s samples_per_s_low samples_per_s_high speedup_low",
    "speedup_high to_run",
)

_COLUMNS = columns(
    "kind batch world_size batch_size nodes runs measured_s measured_low_s measured_high_s",
    "step_s step_low_s step_high_s work_s waiting_s exchange_s epoch_s epoch_low_s epoch_high_s",
    "samples_per_s samples_per_s_low samples_per_s_high",
    "speedup speedup_low speedup_high efficiency interval_from held_out_world_size held_out_error_percent",
    "slow_steps_share oversubscribed reason to_run",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per line and world size: those measured, and 2, 4 and 8 times the largest of them.

    `measured_s` is the mean step of the runs, median over them. `step_s` is the model's, the sum of `work_s`,
    `waiting_s` for the slowest rank, and `exchange_s`, as far as it is exposed. `epoch_s` is the step times the steps
    of the training set. `speedup` is against the model's one
    rank: of times of the same global batch (strong), of samples per second (weak). `held_out_error_percent` is how far
    the model is off at `held_out_world_size`, fitted to the smaller ones. Where nothing can be said `step_s` is null,
    with the `reason`, and in `to_run` the cheapest runs that would change it.
    """
    return predicted(study_runs)


def predicted(
    study_runs: StudyRuns, world_sizes: Sequence[int] | None = None, elsewhere: Elsewhere | None = None
) -> pd.DataFrame:
    """Return the table with other world sizes beside the measured ones, and what is known of the machine."""
    found = scaling_lines(study_runs, elsewhere)
    axes = axes_of(study_runs, found)
    names = [*axes, *(name for name in _COLUMNS if name not in axes)]
    return typed([row for line in found for row in _rows(study_runs, line, world_sizes)], names)


def asked_world_sizes(line: Line, world_sizes: Sequence[int] | None) -> list[int]:
    """Return the measured world sizes of a line and those to predict, 2, 4 and 8 times the largest if none is given.

    On a line of a batch that was not measured these are, if none is given, those with other batches, too.
    """
    if world_sizes is not None:
        return sorted({*line.measured, *world_sizes})
    return sorted({*line.counts, *(max(line.counts, default=1) * times for times in (2, 4, FARTHEST))})


def _rows(study_runs: StudyRuns, line: Line, world_sizes: Sequence[int] | None) -> Iterator[Row]:
    epoch = train_samples(study_runs, line.good[:1])
    for world_size in asked_world_sizes(line, world_sizes):
        batch = line.batch_at(world_size)
        about = dict(line.key) | {"kind": line.kind, "batch": line.batch, "world_size": world_size}
        about |= {"batch_size": int(batch) if batch == int(batch) else None}
        found = about | measured_columns(line, world_size) | _predicted(study_runs, line, world_size)
        yield found | (_epoch(found, epoch / (world_size * batch)) if epoch and "step_s" in found else {})


def _epoch(found: Row, steps: float) -> Row:
    """Return how long an epoch of so many steps takes."""
    return {f"epoch{end}_s": steps * found[f"step{end}_s"] for end in ("", "_low", "_high")}


def measured_columns(line: Line, world_size: int) -> Row:
    """Return what was measured at a world size, if anything."""
    rows = line.measured.get(world_size, [])
    if not rows:
        return {"runs": 0}
    steps = over_runs([row["train_s"] / row["steps"] for row in rows])
    return {"runs": len(rows)} | spread("measured", "_s", steps) | doubt(rows)


def _predicted(study_runs: StudyRuns, line: Line, world_size: int) -> Row:
    why = line.doubt(world_size)
    if why:
        return {"reason": why.reason, "to_run": as_yaml(study_runs, line, why.to_run)}
    place, alone = line.place(world_size), line.place(1)
    assert line.model
    assert isinstance(place, Place)
    found, checked = line.model.predict(place), line.held_out
    step = found.interval()
    samples = world_size * place.batch_size
    rate = {"samples_per_s": samples / step.middle}
    rate |= {"samples_per_s_low": samples / step.high, "samples_per_s_high": samples / step.low}
    return {
        "nodes": place.nodes,
        **spread("step", "_s", step),
        "work_s": found.middle.work_s,
        "waiting_s": found.middle.waiting_s,
        "exchange_s": found.middle.exchange_s,
        **rate,
        **_speedup(line, found, world_size, alone),
        "interval_from": step.basis,
        "held_out_world_size": checked.world_size,
        "held_out_error_percent": checked.error_percent,
        "reason": checked.reason,
    }


def _speedup(line: Line, found: Prediction, world_size: int, alone: Place | Doubt) -> Row:
    """Return the speedup against the model's one rank; nothing where that is not told."""
    if line.model is None or isinstance(alone, Doubt) or not line.model.tells_work(alone):
        return {"speedup": nan}
    one, times = line.model.predict(alone), world_size if line.kind == "weak" else 1
    if not found.middle.step_s > 0:
        return {}
    after = found.replicates.step_s
    ratios = np.divide(times * one.replicates.step_s, after, out=np.full(after.shape, nan), where=after > 0)
    middle = times * one.middle.step_s / found.middle.step_s
    speedup = found.interval(ratios, middle)
    return spread("speedup", "", speedup) | {"efficiency": speedup.middle / world_size}
