"""Whether a run was steady: the interval of its median step, drift of its steps, and slow ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ddp_hpc.analysis.intervals import FEWEST_STEPS, Array, Interval, block_length, of_mean, of_median
from ddp_hpc.analysis.tables._steps import provenance, rank_steps, whole_curve
from ddp_hpc.runs.study_runs import StudyRuns

MOST_BLOCKS, FEWEST_BLOCKS = 20, 8
DRIFT_STEPS = 2 * FEWEST_STEPS  # below, what neighbouring steps have in common passes for a trend
CHANCE = 0.001  # of calling a steady run drifting
DRIFTS = 0.05  # of the first step, over the run: less is no matter
SLOWER = 0.1  # of the other ranks' work: so much longer is that of a slow rank, at least


@dataclass(frozen=True)
class Drift:
    """The trend of the step times of a run."""

    percent: float  # from the first step to the last, of the first: above -100
    certain: bool  # it is no chance, and at least 5 %


def step_times(study_runs: StudyRuns, run: str) -> Array:
    """Return the times between the ends of the counted steps of a run in seconds, slowest rank."""
    return np.asarray(np.diff(whole_curve(study_runs, run).t_s, prepend=0.0))


def of_median_step(study_runs: StudyRuns, run: str) -> Interval:
    """Return the median step of a run and its interval within the run, in seconds."""
    return of_median(step_times(study_runs, run))


def of_mean_step(study_runs: StudyRuns, run: str) -> Interval:
    """Return the mean step of a run, slow ones included, and its interval within the run, in seconds."""
    return of_mean(step_times(study_runs, run))


def drift(step_s: Array) -> Drift | None:
    """Return the trend of step times; None where the steps are too few to tell it from their correlation.

    Medians of blocks of neighbouring steps, longer than what these have in common (`block_length`, without the trend),
    are compared with their order by Kendall's tau; the slope of their logarithms is Theil's and Sen's (Sen, Journal of
    the American Statistical Association 63, 1968). Single slow steps do no harm.
    """
    n = len(step_s)
    if n < DRIFT_STEPS or not np.isfinite(step_s).all():
        return None
    blocks = min(MOST_BLOCKS, n // 5)
    per_step = _slope(step_s, blocks) * blocks / n
    level = step_s - per_step * np.arange(n)
    blocks = min(blocks, n // block_length(np.sign(level - np.median(level))))
    medians = _medians(step_s, blocks)
    if blocks < FEWEST_BLOCKS or medians.min() <= 0:
        return None
    share = float(np.expm1(stats.theilslopes(np.log(medians)).slope * blocks))
    chance = float(stats.kendalltau(np.arange(blocks), medians).pvalue)
    return Drift(100 * share, chance < CHANCE and abs(share) >= DRIFTS)


def _medians(x: Array, blocks: int) -> Array:
    return np.array([np.median(part) for part in np.array_split(x, blocks)])


def _slope(x: Array, blocks: int) -> float:
    return float(stats.theilslopes(_medians(x, blocks)).slope)


def slow_ranks(work_s: Array) -> list[tuple[int, float]]:
    """Return the ranks whose work takes longer than that of the others, and by which share of theirs.

    Step by step, a rank's own work is compared with the median of the other ranks' in the same step; the median of
    these ratios, with all of its 95 % interval, must be above 1.1.

    Args:
        work_s: of each step and rank, without the exchange, shape (steps, ranks).
    """
    found = []
    for rank in range(work_s.shape[1]) if work_s.shape[1] > 1 else ():
        others = np.median(np.delete(work_s, rank, axis=1), axis=1)
        ratio = of_median(work_s[:, rank] / np.where(others > 0, others, np.nan))
        if ratio.low is not None and ratio.low > 1 + SLOWER:
            found.append((rank, ratio.middle - 1))
    return found


def columns(study_runs: StudyRuns, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table of runs says of a run's steadiness; nothing of one that has not ended well."""
    if run["status"] != "ok":
        return {}
    times = step_times(study_runs, run["run"])
    step, trend = of_median(times), drift(times)
    return {
        "step_low_s": step.low,
        "step_high_s": step.high,
        "drift_percent": trend.percent if trend else None,
        "drifting": trend.certain if trend else None,
        "slow_ranks": _slow_ranks_in_words(study_runs, run["run"]) if run["world_size"] > 1 else None,
    }


def _slow_ranks_in_words(study_runs: StudyRuns, run: str) -> str | None:
    steps = rank_steps(study_runs, run, ("exchange_exposed_s",))
    slow = slow_ranks(steps["step_s"] - steps["exchange_exposed_s"])
    if not slow:
        return None
    ranks: Sequence[Mapping[str, Any]] = provenance(study_runs, run).get("ranks", [])
    hosts = {one["rank"]: one.get("host") for one in ranks}
    return ", ".join(
        f"rank {rank}{f' on {hosts[rank]}' if hosts.get(rank) else ''} (+{100 * more:.0f} %)" for rank, more in slow
    )
