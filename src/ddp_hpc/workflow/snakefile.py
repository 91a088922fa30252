"""Functions that the Snakefile calls: its targets, the driver's lock, and a second call after failures."""

import gc
import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ddp_hpc.config import catalog
from ddp_hpc.config.errors import StudyError
from ddp_hpc.config.settings import ProfileConfig, Settings, checked
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import mark_slurm, state_of, uses_slurm
from ddp_hpc.slurm.job_environment import without_shapes
from ddp_hpc.slurm.sbatch import SBATCH, sbatch, step_line
from ddp_hpc.system.files import text_of
from ddp_hpc.workflow import plan, resource_requests
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.targets import StudyTargets, Targets

DRIVER = "DDP_HPC_DRIVER"  # set by whoever holds the lock, for the workflows that it starts

RULES = str(Path(__file__).parent / "rules" / "Snakefile")  # what a project's workflow/Snakefile includes

SLOTS = 1000  # of profiles/allocation

LIMIT = (100, 1)  # jobs, in seconds: Snakemake's own limit, which nobody comes near

_lock: DriverLock | None = None


def wait_quietly(scheduler: Any) -> None:
    """Take away Snakemake's default limit of jobs per second, for which it takes cores from the trainings beside it.

    With a limit it selects jobs again each second, and once more each second for every job that has ended: after 100
    trainings that is some 5 % of a core. A limit that the user has set stays.
    """
    limit = scheduler.job_rate_limiter
    if limit and (limit.max_jobs, limit.timespan) == LIMIT:
        scheduler.job_rate_limiter = None


def targets(config: Mapping[str, Any], in_a_job: bool = False) -> Targets:
    """Return the targets of the studies that `config` names; everything is checked here, before any job exists.

    `in_a_job`: this is the workflow within a job, whose run stands in its folder. No study is read: it, or the code,
    may have been edited since the job was queued.
    """
    gc.freeze()  # modules stay: to look through Snakemake's for garbage takes a fifth of the time of a small workflow
    project = Project.here()
    settings = _settings(project, config, in_a_job)
    machine = project.machine(settings.machine) if settings.machine else None
    if in_a_job:
        return Targets(project, machine=machine, settings=settings)
    if not settings.studies:
        raise StudyError(f"config/config.yaml names no studies; expected: {', '.join(project.studies)}")
    settled = bool(config.get("settled"))
    runs = [project.study_runs(name) for name in settings.studies]
    studies = {one.study.name: StudyTargets(project, one, settled) for one in runs}
    if not settled:  # what stands in the place of a record would pass for one
        for study in studies.values():
            plan.make_way(project.store, study.missing)
    only = config.get("only")  # the runs that a round of `ddp-hpc run` trains
    round_ = frozenset(json.loads((project.root / only).read_text())) if only else None
    return Targets(project, studies, machine, round_, settings)


def _settings(project: Project, config: Mapping[str, Any], in_a_job: bool) -> Settings:
    """Return what the Snakefile is told, checked; in a job only what that uses."""
    if not in_a_job:
        project.read_config()  # what is wrong with the file is told with its line
    kept = ProfileConfig.model_fields if in_a_job else config.keys() - {"settled", "only", "faults"}
    settings = checked(Settings, {key: config[key] for key in config if key in kept}, "snakemake --config")
    if not in_a_job and not config.get("settled"):
        _check_nothing_lost(project, settings)
    return settings


