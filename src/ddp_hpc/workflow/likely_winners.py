"""The order of runs that stop when they are beaten: the sooner the best has ended, the more is saved."""

from collections.abc import Sequence
from math import inf, log
from statistics import fmean
from typing import Any

from ddp_hpc.config.study import Study
from ddp_hpc.runs import beaten
from ddp_hpc.runs.study_runs import Planned, StudyRuns

Point = tuple[Any, ...]  # the searched values of a run


def likely_first(study_runs: StudyRuns) -> list[Planned]:
    """Return the planned runs, the likely winner of each group first, then the next of each, ...

    Likely is what has the least areas in other groups, over the least there; before any group tells, what is in the
    middle of the searched values.
    """
    rivals = beaten.asked(study_runs)
    middle, told = _from_the_middle(study_runs), _told(study_runs, rivals)
    points = {one.run: _point(one, study_runs.study) for one in study_runs.planned}
    keys = {run: (told.get(point, inf), middle[point]) for run, point in points.items()}
    places = {
        one.run: sum(keys[other] < keys[one.run] for other in rivals.get(one.run, {}).get("runs", ()))
        for one in study_runs.planned
    }
    return sorted(study_runs.planned, key=lambda one: places[one.run])


def _point(planned: Planned, study: Study) -> Point:
    values = planned.spec.columns()
    return tuple(value for name, value in values.items() if name.removesuffix("_options") in study.search)


def _told(study_runs: StudyRuns, rivals: dict[str, dict[str, Any]]) -> dict[Point, float]:
    """Return by point the mean of its areas in groups, each over the least there."""
    rules, points = study_runs.study.rules, {one.run: _point(one, study_runs.study) for one in study_runs.planned}
    found: dict[Point, list[float]] = {}
    groups = {tuple(sorted([run, *asked["runs"]])) for run, asked in rivals.items()}
    for group in groups:
        ended = [run for run in group if study_runs.store.finished(run)]
        rows = [beaten.rival(study_runs.store, run, rules.loss_threshold, rules.loss_window, None) for run in ended]
        areas = {row.run: row.area for row in rows if row}
        for run, area in areas.items():
            found.setdefault(points[run], []).append(area / min(areas.values()))
    return {point: fmean(ratios) for point, ratios in found.items()}


def _from_the_middle(study_runs: StudyRuns) -> dict[Point, float]:
    """Return how far each point lies from the middle of the searched values, numbers as logarithms."""
    points = list({_point(one, study_runs.study) for one in study_runs.planned})
    axes = [_placed(values) for values in zip(*points, strict=True)]
    return {point: sum(abs(axis[at] - 0.5) for axis in axes) for at, point in enumerate(points)}


def _placed(values: Sequence[Any]) -> list[float]:
    """Return where the values of an axis lie from 0 to 1; what is no number lies in the middle."""
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        return [0.5] * len(values)
    logs = [log(value) for value in values]
    low, high = min(logs), max(logs)
    return [(one - low) / (high - low) if high > low else 0.5 for one in logs]
