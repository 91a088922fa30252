"""A cluster that accounts for its jobs, as real ones do: slurmdbd, a database, accounts that are checked."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import MACHINE, PACE, Cluster, lacking_accounting
from faulty import FAULTY
from sandbox import Sandbox, wait_for

pytestmark = pytest.mark.slurm

RUN = ("ddp-hpc", "run", "accounted", "--profile", "profiles/slurm")


@pytest.fixture
def accounted(cluster, tmp_path) -> Iterator[tuple[Cluster, Sandbox]]:
    """A second cluster, with slurmdbd; its users have the account `lab`. And a project that is watched by sacct."""
    if missing := lacking_accounting():
        (pytest.fail if os.environ.get("CI") and os.geteuid() == 0 else pytest.skip)(missing)
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder), ACCOUNTING="yes")
        project = Sandbox.make(tmp_path / "project", started.through)
        project.append("workflow/Snakefile", PACE)
        (project.root / "config" / "machines" / "test.yaml").write_text(
            MACHINE + "status_command: sacct\naccount: lab\n"
        )
        project.edit("profiles/slurm/profile.yaml", "machine: example", "machine: test")
        (project.package / "models" / "faulty.py").write_text(FAULTY)
        yield started, project
        project.end_all()
        started.stop()


def test_who_cancelled_a_run_is_told_and_accounting_that_goes_away_holds_up_nothing(accounted):
    """The plugin takes `CANCELLED by 0`, of sacct, for a running job, and hears of no end when slurmdbd is away."""
    cluster, project = accounted
    project.study(
        "accounted",
        "base: {dataset: digits, exchange: none, world_size: 1, batch_size: 16, learning_rate: 0.1,\n"
        "  threads_per_rank: 1, model: {name: faulty, fault: slow}}\n"
        "budget: {steps: 160}\ntables: [runs]\nfigures: []\ngrid: {seed: [1, 2]}\n",
    )
    assert "# account: lab # who pays" in project.call("ddp-hpc", "doctor", "--machine").stdout
    driver = project.start(*RUN)

    def rows() -> list[dict]:
        return sorted(project.status("accounted").values(), key=lambda row: row["run"])

    wait_for(lambda: all(row["status"] == "running" and row.get("step") for row in rows()))
    (job,) = (number for number, job in cluster.jobs().items() if "-s1-" in job["Comment"])
    cluster.run("scancel", str(job))
    wait_for(lambda: "was cancelled by user 0" in (rows()[0]["reason"] or ""))
    cluster.stop_accounting()

    assert driver.wait(120) == 1
    assert [(row["status"], row["attempts"]) for row in rows()] == [("cancelled", 1), ("ok", 1)]
    assert len(cluster.jobs()) == 2