def _check_nothing_lost(project: Project, settings: Settings) -> None:
    """Raise a StudyError if `--config` drops what the profile says, as Snakemake does, and that was not the default."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--workflow-profile", default="profiles/default")
    name = parser.parse_known_args()[0].workflow_profile
    folder = next((one for one in (name, f"profiles/{name}") if (project.root / one).is_dir()), None)
    said = project.profile(folder).config.model_dump(exclude_unset=True) if folder else {}
    if settings.machine in ("", said.get("machine")):  # with another one the profile is not meant
        unsaid = said.keys() - settings.model_fields_set
        lost = [f"'{key}={said[key]}'" for key in said if key in unsaid and said[key] != getattr(settings, key)]
        if lost:
            raise StudyError(f"--config makes Snakemake drop the `config` of {folder}: add {' '.join(lost)} to it")


def resources(found: Targets, in_a_job: bool) -> dict[str, Callable[[Any], Any]]:
    """Return the resources of the rule `train` by name, each a function of the wildcards.

    Without a machine the runs are started here, with the settings' `launcher` and `runtime_min`. With one, `allocation`
    says that the driver is in a job, which all runs share; in a job, what was asked for stands in the run's folder. A
    MachineError says that the machine cannot take a run, before any job exists.
    """
    machine, store, settings, start = found.machine, found.project.store, found.settings, found.settings.launcher
    if machine is None:
        return {
            "runtime": lambda wildcards: found.runtime_min(wildcards.run) or settings.runtime_min,
            "mpi": lambda wildcards: f"{start} -n {n}" if (n := found.spec(wildcards.run).world_size) > 1 else "",
        }
    launcher = start if "launcher" in settings.model_fields_set else machine.launcher
    all_asked = {} if in_a_job else found.requests

    def there(wildcards: Any, name: str) -> Any:
        asked = resource_requests.read(store, wildcards.run) if in_a_job else all_asked[wildcards.run]
        if name == "mpi" and settings.allocation:
            return step_line(asked, launcher)
        return sbatch(asked, machine, launcher)[name]

    return {name: partial(there, name=name) for name in SBATCH}


def slots(found: Targets) -> Callable[[Any], int]:
    """Return how many of the profile's slots the run of some wildcards takes: one.

    In a job that runs share those of a study with `pairs` take all: they are trained with nothing beside them.
    """
    alone = {run for study in found.studies.values() if study.study_runs.study.pairs for run in study.runs}
    return lambda wildcards: SLOTS if found.settings.allocation and wildcards.run in alone else 1


def checkpoint_every_s(found: Targets) -> int:
    """Return the seconds between checkpoints: the machine's; without one those of the settings."""
    return (found.machine or found.settings).checkpoint_every_s


def enter(found: Targets) -> None:
    """Take the lock of the driver, and write what the trainer starts from: jobs are about to run.

    Exit if another driver is alive, has just ended, or has left jobs that are still in the queue.
    """
    global _lock
    store = found.project.store
    if DRIVER not in os.environ:
        _lock = DriverLock(found.project.root)
        if not _lock.take():
            raise SystemExit(_lock.refusal())
        os.environ[DRIVER] = str(os.getpid())
        missing = dict.fromkeys(one.run for study in found.studies.values() for one in study.missing)
        if any(map(store.finished, missing)):
            raise SystemExit("another driver has just ended, and runs that were missing are there now: start again")
        states = [state_of(store, run) for run in missing] if uses_slurm(store) else []
        held = [state.job for state in states if state.status in ("queued", "running")]
        if held:  # the plugin does not know of such jobs, and would submit them again
            raise SystemExit(
                f"{len(held)} runs are in the queue or running already, Slurm jobs {held[0]} to {held[-1]}: "
                "`ddp-hpc run STUDY` waits for them; to begin anew, scancel them first"
            )
    if found.machine:
        mark_slurm(store)
        if note := without_shapes(os.environ):
            print(f"note: {note}", file=sys.stderr)
    for study in found.studies.values():
        plan.prepare(study.study_runs)
        if not study.settled:  # what waits or runs keeps the request with which it was submitted
            idle = [one for one in study.missing if state_of(store, one.run).status not in ("queued", "running")]
            resource_requests.write(store, idle, found.requests)


def caption(kind: str, study: str, name: str) -> str:
    """Return the caption of a table, a figure or the page for Snakemake's report: reStructuredText."""
    if kind == "report":
        return "What was found, how sure that is, and what may be published; each number leads to its runs."
    told = Project.here().study_folder(study) / "figures" / f"{name}.txt"
    own = text_of(told) if kind == "figure" else ""
    text = own or str(catalog.constants(kind, name).get("CAPTION", name))
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def settle(config: Mapping[str, Any]) -> None:
    """After failures under plain `snakemake`: make the tables, figures and pages from what there is.

    `ddp-hpc run` makes this second call itself; with nothing finished at all there is nothing to show.
    """
    found = targets(config)
    ours = os.environ.get(DRIVER) == str(os.getpid()) and not config.get("settled")
    if not ours or not 0 < len(found.missing) < len(found.planned):
        return
    print("some runs have failed: making tables, figures and pages from what there is", file=sys.stderr)
    names = ",".join(found.studies)
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/default"]
    subprocess.run([*command, "--config", f"studies=[{names}]", "settled=1"], cwd=found.project.root, check=False)
