"""Functions that the Snakefile calls: its targets, the driver's lock, and a second call after failures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import mark_slurm, state_of, uses_slurm
from ddp_hpc.slurm.job_environment import without_shapes
from ddp_hpc.slurm.sbatch import SBATCH, sbatch, step_line
from ddp_hpc.workflow import plan, resource_requests
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.targets import Targets

DRIVER = "DDP_HPC_DRIVER"  # set by whoever holds the lock, for the workflows that it starts

SLOTS = 1000  # of profiles/allocation

_lock: DriverLock | None = None


def targets(config: Mapping[str, Any], in_a_job: bool = False) -> Targets:
    """Return the targets of the studies that `config` names.

    Args:
        config: of the workflow.
        in_a_job: this is the workflow within a job, whose run stands in its folder. No study is read: it, or the code,
            may have been edited since the job was queued.

    Raises:
        StudyError: a study is wrong, before any job exists.
    """
    project = Project.here()
    machine = config.get("machine") and project.machine(str(config["machine"]))
    if in_a_job:
        return Targets(project, machine=machine or None)
    names = config.get("studies") or project.studies
    names = [names] if isinstance(names, str) else list(names)
    only = config.get("only")  # the runs that a round of `ddp-hpc run` trains
    runs = frozenset(json.loads((project.root / only).read_text())) if only else None
    return Targets.of(project, names, bool(config.get("settled")), machine or None, runs)


def resources(found: Targets, config: Mapping[str, Any], in_a_job: bool) -> dict[str, Callable[[Any], Any]]:
    """Return the resources of the rule `train` by name, each a function of the wildcards.

    Args:
        found: the targets; without a machine the runs are started here.
        config: of the workflow; without a machine it holds `launcher` and `runtime_min`; with one, `allocation: true`
            says that the driver is in a job, which all runs share.
        in_a_job: this is the workflow within a job: what was asked for stands in the run's folder.

    Raises:
        MachineError: the machine cannot take a run, before any job exists.
    """
    machine, store = found.machine, found.project.store
    if machine is None:
        launcher = config.get("launcher", "mpiexec")

        def here(wildcards: Any, name: str) -> Any:
            ranks = found.spec(wildcards.run).world_size
            return {
                "runtime": found.runtime_min(wildcards.run) or config.get("runtime_min", 60),
                "mpi": f"{launcher} -n {ranks}" if ranks > 1 else "",
            }[name]

        return {name: partial(here, name=name) for name in ("runtime", "mpi")}

    launcher = config.get("launcher") or machine.launcher
    all_asked = {} if in_a_job else found.requests

    def there(wildcards: Any, name: str) -> Any:
        asked = resource_requests.read(store, wildcards.run) if in_a_job else all_asked[wildcards.run]
        if name == "mpi" and config.get("allocation"):
            return step_line(asked, launcher)
        return sbatch(asked, machine, launcher)[name]

    return {name: partial(there, name=name) for name in SBATCH}


def slots(found: Targets, config: Mapping[str, Any]) -> Callable[[Any], int]:
    """Return how many of the profile's slots the run of some wildcards takes.

    One, but all of them in a job that runs share if the run is of a study with `pairs`: those are trained one after
    the other, with nothing beside them.
    """
    alone = {run for study in found.studies.values() if study.study_runs.study.pairs for run in study.runs}
    return lambda wildcards: SLOTS if config.get("allocation") and wildcards.run in alone else 1


def checkpoint_every_s(found: Targets, config: Mapping[str, Any]) -> int:
    """Return the seconds between checkpoints: the machine's; without one those of `config`."""
    return found.machine.checkpoint_every_s if found.machine else int(config.get("checkpoint_every_s", 600))


def enter(found: Targets) -> None:
    """Take the lock of the driver, and write what the trainer starts from: jobs are about to run.

    Raises:
        SystemExit: another driver is alive, has just ended, or has left jobs that are still in the queue.
    """
    global _lock
    if DRIVER not in os.environ:
        _lock = DriverLock(found.project.root)
        if not _lock.take():
            raise SystemExit(_lock.refusal())
        os.environ[DRIVER] = str(os.getpid())
        if any(found.project.store.finished(one.run) for study in found.studies.values() for one in study.missing):
            raise SystemExit("another driver has just ended, and runs that were missing are there now: start again")
        _refuse_doubles(found)
    if found.machine:
        mark_slurm(found.project.store)
        if note := without_shapes(os.environ):
            print(f"note: {note}", file=sys.stderr)
    for study in found.studies.values():
        plan.prepare(study.study_runs)
        if not study.settled:  # what waits or runs keeps the request with which it was submitted
            store = found.project.store
            idle = [one for one in study.missing if state_of(store, one.run).status not in ("queued", "running")]
            resource_requests.write(store, idle, found.requests)


def _refuse_doubles(found: Targets) -> None:
    """End plain `snakemake` if it would submit what is in the queue already: the plugin does not know of such jobs."""
    store, missing = found.project.store, [run for run in found.planned if not found.project.store.finished(run)]
    if uses_slurm(store):
        held = [state.job for run in missing if (state := state_of(store, run)).status in ("queued", "running")]
        if held:
            raise SystemExit(
                f"{len(held)} runs are in the queue or running already, Slurm jobs {held[0]} to {held[-1]}: "
                "`ddp-hpc run STUDY` waits for them; to begin anew, scancel them first"
            )


def settle(config: Mapping[str, Any]) -> None:
    """After failures under plain `snakemake`: make the tables, figures and pages from what there is.

    `ddp-hpc run` makes this second call itself; with nothing finished at all there is nothing to show.
    """
    found = targets(config)
    if config.get("settled") or os.environ.get(DRIVER) != str(os.getpid()) or len(found.missing) == len(found.planned):
        return
    print("some runs have failed: making tables, figures and pages from what there is", file=sys.stderr)
    names = ",".join(found.studies)
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/default"]
    subprocess.run([*command, "--config", f"studies=[{names}]", "settled=1"], cwd=found.project.root, check=False)
