"""How runs end on a real Slurm: each end told apart, finished results intact, and nothing computed twice."""

import os
import re
import signal
import subprocess
import time

import psutil
import pytest
from faulty import FAULTY
from sandbox import Sandbox, wait_for

pytestmark = pytest.mark.slurm

RUN = ("ddp-hpc", "run", "ends", "--profile", "profiles/slurm")
HEAD = (
    "base: {dataset: digits, exchange: none, world_size: 1, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1}\n"
    "tables: [runs]\nfigures: []\n"
)
SLOW = "{name: faulty, fault: slow}"  # 20 steps a second


@pytest.fixture
def study(project) -> Sandbox:
    """A project with a model that fails as it is told to."""
    (project.package / "models" / "faulty.py").write_text(FAULTY)
    return project


def start(project: Sandbox) -> subprocess.Popen:
    """Start a driver on the login node."""
    return project.start(*RUN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def state(project: Sandbox, mark: str) -> dict:
    """The row of the run with `mark`, e.g. `-s1-`, in its name."""
    (row,) = (row for row in project.status("ends").values() if mark in row["run"])
    return row


def statuses(project: Sandbox) -> list[str]:
    return sorted(row["status"] for row in project.status("ends").values())


def supervisors(project: Sandbox) -> int:
    """How many have begun to train."""
    return len(list((project.root / "results" / "runs").glob("*/attempts/*/launch.json")))


@pytest.fixture
def jobs(cluster):
    """The jobs of this test alone: `jobs()`."""
    before = max(cluster.jobs(), default=0)
    return lambda: {number: job for number, job in cluster.jobs().items() if number > before}


def job_of(cluster, mark: str) -> str:
    """The newest job that trains the run with `mark` in its name."""
    return str(max(number for number, job in cluster.jobs().items() if mark in job["Comment"]))


def end(driver: subprocess.Popen, timeout: float = 220) -> tuple[int, str]:
    """Wait for a driver, and return its exit code and all that it said."""
    said = "".join(driver.communicate(timeout=timeout))
    return driver.returncode, said


def driver_of(project: Sandbox) -> int:
    """The process of the driver itself, not of what has started it on the login node."""
    (pid,) = (
        pid
        for pid, command in project.processes().items()
        if "ddp-hpc run" in command and "python" in command.split()[0]
    )
    return pid


def rank_0(project: Sandbox) -> psutil.Process:
    """The process of rank 0 of the run that trains, not its watchdog."""
    commands = project.processes().items()
    watched = [psutil.Process(pid) for pid, words in commands if re.match(r"\S+python -m \S+rank_watchdog", words)]
    (rank,) = (one for one in watched if one.parent() in watched and one.environ()["SLURM_PROCID"] == "0")
    return rank


def kill(project: Sandbox, driver: subprocess.Popen) -> None:
    """Kill a driver as if the login node had gone: no last word, and its workflow ends with it."""
    os.kill(driver_of(project), signal.SIGKILL)
    assert driver.wait(30) != 0
    wait_for(lambda: not any("--workflow-profile" in command for command in project.processes().values()))


def hang_up(project: Sandbox, driver: subprocess.Popen) -> str:
    """Close the terminal of a driver, and return what it says to that."""
    os.kill(driver_of(project), signal.SIGHUP)
    code, said = end(driver)
    assert code == 130
    return said


def test_each_end_is_told_apart_and_stops_no_other(study, cluster):
    study.study(
        "ends",
        HEAD + "budget: {steps: 3000}\nruntime_min: 1\ngrid:\n  - {model: mlp}\n"
        f"  - {{model: {{name: faulty, fault: killed}}, seed: 1}}\n  - {{model: {SLOW}, seed: [2, 3]}}\n",
    )
    study.append("config/machines/test.yaml", "retries: {timeout: 0}\n")
    driver = start(study)
    wait_for(
        lambda: (
            supervisors(study) >= 4 and state(study, "-s2-")["status"] == state(study, "-s3-")["status"] == "running"
        )
    )
    cluster.run("scancel", job_of(cluster, "-s2-"))

    code, said = end(driver)

    assert code == 1
    assert state(study, "-s0-")["status"] == "ok"
    crashed, cancelled, late = (state(study, f"-s{seed}-") for seed in (1, 2, 3))
    assert (crashed["status"], crashed["attempts"]) == ("crashed", 1)  # not tried again until asked
    assert re.fullmatch(r"rank 0 on node\d: killed by SIGKILL", crashed["reason"])
    assert (cancelled["status"], cancelled["attempts"]) == ("cancelled", 1)
    assert "was cancelled" in cancelled["reason"] or "SIGTERM" in cancelled["reason"]
    assert (late["status"], late["attempts"]) == ("timeout", 1)
    assert "to try again" not in said
    page = (study.root / "results" / "studies" / "ends" / "report" / "index.html").read_text()
    assert "1 of 4 runs, 3 missing" in page
    assert "killed by SIGKILL" in page


def test_a_refused_submission_says_so_in_the_words_of_sbatch(study):
    study.study("ends", HEAD + "budget: {steps: 20}\ngrid: {model: mlp}\n")
    study.edit("config/machines/test.yaml", "  main:", "  nowhere:")

    code, _ = end(start(study))

    assert code == 1
    assert state(study, "-s0-")["status"] == "rejected"
    assert "invalid partition specified: nowhere" in state(study, "-s0-")["reason"]


def test_a_run_whose_node_dies_is_trained_on_another(study, cluster):
    study.study("ends", HEAD + f"budget: {{steps: 200}}\ngrid: {{model: {SLOW}}}\n")
    driver = start(study)
    wait_for(lambda: supervisors(study) and state(study, "-s0-")["status"] == "running")
    lost = cluster.jobs()[int(job_of(cluster, "-s0-"))]["NodeList"]

    cluster.kill_node(lost)

    code, said = end(driver)
    assert code == 0, said
    assert "1 run to try again, in 12 s: 1 node_fail" in said
    assert (state(study, "-s0-")["status"], state(study, "-s0-")["attempts"]) == ("ok", 2)
    assert cluster.jobs()[int(job_of(cluster, "-s0-"))]["NodeList"] != lost


def test_a_rank_that_mpi_ends_because_a_node_died_is_no_crash(study, cluster):
    """Now and then MPI is quicker to end a rank that has lost another than Slurm is."""
    two = HEAD.replace("exchange: none, world_size: 1", "exchange: ring, world_size: 2, placement: spread")
    study.study("ends", two + f"budget: {{steps: 100}}\ngrid: {{model: {SLOW}}}\n")
    driver = start(study)
    wait_for(lambda: supervisors(study) and state(study, "-s0-").get("step"))
    rank = rank_0(study)

    cluster.kill_node("node2")
    rank.kill()

    wait_for(lambda: state(study, "-s0-")["status"] != "running", 90)
    assert state(study, "-s0-")["status"] == "node_fail"
    cluster.start_node("node2")
    code, said = end(driver)
    assert code == 0, said


def test_a_controller_that_starts_anew_costs_no_run_and_no_second_attempt(study, cluster, jobs):
    study.study("ends", HEAD + f"budget: {{steps: 500}}\ngrid: {{model: {SLOW}}}\n")
    driver = start(study)
    wait_for(
        lambda: supervisors(study) and state(study, "-s0-").get("step")
    )  # seen from the login node while it trains
    assert 0 < state(study, "-s0-")["step"] < state(study, "-s0-")["steps_asked"] == 500

    cluster.stop_controller()
    time.sleep(5)
    assert state(study, "-s0-")["status"] in ("running", "ok")  # what nobody can tell has not failed
    cluster.start_controller()

    code, said = end(driver)
    assert code == 0, said
    assert (state(study, "-s0-")["status"], state(study, "-s0-")["attempts"]) == ("ok", 1)
    assert len(jobs()) == 1


def test_after_a_kill_or_a_hangup_the_same_command_waits_for_the_jobs_that_are_queued_or_running(study, cluster, jobs):
    study.study("ends", HEAD + f"budget: {{steps: 400}}\ngrid: {{model: {SLOW}, seed: [1, 2]}}\n")
    cluster.run("scontrol", "update", "nodename=node1,node2", "state=drain", "reason=test")
    first = start(study)
    wait_for(lambda: statuses(study) == ["queued", "queued"])
    kill(study, first)
    assert statuses(study) == ["queued", "queued"]

    second = start(study)
    time.sleep(3)
    cluster.run("scontrol", "update", "nodename=node1,node2", "state=resume")
    wait_for(lambda: supervisors(study) == 2 and statuses(study) == ["running", "running"])
    assert "cancelled" not in hang_up(study, second)
    assert statuses(study) == ["running", "running"]
    run = state(study, "-s1-")["run"]
    by_hand = study.call("ddp-hpc", "train", run)
    assert by_hand.returncode == 2
    assert re.search(rf"{run} is being trained already, by attempt 1: since \S+ on node\d", by_hand.stderr)
    plain = study.call(
        *("snakemake", "--workflow-profile", "profiles/slurm", "--config", "studies=[ends]", "machine=test")
    )
    assert plain.returncode != 0
    assert "2 runs are in the queue or running already" in plain.stdout + plain.stderr

    code, said = end(start(study))

    assert code == 0, said
    assert "2 runs already in the queue or running: Slurm jobs" in said
    assert statuses(study) == ["ok", "ok"]
    assert supervisors(study) == 2
    assert len(jobs()) == 2  # each was submitted once


def test_a_driver_that_is_asked_to_end_cancels_its_jobs_and_says_so(study, cluster, jobs):
    study.study("ends", HEAD + f"budget: {{steps: 9000}}\ngrid: {{model: {SLOW}, seed: [1, 2]}}\n")
    driver = start(study)
    wait_for(lambda: supervisors(study) == 2 and statuses(study) == ["running", "running"])
    os.kill(driver_of(study), signal.SIGTERM)

    code, said = end(driver)
    assert code == 130
    assert re.search(r"cancelled 2 Slurm jobs: \d+, \d+", said)
    assert statuses(study) == ["cancelled", "cancelled"]
    assert {job["State"] for job in jobs().values()} == {"CANCELLED"}


def test_a_workflow_that_has_lost_track_of_its_jobs_does_not_hang(study):
    """With sacct and no accounting the plugin would wait for ever."""
    study.study("ends", HEAD + "budget: {steps: 20}\ngrid: {model: mlp}\n")
    study.append("config/machines/test.yaml", "status_command: sacct\n")

    code, said = end(start(study))

    assert code == 0, said
    assert state(study, "-s0-")["status"] == "ok"
