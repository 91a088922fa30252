"""Synchronisation of the gradients, per step and per epoch, over the ranks, and what it costs at one rank.

A step synchronises once, so an epoch does as often as it has batches: more ranks make each synchronisation longer and
need fewer of them (P. Orlob, Parallelization of GPUs based on Horovod, TU Dresden, 2022).
"""

from math import nan

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import step_columns, with_standing
from ddp_hpc.analysis.intervals import Array, of_median
from ddp_hpc.analysis.tables._frame import columns, known
from ddp_hpc.analysis.tables._groups import Counterparts, Group, Row, by_group, one_rank, over_pairs, spread
from ddp_hpc.analysis.tables._steps import UNKNOWN_EPOCH, rank_steps, train_samples, why_null
from ddp_hpc.config.comparability import SYNCHRONISATION_BASELINE
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Synchronisation of the gradients: exposed exchange per step and per epoch; medians over the complete runs."
LEFT_OUT = columns(
    "wait_s move_s exchange_busy_s over_none_low over_none_high over_none_from",
    "sync_share_low sync_share_high data_share_low data_share_high",
)

_COLUMNS = columns(
    "runs sync_s sync_low_s sync_high_s wait_s move_s exchange_busy_s steps_per_epoch",
    "sync_per_epoch_s sync_per_epoch_low_s sync_per_epoch_high_s sync_share sync_share_low sync_share_high",
    "data_share data_share_low data_share_high",
    "over_none over_none_low over_none_high over_none_from interval_from slow_steps_share oversubscribed reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step with an exchange.

    `sync_s` is exchange_exposed_s of a step, waiting for the slowest rank included, mean over the ranks, median over
    the steps; what overlaps the backward pass is in `exchange_busy_s` only. `sync_per_epoch_s` is that times
    `steps_per_epoch`. `sync_share` and `data_share` are the shares of exchange, and of data with their copy to the
    device, in the sum of the phases. `over_none` is the mean step over that of one rank with exchange none, the same
    batch per rank and seed: at one rank, what the exchange costs by itself. Intervals as in the table of phases.
    """
    runs = with_standing(study_runs.runs)
    alone = Counterparts(one_rank(runs), SYNCHRONISATION_BASELINE)
    exchanging = runs[runs["exchange"] != "none"]
    return by_group(study_runs, exchanging, step_columns(runs), _COLUMNS, lambda group: _measured(group, alone))


def _measured(group: Group, alone: Counterparts) -> Row:
    if group.by_itself:
        return group.by_itself
    first, synced = group.ended[0], known(row["exchange_exposed_s"] for row in group.ended)
    samples = train_samples(group.study_runs, group.ended)
    steps = samples / (first["world_size"] * first["batch_size"]) if samples else nan
    sync = group.over_runs(synced, of_median, _exposed_s)
    unknown = "" if synced else why_null(group.study_runs, group.run, "exchange_exposed_s")
    pairs = alone.pairs(group.ended)
    ratios = [_mean_step_s(row) / _mean_step_s(base) for row, base in pairs]
    return {
        **spread("sync", "_s", sync),
        **{name: group.median(name) for name in ("wait_s", "move_s", "exchange_busy_s")},
        "steps_per_epoch": steps,
        **spread("sync_per_epoch", "_s", sync.each(lambda seconds: steps * seconds)),
        **spread("sync_share", "", group.share_over_runs("exchange_exposed_s")),
        **spread("data_share", "", group.share_over_runs("data_s", "h2d_s")),
        **spread("over_none", "", over_pairs(group.study_runs, ratios, pairs)),
        "interval_from": sync.basis if synced else None,
        "reason": "; ".join(filter(None, ("" if samples else UNKNOWN_EPOCH, unknown))) or None,
    }


def _exposed_s(study_runs: StudyRuns, run: str) -> Array:
    return np.asarray(rank_steps(study_runs, run, ("exchange_exposed_s",))["exchange_exposed_s"].mean(axis=1))


def _mean_step_s(row: Row) -> float:
    return float(row["train_s"]) / float(row["steps"])
