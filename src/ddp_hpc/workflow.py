"""What the Snakefile calls: its targets, the lock of the driver, and the second pass."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_hpc import plan
from ddp_hpc.lock import DriverLock
from ddp_hpc.project import Project
from ddp_hpc.targets import Targets

DRIVER = "DDP_HPC_DRIVER"  # set by whoever holds the lock, for the workflows that it starts

# calls of snakemake that run no job; short flags may stand together, as in `-nq`
_LOOKING = re.compile(
    r"-[pqrkFhR]*[nDl][npqrkFhR]*|--(dry-?run|dag|rulegraph|filegraph|d3dag|summary|detailed-summary|list(-\w+)*|lt|lint"
    r"|unlock|report|print-compilation)(=.*)?"
)

_lock: DriverLock | None = None


def targets(config: Mapping[str, Any]) -> Targets:
    """Return the targets of the studies that `config` names.

    Raises:
        StudyError: a study is wrong, before any job exists.
    """
    project = Project.here()
    names = config.get("studies") or project.studies
    names = [names] if isinstance(names, str) else list(names)
    return Targets.of(project, names, bool(config.get("settled")))


def enter(found: Targets) -> None:
    """Take the lock of the driver, unless this call only looks, and write what the trainer starts from.

    Raises:
        SystemExit: another driver is alive.
    """
    global _lock
    if _only_looking(sys.argv[1:]):
        return
    if DRIVER not in os.environ:
        _lock = DriverLock(found.project.root)
        if not _lock.take():
            raise SystemExit(_lock.refusal())
        os.environ[DRIVER] = str(os.getpid())
    for study in found.studies.values():
        plan.prepare(study.ledger)


def _only_looking(arguments: Sequence[str]) -> bool:
    return any(_LOOKING.fullmatch(argument) for argument in arguments)


def settle(config: Mapping[str, Any]) -> None:
    """After failures under plain `snakemake`: make the tables, figures and pages from what there is.

    `ddp-hpc run` makes this second pass itself; with nothing finished at all there is nothing to show.
    """
    found = targets(config)
    if config.get("settled") or os.environ.get(DRIVER) != str(os.getpid()) or len(found.missing) == len(found.planned):
        return
    print("some runs have failed: making tables, figures and pages from what there is", file=sys.stderr)
    names = ",".join(found.studies)
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/default"]
    subprocess.run([*command, "--config", f"studies=[{names}]", "settled=1"], cwd=found.project.root, check=False)
