"""`ddp-hpc status`: running, waiting and failed runs of a study, and its node-hours."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from ddp_hpc.runs import machine_lease
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.runs.state import State, state_of, why_queued
from ddp_hpc.runs.statuses import FAILED, FINISHED, STATUSES, in_words
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted
from ddp_hpc.workflow import plan
from ddp_hpc.workflow.progress import how_far

MOST_LINES = 60
_TOLD = ("step", "steps_asked", "eta_s", "loss")


def overview(study_runs: StudyRuns) -> dict[str, Any]:
    """Return as plain values: `study`, `counts` by status, `node_hours`, and a row per planned run in `runs`.

    `waiting` has the runs that wait for a training of another project on this machine, each with that.

    A row has run, status, reason, attempts, job (of Slurm) and, of a running one, step, steps_asked, eta_s and loss.
    """
    states = _states(study_runs)
    rows = []
    for run, state in states.items():
        told = {name: state.progress.get(name) for name in _TOLD} if state.status == "running" else {}
        row = {"run": run, "status": state.status, "reason": state.reason, "attempts": state.attempts, "job": state.job}
        rows.append(row | told)
    counts = dict(Counter(state.status for state in states.values()))
    hours = node_hours(study_runs, states)
    waits = machine_lease.waiting(study_runs.store.root.absolute().parent)
    waiting = {run: str(other) for run, other in waits if run in states}
    return {"study": study_runs.study.name, "counts": counts, "node_hours": hours, "runs": rows, "waiting": waiting}


def _states(study_runs: StudyRuns) -> dict[str, State]:
    """Return where each planned run stands; what was stopped as beaten and is to go on is not there."""
    states = {planned.run: state_of(study_runs.store, planned.run) for planned in study_runs.planned}
    if any(state.status == "beaten" for state in states.values()):
        stops = study_runs.study.rules.stop_when_beaten
        lacking = {one.run for one in (plan.with_next_round(study_runs) if stops else study_runs).lacking}
        for run in (run for run, state in states.items() if run in lacking and state.status == "beaten"):
            states[run] = replace(states[run], status="missing", reason=plan.goes_on(states[run]))
    return states


def check(study_runs: StudyRuns) -> dict[str, str]:
    """Return by run why its records do not count, after reading all of every one, whatever the dates say."""
    from ddp_hpc.runs import records

    found = {planned.run: records.damage(study_runs.store.run(planned.run)) for planned in study_runs.planned}
    return {run: damage for run, damage in found.items() if damage}


def node_hours(study_runs: StudyRuns, states: Mapping[str, State]) -> dict[str, float]:
    """Return what the study costs: nodes times the hours from the start of a supervisor to its end.

    `used` by all attempts at its runs, failed ones and those that still run included; `expected` for what is still to
    be done, as far as runs like it have finished: for so many runs (`of_runs`) of those to do, running ones included
    (`to_do`).
    """
    used = sum(
        _nodes(attempt.started.get("request") or attempt.run.request) * _seconds(attempt)
        for run in states
        for attempt in study_runs.store.run(run).attempts
    )
    estimates = {item.planned.run: item.estimate for item in plan.plan(study_runs)}
    steps_asked = {planned.run: planned.spec.steps_asked for planned in study_runs.planned}

    def done(run: str) -> float:  # the part that its last checkpoint holds
        step, asked = study_runs.store.run(run).checkpointed_step, steps_asked[run]
        return min(1.0, step / asked) if step and asked else 0.0

    to_do = [run for run, state in states.items() if state.status not in FINISHED]
    expected_s = {}
    for run in to_do:
        eta_s, estimate = states[run].progress.get("eta_s"), estimates[run]
        if states[run].status == "running" and eta_s is not None:
            expected_s[run] = eta_s
        elif estimate:
            expected_s[run] = estimate.middle_s * (1 - done(run))
    expected = sum(_nodes(study_runs.store.run(run).request) * seconds for run, seconds in expected_s.items())
    return {"used": used / 3600, "expected": expected / 3600, "of_runs": len(expected_s), "to_do": len(to_do)}


def _nodes(request: Mapping[str, Any]) -> int:
    """Return the nodes that were asked for; one where no machine was named."""
    return int(request.get("nodes") or 1)


def _seconds(attempt: Attempt) -> float:
    """Return how long an attempt took, or has been running; 0 if it has not left when it began."""
    ended = attempt.ended
    if (wall_s := ended.get("wall_s")) is not None:
        return float(wall_s)
    try:
        began = datetime.fromisoformat(attempt.started["at"]).timestamp()
        at = ended.get("at") or attempt.slurm_end.get("at")
        return max(0.0, datetime.fromisoformat(at).timestamp() - began if at else attempt.lived_s())
    except (KeyError, ValueError, TypeError):
        return 0.0


def lines(study_runs: StudyRuns, found: Mapping[str, Any]) -> list[str]:
    """Return an overview as lines: counts, node-hours, what runs and how far it is, what waits, what has failed."""
    counts, rows = found["counts"], found["runs"]
    listed = ", ".join(f"{counts[status]} {in_words(status)}" for status in STATUSES if counts.get(status))
    finished = sum(counts.get(status, 0) for status in FINISHED)
    of_status = {status: [row for row in rows if row["status"] == status] for status in STATUSES}
    shown = [
        *of_status["running"],
        *(row for status in STATUSES if status in FAILED for row in of_status[status]),
        *(row for status in ("diverged", "oom_gpu") for row in of_status[status]),
        *(row for row in of_status["missing"] if row["reason"]),
    ]
    more = len(shown) - MOST_LINES
    reasons = Counter(why_queued(row["reason"]) for row in of_status["queued"])  # thousands of jobs may wait
    return [
        f"{study_runs.study.name}: {finished} of {counted(len(rows), 'run')} finished: {listed}",
        _cost(found["node_hours"]),
        *(_line(study_runs, row) for row in shown[:MOST_LINES]),
        *([f"  ... and {more} more: --json"] if more > 0 else []),
        *(f"  waiting       {run}: on this machine trains {other}" for run, other in found["waiting"].items()),
        *(f"  queued        {counted(count, 'run')}: {reason}" for reason, count in reasons.most_common()),
    ]


def _cost(hours: Mapping[str, Any]) -> str:
    text = f"node-hours: {_hours(hours['used'])} used"
    if not hours["to_do"]:
        return text
    if not hours["of_runs"]:
        return f"{text}; what is to come is not known: no run like it has finished"
    but = f", without {more} like which none has finished" if (more := hours["to_do"] - hours["of_runs"]) else ""
    return f"{text}, about {_hours(hours['expected'])} to come for {counted(hours['of_runs'], 'run')}{but}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3f}"


def _line(study_runs: StudyRuns, row: Mapping[str, Any]) -> str:
    point = study_runs.describe(row["run"])
    name = row["run"] if point == row["run"] else f"{row['run']} ({point})"
    again = f" ({row['attempts']} attempts)" if row["status"] in FAILED and row["attempts"] > 1 else ""
    told = "  ".join(part for part in (how_far(row), row["reason"] or "") if part)
    return f"  {row['status']:13} {name}{again}  {told}".rstrip()
