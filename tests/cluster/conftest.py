"""A real Slurm, one for the session, and projects on its login node."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import MACHINE, PACE, Cluster, lacking, refused
from sandbox import Sandbox

PARTITIONS = "main:60:GraceTime=30 short:5 urgent:5:PriorityTier=10"
PREEMPTION = r"PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes of 8 cores and 4 GPUs; partitions `main`, the default, and `short`, of at most 5 minutes.

    Jobs of a third, `urgent`, take the place of others: those have 30 s to leave, and are queued again if they may be.
    """
    if (missing := lacking()) and os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(missing)  # where they can be installed nothing is left out in silence
    if reason := missing or refused():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder), PARTITIONS=PARTITIONS, MORE=PREEMPTION)
        yield started
        started.stop()


@pytest.fixture
def project(cluster: Cluster, tmp_path: Path) -> Iterator[Sandbox]:
    """A project whose commands run on the login node; afterwards no job is left and every node is idle."""
    sandbox = Sandbox.make(tmp_path / "project", cluster.through)
    sandbox.append("workflow/Snakefile", PACE)
    (sandbox.root / "config" / "machines" / "test.yaml").write_text(MACHINE)
    sandbox.edit("profiles/slurm/profile.yaml", "machine: example", "machine: test")
    yield sandbox
    cluster.heal()
    sandbox.end_all()
