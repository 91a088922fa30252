"""How long planned runs will take that nothing like them has been measured for: predicted from the study's own runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddp_hpc.config.comparability import OFF_THE_CLOCK, SAME_TIME
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.workflow.plan import Estimate, Item

if TYPE_CHECKING:
    from ddp_hpc.analysis.tables._scaling_lines import Line

_SCALED = OFF_THE_CLOCK | {"budget"}  # a guess from the nearest run knows what these do to the time


def with_predictions(study_runs: StudyRuns, items: Sequence[Item]) -> list[Item]:
    """Return a plan with predicted times where the nearest run would do other steps, and a prediction can be trusted.

    Without results of the study, or where all is measured, nothing is imported and the plan is as it was.
    """
    unlike = [item for item in items if item.will_run and {name for name, *_ in item.differences} - SAME_TIME - _SCALED]
    asked = {item.planned.run for item in unlike if item.planned.spec.steps_asked}
    if not asked or len(study_runs.lacking) == len(study_runs.planned):
        return list(items)
    from ddp_hpc.analysis.tables._scaling_lines import scaling_lines

    specs, found = {one.run: one for one in study_runs.planned}, dict[str, Estimate]()
    for line in scaling_lines(study_runs):
        for row in line.planned:
            if row["run"] in asked and row["run"] not in found and (estimate := _predicted(line, specs[row["run"]])):
                found[row["run"]] = estimate
    return [replace(item, estimate=found.get(item.planned.run, item.estimate)) for item in items]


def _predicted(line: "Line", planned: Planned) -> Estimate | None:
    """Return how long a run on a line takes: predicted steps after the start-up of the others; None: not known."""
    from ddp_hpc.analysis.prediction.measured import Place
    from ddp_hpc.analysis.tables._frame import median

    spec, place = planned.spec, line.place(planned.spec.world_size)
    if line.model is None or not isinstance(place, Place) or line.doubt(spec.world_size) or not spec.steps_asked:
        return None
    start_s = median(row["wall_s"] - row["train_s"] for row in line.good if row["wall_s"] is not None) or 0.0
    step = line.model.predict(place).interval()
    low, middle, high = (start_s + seconds * spec.steps_asked for seconds in (step.low, step.middle, step.high))
    checked, basis = line.held_out, f"predicted from {len(line.model.runs)} runs"
    if checked.error_percent is not None:
        basis += f", {checked.world_size} ranks from the others {checked.error_percent:+.1f} % off"
    if not step.known:
        low = high = middle
    return Estimate(low, middle, high, len(line.model.runs), basis)
