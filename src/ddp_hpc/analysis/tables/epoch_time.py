"""How long an epoch takes: over the batch size, where the dataset lies, and whatever else a study varies."""

import pandas as pd

from ddp_hpc.analysis.columns import key_of, rows_of, step_columns, with_standing
from ddp_hpc.analysis.intervals import Interval, of_mean, of_ratio
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Group, Row, by_group, spread
from ddp_hpc.analysis.tables._steps import UNKNOWN_EPOCH, train_samples
from ddp_hpc.config.comparability import OFF_THE_CLOCK
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Time of an epoch: the training set once, slow steps included; medians over the complete runs."

_COLUMNS = columns(
    "runs steps_per_epoch epoch_s epoch_low_s epoch_high_s gain gain_low gain_high interval_from slow_steps_share",
    "oversubscribed reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step.

    `epoch_s` is the samples that there are to train on over the samples per second, so a run need not have seen whole
    epochs. `gain` is the epoch with the smallest planned batch over this one, all else the same that is on the clock;
    null where no run of that has ended well. Intervals are over the runs, or within the only one (`interval_from`).
    """
    runs = with_standing(study_runs.runs)
    axes = step_columns(runs)
    frame = by_group(study_runs, runs, axes, _COLUMNS, _measured)
    rows = rows_of(frame)
    return typed((row | _gain(_smallest(row, rows, axes), row) for row in rows), map(str, frame))


def _measured(group: Group) -> Row:
    samples = train_samples(group.study_runs, group.ended)
    if samples is None:
        return {"reason": UNKNOWN_EPOCH}
    epoch = group.over_runs([samples / float(row["samples_per_s"]) for row in group.ended], of_mean)
    steps = samples / (group.ended[0]["world_size"] * group.ended[0]["batch_size"])
    return {"steps_per_epoch": steps, **spread("epoch", "_s", epoch), "interval_from": epoch.basis}


def _smallest(row: Row, rows: list[Row], axes: list[str]) -> Row:
    """Return the row with the smallest batch, all else the same that is on the clock; of several the most like this."""
    kind, off_the_clock = ([name for name in axes if (name in OFF_THE_CLOCK) == off] for off in (False, True))
    kind.remove("batch_size")

    def order(other: Row) -> tuple[int, bool, bool]:
        alike = key_of(other, off_the_clock) == key_of(row, off_the_clock)
        return other["batch_size"], bool(pd.isna(other["epoch_s"])), not alike

    return min((other for other in rows if key_of(other, kind) == key_of(row, kind)), key=order)


def _gain(first: Row, row: Row) -> Row:
    """Return how many times as fast as with the smallest batch an epoch is; two times are independent."""
    if pd.isna(row["epoch_s"]):
        return {}
    if pd.isna(first["epoch_s"]):
        return {"reason": f"no gain: batch_size {first['batch_size']}: {first['reason']}"}
    if first["batch_size"] == row["batch_size"]:
        return {"gain": 1.0}
    epochs = (
        Interval(one["epoch_s"], one["epoch_low_s"], one["epoch_high_s"], one["interval_from"]) for one in (first, row)
    )
    return spread("gain", "", of_ratio(*epochs))
