"""What the records of a run say of its steps: its loss over time, who arrived when, and whether it was steady."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ddp_hpc.analysis.intervals import FEWEST_STEPS, Array, block_length, of_median
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

COUNTED = ~pc.field("warm_up")  # rows of the steps record
NOT_RECORDED = "it was not recorded"
UNKNOWN_EPOCH = "the records do not say how many samples an epoch has"
MOST_BLOCKS, FEWEST_BLOCKS = 20, 8
DRIFT_STEPS = 2 * FEWEST_STEPS  # below, what neighbouring steps have in common passes for a trend
CHANCE = 0.001  # of calling a steady run drifting
DRIFTS = 0.05  # of the first step, over the run: less is no matter
MOST_KEPT = 10_000_000  # points of curves, of 24 bytes each
_CURVE = {"step": np.int64, "t_s": np.float64, "loss": np.float64}
SLOWER = 0.1  # of the other ranks' work: so much longer is that of a slow rank, at least


@dataclass(frozen=True)
class Curve:
    """Each counted step, when it ended and its loss; all of the shape (steps,)."""

    step: NDArray[np.int64]
    t_s: Array
    loss: Array


def whole_curve(study_runs: StudyRuns, run: str) -> Curve:
    """Return the loss curve of a finished run, without warmup; what is not finite stays as it is. It is not written to.

    It is kept for the tables that follow, as long as all that are kept do not take much memory.
    """
    if kept := study_runs.curves.get(run):
        return cast("Curve", kept)
    # loss and t_s are of all ranks together, so one rank's rows hold them
    columns, rank_0 = ("step", "rank", "t_s", "loss", "warm_up"), (pc.field("rank") == 0) & COUNTED
    mine = study_runs.steps(run, columns, rank_0).sort_values("step")
    curve = Curve(*(mine[name].to_numpy(kind, copy=True) for name, kind in _CURVE.items()))
    for values in (curve.step, curve.t_s, curve.loss):
        values.setflags(write=False)
    if (len(study_runs.curves) + 1) * len(curve.step) <= MOST_KEPT:
        study_runs.curves[run] = curve
    return curve


def step_times(study_runs: StudyRuns, run: str) -> Array:
    """Return the times between the ends of the counted steps of a run in seconds, slowest rank."""
    return np.asarray(np.diff(whole_curve(study_runs, run).t_s, prepend=0.0))


def thinned(loss: Array, most: int) -> NDArray[np.int64]:
    """Return the places of at most `most` points of a curve, evenly spread, with its ends and its least loss."""
    n = len(loss)
    if n <= most:
        return np.arange(n)
    places = np.linspace(0, n - 1, most - 1).round().astype(np.int64)
    least = [int(np.nanargmin(loss))] if np.isfinite(loss).any() else []
    return np.unique(np.concatenate([places, np.array(least, dtype=np.int64)]))


def rank_steps(study_runs: StudyRuns, run: str, names: tuple[str, ...]) -> dict[str, Array]:
    """Return columns of the steps record, and `step_s`, of the counted steps whose phases were told apart.

    Each is an array of steps x ranks, NaN where it is null; warmup and fused steps are left out.
    """
    asked = {*names, "step_s"}
    counted = study_runs.steps(run, ("step", "rank", "warm_up", "sampled", *asked), COUNTED)
    sampled = counted["sampled"].astype("boolean").fillna(False)
    counted = counted[sampled] if sampled.any() else counted
    ranks = int(counted["rank"].nunique()) or 1
    if (np.diff(counted["step"].to_numpy(np.int64) * ranks + counted["rank"].to_numpy(np.int64)) <= 0).any():
        counted = counted.sort_values(["step", "rank"], kind="stable")  # a copy: records are written in this order
    return {name: counted[name].to_numpy(np.float64, na_value=np.nan).reshape(-1, ranks) for name in asked}


def provenance(study_runs: StudyRuns, run: str) -> dict[str, Any]:
    """Return on what a finished run was made; empty where its record does not say."""
    return dict(records.read_metadata(study_runs.store.file(run)).get("provenance", {}))


def why_null(study_runs: StudyRuns, run: str, column: str) -> str:
    """Return the reason that a run's provenance gives for a column that is null."""
    return str(provenance(study_runs, run).get("null_columns", {}).get(column, NOT_RECORDED))


