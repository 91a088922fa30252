"""How long an epoch takes: over the batch size, where the dataset lies, and whatever else a study varies."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import key_of, ordered, split, varying, with_standing
from ddp_hpc.analysis.intervals import Interval, of_ratio, over_runs
from ddp_hpc.analysis.tables._epochs import UNKNOWN, doubt, ended_well, spread, train_samples
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.analysis.tables._stationarity import of_mean_step
from ddp_hpc.config.comparability import SAME_WORK
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Time of an epoch: the training set once, slow steps included; medians over the complete runs."
ON_REQUEST = True

_TYPES = {
    "runs": INT,
    "steps_per_epoch": FLOAT,
    **dict.fromkeys(("epoch_s", "epoch_low_s", "epoch_high_s"), FLOAT),
    **dict.fromkeys(("gain", "gain_low", "gain_high"), FLOAT),
    "interval_from": TEXT,
    "slow_steps_share": FLOAT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}
Row = dict[str, Any]


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step.

    `epoch_s` is the samples that there are to train on over the samples per second, so a run need not have seen whole
    epochs. `gain` is the epoch with the smallest batch over this one, all else the same. Intervals are over
    the runs, or within the only one (`interval_from`).
    """
    runs = with_standing(study_runs.runs)
    axes = ordered({*varying(runs), "exchange", "world_size", "batch_size"} - SAME_WORK)
    rows = [(key, *_measured(study_runs, group)) for key, group in split(runs, axes)]
    rest = [name for name in axes if name != "batch_size"]
    first: dict[tuple[Any, ...], tuple[int, Interval | None]] = {}
    for key, row, epoch in rows:
        if row["runs"]:
            found = first.get(key_of(key, rest))
            if found is None or key["batch_size"] < found[0]:
                first[key_of(key, rest)] = (key["batch_size"], epoch)
    filled = (key | row | _gain(first.get(key_of(key, rest)), key, epoch) for key, row, epoch in rows)
    return typed(filled, types_of(axes) | _TYPES)


def _measured(study_runs: StudyRuns, group: pd.DataFrame) -> tuple[Row, Interval | None]:
    """Return what was measured of a kind of step, and the time of its epoch."""
    rows, reason = ended_well(group)
    if not rows:
        return {"runs": 0, "reason": reason}, None
    sizes = {train_samples(study_runs, row["run"]) for row in rows}
    samples = sizes.pop() if len(sizes) == 1 else None
    row = {"runs": len(rows), **doubt(rows)}
    if samples is None:
        return row | {"reason": UNKNOWN}, None
    times = [samples / float(one["samples_per_s"]) for one in rows]
    epoch = over_runs(times, of_mean_step(study_runs, rows[0]["run"]) if len(times) == 1 else None)
    steps = samples / (rows[0]["world_size"] * rows[0]["batch_size"])
    return row | {"steps_per_epoch": steps, **spread("epoch", "_s", epoch), "interval_from": epoch.basis}, epoch


def _gain(first: tuple[int, Interval | None] | None, key: Mapping[str, Any], epoch: Interval | None) -> Row:
    """Return how many times as fast as with the smallest batch an epoch is; two times are independent."""
    if first is None or first[1] is None or epoch is None:
        return {}
    if first[0] == key["batch_size"]:
        return {"gain": 1.0}
    return spread("gain", "", of_ratio(first[1], epoch))
