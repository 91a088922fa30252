"""What the missing runs ask of a machine: from their specs, their past attempts and the runs like them.

A job evaluates the workflow's rules anew on its node, when more may be known than at its submission. So the driver
keeps each request beside the run's spec, and the job takes it from there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ddp_hpc.config import spec as specs
from ddp_hpc.config.comparability import SAME_TIME
from ddp_hpc.config.machine import Machine, MachineError
from ddp_hpc.config.spec import SPEC_FIELDS, RunSpec
from ddp_hpc.runs.attempt import PLAN, REQUEST, Store
from ddp_hpc.runs.ending import classify, written
from ddp_hpc.runs.statuses import FAILED
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.slurm.resources import ImpossibleError, Past, Request, request
from ddp_hpc.workflow import plan
from ddp_hpc.workflow.plan import Finished

MOST_PROBLEMS = 10


def requests(studies: Iterable[StudyRuns], machine: Machine) -> dict[str, Request]:
    """Return by name what every run that is not finished asks of `machine`.

    A MachineError names the runs that the machine cannot take, and what would fit.
    """
    found: dict[str, Request] = {}
    problems: dict[str, list[str]] = {}
    waiting = [(study_runs, planned) for study_runs in studies for planned in study_runs.lacking]
    measured = _times(plan.finished_runs(waiting[0][0].store)) if waiting else {}
    for study_runs, planned in waiting:
        try:
            asked = request(
                planned.spec,
                machine,
                past=past(study_runs.store, planned.run),
                measured_s=measured.get(_timed(plan.fields_of(planned.spec.canonical)), ()),
                runtime_min=study_runs.study.runtime_min,
            )
        except ImpossibleError as error:
            problems.setdefault(str(error), []).append(study_runs.describe(planned.run))
            continue
        other = found.get(planned.run)  # two studies that share a run may give it different times
        found[planned.run] = asked if other is None or other.runtime_min < asked.runtime_min else other
    if problems:
        lines = [
            f"{problem} ({'e.g. ' if len(runs) > 1 else ''}{runs[0]}{f'; {len(runs)} runs' if len(runs) > 1 else ''})"
            for problem, runs in problems.items()
        ]
        more = [f"... and {len(lines) - MOST_PROBLEMS} more problems"] if len(lines) > MOST_PROBLEMS else []
        raise ImpossibleError("\n".join([*lines[:MOST_PROBLEMS], *more]))
    return found


def past(store: Store, run: str) -> list[Past]:
    """Return the attempts at a run that failed, the oldest first, with what they had asked for."""
    found = []
    for attempt in store.run(run).attempts:
        ending = classify(written(attempt))
        if ending and ending.status in FAILED:
            asked = attempt.started.get("request") or {}
            found.append(Past(status=ending.status, runtime_min=asked.get("runtime_min"), mem_mb=asked.get("mem_mb")))
    return found


def _timed(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields on which a run's wall time depends."""
    return tuple(value for name, value in zip(SPEC_FIELDS, fields, strict=True) if name not in SAME_TIME)


def _times(finished: Iterable[Finished]) -> dict[tuple[str, ...], list[float]]:
    """Return the wall times of finished runs, in seconds, by the fields on which they depend."""
    times: dict[tuple[str, ...], list[float]] = {}
    for run in finished:
        if run.wall_s is not None and run.status == "ok":  # one that diverged took less time
            times.setdefault(_timed(run.fields), []).append(run.wall_s)
    return times


def write(store: Store, planned: Iterable[Planned], asked: Mapping[str, Request]) -> None:
    """Keep what each of these runs asks for; what a run asked for earlier goes, also where nothing is asked now."""
    for one in planned:
        folder = store.run(one.run)
        content = asdict(asked[one.run]) if one.run in asked else {}
        if folder.request != content:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.request = content


def read(store: Store, run: str) -> Request:
    """Return what a run asked for when it was submitted, or raise a MachineError: nobody has written that."""
    try:
        return Request(**store.run(run).request)
    except TypeError:
        raise _gone(store, run, REQUEST) from None


def spec(store: Store, run: str) -> RunSpec:
    """Return the spec of a run as it was when it was submitted, or raise a MachineError: nobody has written that."""
    try:
        return specs.load(store.run(run).plan["spec"])
    except (KeyError, TypeError, ValueError):
        raise _gone(store, run, PLAN) from None


def _gone(store: Store, run: str, name: str) -> MachineError:
    return MachineError(
        f"{store.run(run).path / name} is missing or of another version of ddp-hpc: the driver writes it before it "
        "submits a run; call `ddp-hpc run` again"
    )