def train_samples(study_runs: StudyRuns, runs: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the samples of an epoch of finished runs; None where they differ in that, or a record does not say."""
    found = {provenance(study_runs, str(run["run"])).get("train_samples") for run in runs}
    samples = found.pop() if len(found) == 1 else None
    return int(samples) if samples else None


def drift(step_s: Array) -> tuple[float, bool] | None:
    """Return the trend of step times, in percent of the first, and whether it is no chance, and at least 5 %.

    None where the steps are too few to tell a trend from their correlation. Medians of blocks of neighbouring steps,
    longer than what these have in common (`block_length`, without the trend), are compared with their order by
    Kendall's tau; the slope of their logarithms is Theil's and Sen's (Sen, Journal of the American Statistical
    Association 63, 1968). Single slow steps do no harm.
    """
    n = len(step_s)
    if n < DRIFT_STEPS or not np.isfinite(step_s).all():
        return None
    from scipy import stats  # takes a second, which the tables of short runs need not wait for

    blocks = min(MOST_BLOCKS, n // 5)
    per_step = float(stats.theilslopes(_medians(step_s, blocks)).slope) * blocks / n
    level = step_s - per_step * np.arange(n)
    blocks = min(blocks, n // block_length(np.sign(level - np.median(level))))
    medians = _medians(step_s, blocks)
    if blocks < FEWEST_BLOCKS or medians.min() <= 0:
        return None
    share = float(np.expm1(stats.theilslopes(np.log(medians)).slope * blocks))
    chance = float(stats.kendalltau(np.arange(blocks), medians).pvalue)
    return 100 * share, chance < CHANCE and abs(share) >= DRIFTS


def _medians(x: Array, blocks: int) -> Array:
    return np.array([np.median(part) for part in np.array_split(x, blocks)])


def slow_ranks(work_s: Array) -> list[tuple[int, float]]:
    """Return the ranks whose work takes longer than that of the others, and by which share of theirs.

    Step by step, a rank's own work is compared with the median of the other ranks' in the same step; the median of
    these ratios, with all of its 95 % interval, must be above 1.1. `work_s` is of each step and rank, without the
    exchange, shape (steps, ranks).
    """
    found = []
    for rank in range(work_s.shape[1]) if work_s.shape[1] > 1 else ():
        others = np.median(np.delete(work_s, rank, axis=1), axis=1)
        ratio = of_median(work_s[:, rank] / np.where(others > 0, others, np.nan))
        if ratio.low > 1 + SLOWER:
            found.append((rank, ratio.middle - 1))
    return found


def steadiness(study_runs: StudyRuns, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table of runs says of a run's steadiness; nothing of one that has not ended well."""
    if run["status"] != "ok":
        return {}
    times = step_times(study_runs, run["run"])
    step, (percent, certain) = of_median(times), drift(times) or (None, None)
    return {
        "step_low_s": step.low,
        "step_high_s": step.high,
        "drift_percent": percent,
        "drifting": certain,
        "slow_ranks": _slow_ranks_in_words(study_runs, run["run"]) if run["world_size"] > 1 else None,
    }


def _slow_ranks_in_words(study_runs: StudyRuns, run: str) -> str | None:
    steps = rank_steps(study_runs, run, ("exchange_exposed_s",))
    hosts = {one["rank"]: one.get("host") for one in provenance(study_runs, run).get("ranks", [])}
    words = [
        f"rank {rank}{f' on {hosts[rank]}' if hosts.get(rank) else ''} (+{100 * more:.0f} %)"
        for rank, more in slow_ranks(steps["step_s"] - steps["exchange_exposed_s"])
    ]
    return ", ".join(words) or None
