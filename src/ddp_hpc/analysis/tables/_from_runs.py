"""What a study's own runs at some world sizes say of another one: the number of a claim that is predicted from runs."""

from ddp_hpc.analysis.columns import show
from ddp_hpc.analysis.intervals import Interval, of_ratio, over_runs
from ddp_hpc.analysis.prediction.measured import Place
from ddp_hpc.analysis.prediction.step_model import Model
from ddp_hpc.analysis.prediction.trust import Doubt, doubt
from ddp_hpc.analysis.tables._groups import Row
from ddp_hpc.analysis.tables._scaling_lines import scaling_lines
from ddp_hpc.config.claims import Forecast
from ddp_hpc.runs.study_runs import StudyRuns


def predicted(asked: Forecast, study_runs: StudyRuns) -> tuple[Interval, list[Row]] | str:
    """Return the number and the runs that it is from, or why there is none."""
    lines = [line for line in scaling_lines(study_runs) if line.key["exchange"] == asked.exchange]
    fit = [one for one in lines if one.kind == asked.scaling and asked.batch in (None, one.batch)]
    if len(fit) != 1:
        known = ", ".join(f"{one.kind} {one.batch}" for one in lines) or "none"
        return f"{len(fit)} lines of {asked.exchange} over the ranks are so, expected: one; there are: {known}"
    (line,) = fit
    if line.model is None:
        return line.reason or "nothing is known"
    runs = [run for run in line.model.runs if run.place.world_size in asked.fitted_at]
    if lacking := sorted({*asked.fitted_at} - {run.place.world_size for run in runs}):
        return f"no run to fit to at {' and '.join(map(str, lacking))} ranks"
    model, place = Model(runs, line.model.exchange, line.model.shares_memory), line.place(asked.world_size)
    why = place if isinstance(place, Doubt) else doubt(model, place)
    if why or not isinstance(place, Place):
        return why.reason if why else ""
    step, read = model.predict(place).interval(), [row for row in line.good if row["world_size"] in asked.fitted_at]
    basis = f"predicted from {len(runs)} runs at {', '.join(map(show, asked.fitted_at))} ranks"
    if asked.quantity == "over_measured":
        there = line.measured.get(asked.world_size, [])
        if not there:
            return f"no run measured it at {asked.world_size} ranks"
        step, read = of_ratio(step, over_runs([row["train_s"] / row["steps"] for row in there])), [*read, *there]
    return Interval(step.middle, step.low, step.high, basis), read
