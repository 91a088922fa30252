"""`ddp-hpc run`: train the missing runs, then make tables, figures and report."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ddp_hpc.analysis import claim_verdict
from ddp_hpc.config.errors import StudyError
from ddp_hpc.config.machine import MachineError
from ddp_hpc.config.settings import Profile, ProfileConfig, checked
from ddp_hpc.runs import identity, machine_lease
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import State, state_of
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.slurm import job_environment
from ddp_hpc.system import cgroups, process
from ddp_hpc.system.files import remove_temporaries
from ddp_hpc.system.terminal import counted, duration
from ddp_hpc.workflow import claims_check, missing_baselines, new_project, plan, resource_requests
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.progress import Making
from ddp_hpc.workflow.retries import RetryRounds
from ddp_hpc.workflow.slurm_jobs import Jobs
from ddp_hpc.workflow.snakemake_process import Signals, Snakemake
from ddp_hpc.workflow.targets import StudyTargets

_NAMES = re.compile(r"[\w./-]*[\d/][\w./-]*")  # numbers, hosts, files
EXAMPLE = "example"  # config/machines/example.yaml
MOST_LINES = 20


def run(
    project: Project,
    name: str,
    profile: str = "profiles/default",
    launcher: str | None = None,
    more: Sequence[str] = (),
) -> int:
    """Run a study to its page and return the exit code: 0 if every planned run ended as result or finding.

    Args:
        project: where the study is.
        name: of the study.
        profile: the workflow profile, relative to the project.
        launcher: what starts the ranks, instead of the profile's.
        more: further arguments of snakemake.

    Raises:
        StudyError: the study is wrong, or the machine cannot take a run; nothing was started.
        DriverAliveError: another driver is alive in this project.
    """
    study_runs = claims_check.checked(project, project.study_runs(name))
    study_runs = plan.with_next_round(
        missing_baselines.noted(new_project.noted(project, plan.weights_noted(study_runs)))
    )
    project.read_config()  # before any job: what is wrong with it would end the workflow
    if launcher is not None:
        checked(ProfileConfig, {"launcher": launcher}, "--launcher")
    told, machine = project.profile(profile), project.machine_of(profile)
    remote, shared = told.executor == "slurm", told.config.allocation
    if study_runs.study.claims and not remote and not shared:
        study_runs = claims_check.noted(study_runs, cgroups.within(cgroups.cores(), process.usable_cores()))
    if machine:
        resource_requests.requests([study_runs], machine)
        more = [*(["--slurm-status-command", machine.status_command] if remote else []), *more]
    _check_profile(study_runs.study.name, profile, told)
    for other in () if remote else machine_lease.entries():
        if other.told["project"] != str(project.root):
            print(f"note: on this machine trains {other}; runs take turns, by project", file=sys.stderr)
    if remote and (note := job_environment.without_shapes(os.environ)):
        print(f"note: {note}", file=sys.stderr)
    lock = DriverLock(project.root)
    with lock.held(), Signals() as signals:
        snakemake = Snakemake(project, study_runs.study.name, lock, profile, launcher, more=more, signals=signals)
        retries = machine.retries.model_dump() if machine else {}
        pause_s = machine.retry_after_s if machine and remote else 0

        def rounds(now: StudyRuns) -> RetryRounds:
            jobs = Jobs(project, now.planned, signals) if remote else None
            return RetryRounds(now, snakemake, jobs, retries, signals, pause_s)

        return _run(project, study_runs, snakemake, rounds, shared)


def _check_profile(name: str, profile: str, told: Profile) -> None:
    machine = told.config.machine
    if told.executor == "slurm" and not machine:
        raise MachineError(f"{profile} submits to Slurm and names no machine: write `config: {{machine: NAME}}` there")
    if machine == EXAMPLE:
        raise MachineError(
            f"{profile} names the machine {EXAMPLE!r}, which only shows the keys: `ddp-hpc doctor --machine > "
            "config/machines/NAME.yaml` proposes one for this cluster; then write `machine: NAME` in "
            f"{profile}/profile.yaml"
        )
    if told.config.allocation and "SLURM_JOB_ID" not in os.environ:
        raise MachineError(
            f"{profile} is for a driver within a Slurm job, which all runs share: `ddp-hpc plan {name} --profile "
            f"{profile}` has its sbatch line, and profiles/README.md; with --profile profiles/slurm each run is a job"
        )


Rounds = Callable[[StudyRuns], RetryRounds]


def _run(project: Project, study_runs: StudyRuns, snakemake: Snakemake, rounds: Rounds, shared: bool) -> int:
    began, complete = time.monotonic(), not study_runs.lacking
    remove_temporaries(project.study_folder(study_runs.study.name))
    for note in study_runs.notes:
        print(f"note: {note}", file=sys.stderr)
    study_runs, trained = _train(study_runs, rounds, shared)
    new = 0 if complete else _edited_meanwhile(project, study_runs)
    targets = StudyTargets(project, study_runs, settled=True)
    making = Making([project.root / output for output in targets.outputs])
    published = 0 if snakemake.signals.asked else snakemake.start("all", making, "settled=1")
    states = {planned.run: state_of(study_runs.store, planned.run) for planned in study_runs.planned}
    nothing = complete and not published and not making.made
    print(f"{study_runs.study.name}: {_summary(states, nothing)}, in {duration(time.monotonic() - began)}")
    lacking = {run: state for run, state in states.items() if state.status not in FINISHED}
    for line in _failures(study_runs, lacking):
        print(line, file=sys.stderr)
    if snakemake.signals.asked:
        print("ended by a signal; the same command goes on from here", file=sys.stderr)
        return 130
    if published or (trained > 0 and not lacking):
        print("\n".join(["the workflow failed", *snakemake.complaints()]), file=sys.stderr)
    elif trained > 0:  # a run that waits for data has not failed, and its status has no reason
        print("".join(f"{line}\n" for line in snakemake.said_beside()), end="", file=sys.stderr)
    folder = project.study_folder(study_runs.study.name)
    if study_runs.study.claims and not published:
        _say_verdicts(folder / "tables" / "claims.parquet")
    if (page := folder / "report" / "index.html").exists() and not published:
        print(f"page: {page}")
    return 1 if lacking or published or new else 0


def _train(study_runs: StudyRuns, rounds: Rounds, shared: bool) -> tuple[StudyRuns, int]:
    """Train what is missing, and the repeats that follow from the results; return all planned, and the last exit code.

    A run that does not end as result or finding ends this: who wins is not known without it.
    """
    trained = 0
    while missing := study_runs.lacking:
        plan.prepare(study_runs)
        of_all = f"{len(missing)} of {counted(len(study_runs.planned), 'run')}"
        print(f"{study_runs.study.name}: {of_all} to train", flush=True)
        trained = rounds(study_runs).train(_of_this_partition(missing) if shared else missing)
        study_runs = replace(study_runs, beyond={}, curves={}, lines=[])  # runs that were stopped have come so far
        if trained or study_runs.lacking:
            break
        study_runs = plan.with_next_round(study_runs)
    return study_runs, trained


def _of_this_partition(missing: Sequence[Planned]) -> list[Planned]:
    """Return the runs that the job which we are in may train; say so if there are others."""
    others = {planned.run: why for planned in missing if (why := job_environment.elsewhere(planned.spec.partition))}
    if others:
        run, why = next(iter(others.items()))
        print(f"{counted(len(others), 'run')} left for another job, e.g. {run}: {why}", file=sys.stderr)
    return [planned for planned in missing if planned.run not in others]


def _edited_meanwhile(project: Project, study_runs: StudyRuns) -> int:
    """Say so if the study asks for other runs than when this began, and return how many of them are not finished."""
    identity.forget()  # the code may have been edited, too
    try:
        now = {planned.run for planned in project.study_runs(study_runs.study.name).planned}
    except StudyError:  # the workflow, which reads it again, says what is wrong
        return 0
    then = {planned.run for planned in study_runs.planned}
    if now != then:
        print(
            f"{study_runs.study.name} or its code was edited meanwhile: of the runs that were planned at first "
            f"{len(then - now)} are no longer asked for, {len(now - then)} are new; tables and page are of those that "
            "are asked for now, and the same command trains what they lack",
            file=sys.stderr,
        )
    return sum(not study_runs.store.finished(run) for run in now - then)


def _say_verdicts(table: Path) -> None:
    from pyarrow import parquet

    if table.is_file():
        judged = parquet.read_table(table, columns=["kind", "verdict"])
        print(claim_verdict.summary(zip(*(judged[name].to_pylist() for name in judged.column_names), strict=True)))


def _summary(states: dict[str, State], nothing: bool) -> str:
    counts = Counter(state.status for state in states.values())
    done = f"{sum(counts[status] for status in FINISHED)} of {counted(len(states), 'run')} finished"
    if findings := sorted(f"{counts[status]} {status}" for status in FINISHED - {"ok"} if counts[status]):
        done += f" ({', '.join(findings)}: a finding, not a failure)"
    return f"nothing to do: {done}; tables, figures and page are up to date" if nothing else done


def _failures(study_runs: StudyRuns, lacking: dict[str, State]) -> list[str]:
    """Return a line per status and reason: how many runs have it, one of them and its log.

    Reasons that differ in numbers, hosts and files only are one: each Slurm job has its own.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for run, state in lacking.items():
        groups.setdefault((state.status, _NAMES.sub("#", state.reason or "")), []).append(run)
    lines = []
    for (status, _), runs in groups.items():
        reason = lacking[runs[0]].reason
        if status == "missing" and not reason:
            lines.append(f"  {len(runs)} {in_words(status)}")
            continue
        example = f"{'e.g. ' if len(runs) > 1 else ''}{study_runs.describe(runs[0])}, logs/train/{runs[0]}.log"
        lines.append(f"  {len(runs)} {in_words(status)}: {reason or 'no reason is known'} ({example})")
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"  ... and {len(lines) - MOST_LINES} more: `ddp-hpc status {study_runs.study.name}`"]
    return lines
