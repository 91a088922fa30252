"""How runs end on a real Slurm: each end told apart, finished results intact, and nothing computed twice."""

import json
import re
import signal
import subprocess

import pytest
from faulty import FAULTY
from sandbox import Sandbox, wait_for

pytestmark = pytest.mark.slurm

RUN = ("ddp-hpc", "run")
ON_SLURM = ("--profile", "profiles/slurm")
HEAD = (
    "base: {dataset: digits, exchange: none, world_size: 1, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1}\n"
    "tables: [runs]\nfigures: []\n"
)
SLOW = "{model: {name: faulty, fault: slow}, seed: [%s]}"  # 20 steps a second


@pytest.fixture
def study(project) -> Sandbox:
    """A project with a model that fails as it is told to."""
    (project.package / "models" / "faulty.py").write_text(FAULTY)
    return project


def start(project: Sandbox, *more: str) -> subprocess.Popen:
    """Start a driver on the login node."""
    return project.start(*RUN, "ends", *ON_SLURM, *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def rows(project: Sandbox, **wanted: str) -> list[dict]:
    """The rows of the status whose run is of this fault, or seed."""
    return [row for row in project.status("ends").values() if all(f"{value}" in row["run"] for value in wanted.values())]


def statuses(project: Sandbox) -> list[str]:
    return sorted(row["status"] for row in project.status("ends").values())


def attempts(project: Sandbox) -> dict[str, int]:
    """By run: how many supervisors have begun."""
    found = (project.root / "results" / "runs").glob("*/attempts/*/launch.json")
    names = [file.parts[-4] for file in found]
    return {name: names.count(name) for name in names}


def jobs_of(cluster, run: str) -> dict[int, str]:
    """By number: the states of the jobs that train a run."""
    return {
        number: job["State"] for number, job in cluster.jobs().items() if job["Comment"] == f"rule_train_wildcards_{run}"
    }


def test_try(study, cluster):
    study.study(
        "ends",
        HEAD + "budget: {steps: 4000}\ngrid:\n  - {model: mlp}\n  - {model: {name: faulty, fault: killed}}\n"
        f"  - {SLOW % 1}\n  - {SLOW % 2}\n",
    )
    study.append("profiles/slurm/profile.yaml", "  runtime_min: 1\n")
    driver = start(study)
    wait_for(lambda: statuses(study).count("running") >= 2)
    print(study.call("ddp-hpc", "status", "ends").stdout)
    one = [j for j,s in cluster.jobs().items() if "s1-" in s["Comment"]]
    cluster.run("scancel", str(one[0]))
    print(driver.communicate(timeout=200))
    print(study.status("ends"))
    import pathlib
    for f in study.root.rglob("logs/workflow/*"): print(f, f.read_text())
    for f in study.root.rglob("attempts/*/ended.json"): print(f, f.read_text())
    for f in study.root.rglob("attempts/*/started.json"): print(f, f.read_text())
    print(cluster.jobs())
    assert 0
