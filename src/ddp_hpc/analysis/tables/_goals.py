"""What a training is to reach: the loss threshold, and the test metric that decides; and when a run is there."""

from collections.abc import Callable
from math import ceil, nan

import numpy as np

from ddp_hpc.analysis.columns import higher_is_better
from ddp_hpc.analysis.tables._groups import Row
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.analysis.tables.winners import ENOUGH_SAMPLES
from ddp_hpc.config.study import Target
from ddp_hpc.runs.study_runs import StudyRuns

Reached = Callable[[Row], tuple[float, float]]  # of a run: steps and seconds until it is there, nan if it never is


def goals_of(study_runs: StudyRuns, samples: int = 1) -> dict[str, Reached]:
    """Return what is to be reached beside the end of the budget, by its name; a run is read once for all lines.

    With more than one, the loss is averaged over so many `samples` at least, and is where it is in their middle: a
    lucky small batch is no way to a loss.
    """
    rules, found = study_runs.study.rules, dict[str, Reached]()
    if (threshold := rules.loss_threshold) is not None:
        found[f"loss {threshold:g}"] = _once(lambda row: _steps_to_loss(study_runs, row, threshold, samples))
    if isinstance(by := rules.winner_by, Target):
        found[f"test metric {by.time_to:g}"] = _once(lambda row: _steps_to_metric(study_runs, row, by.time_to))
    return found


def to_threshold(study_runs: StudyRuns) -> Reached | None:
    """Return when a run is at the loss threshold, with the loss averaged over enough samples; None without one."""
    if study_runs.study.rules.loss_threshold is None:
        return None
    return next(iter(goals_of(study_runs, ENOUGH_SAMPLES).values()))


def _once(reached: Reached) -> Reached:
    known: dict[str, tuple[float, float]] = {}

    def of_run(row: Row) -> tuple[float, float]:
        if row["run"] not in known:
            known[row["run"]] = reached(row)
        return known[row["run"]]

    return of_run


def _steps_to_loss(study_runs: StudyRuns, row: Row, threshold: float, samples: int) -> tuple[float, float]:
    curve, window = whole_curve(study_runs, row["run"]), study_runs.study.rules.loss_window
    window = max(window, ceil(samples / (row["world_size"] * row["batch_size"])))
    if len(curve.loss) < window:
        return nan, nan
    there = np.flatnonzero(np.convolve(curve.loss, np.ones(window) / window, "valid") <= threshold)
    if not len(there):
        return nan, nan
    last = int(there[0]) + (window // 2 if samples > 1 else window - 1)
    return last + 1.0, float(curve.t_s[last])


def _steps_to_metric(study_runs: StudyRuns, row: Row, metric: float) -> tuple[float, float]:
    if not study_runs.store.file(row["run"], "evaluations").is_file():
        return nan, nan
    curve, higher = study_runs.evaluations(row["run"]), higher_is_better(row)
    there = curve[curve["metric"] >= metric if higher else curve["metric"] <= metric]
    return (float(there["step"].iloc[0]), float(there["t_s"].iloc[0])) if len(there) else (nan, nan)
