"""How an attempt ended, from all that is known of it: one table, and which evidence counts more than which."""

import json
import re

import pytest

from ddp_hpc.runs.attempt import Attempt, Faults
from ddp_hpc.runs.ending import TIME_LIMIT, Ending, Evidence, classify, written
from ddp_hpc.runs.statuses import STATUSES


def report(
    rank: int = 1, status: str = "crashed", error: str | None = "ValueError", message: str = "it is bad"
) -> dict:
    return {"rank": rank, "host": f"n{rank}", "status": status, "error": error, "message": message, "steps": 7}


OK = {"status": "ok", "reason": None, "steps": 40}
SIGTERM = Ending("cancelled", "SIGTERM: asked to end", {"signal": "SIGTERM", "wall_s": 60.0})
CRASHED = Ending("crashed", "rank 1: ValueError")
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0"
LOST_NODE = "srun: error: Node failure on node2"
ENDED = report(0, error=None, message="ended with exit code 14 and no word of why") | {"ended_by_others": True}

HELP = [f"You may ask for more of them in way {number}, which is explained elsewhere." for number in range(20)]

TABLE = [  # what is known, status, words of the reason
    # one kind of evidence alone
    ({}, None, ""),
    ({"alive": True}, None, ""),
    ({"alive": False}, "cancelled", "its supervisor ended without a word"),
    ({"ended": CRASHED}, "crashed", "rank 1: ValueError"),
    ({"slurm": Ending("rejected", "sbatch: no")}, "rejected", "sbatch: no"),
    ({"refused": "cannot start 'mpiexec'"}, "launch_failed", "cannot start 'mpiexec'"),
    ({"exit_code": 0, "summary": OK}, "ok", ""),
    ({"exit_code": 0, "summary": OK | {"status": "diverged", "reason": "nan"}}, "diverged", "nan"),
    ({"exit_code": 137}, "launch_failed", "ended with exit code 137, and no rank left .* it said nothing"),
    ({"exit_code": -9}, "crashed", "the launcher was killed by SIGKILL$"),
    ({"exit_code": -1, "last_seen_step": 10}, "crashed", "killed by SIGHUP, its ranks last seen at step 10"),
    ({"exit_code": -11, "last_seen_step": 10}, "crashed", "killed by SIGSEGV, its ranks last seen at step 10"),
    ({"exit_code": -11}, "launch_failed", "was killed by SIGSEGV, and no rank left"),
    ({"exit_code": 137, "last_seen_step": 10}, "crashed", "exit code 137, its ranks last seen at step 10, and no rank"),
    ({"exit_code": -9, "oom_kills": 1}, "oom_host", "killed by SIGKILL; the kernel killed a process for memory"),
    ({"exit_code": 1, "last_words": ["srun: error: n1: task 0: Killed"]}, "launch_failed", "task 0: Killed"),
    (
        {"exit_code": 1, "last_words": ["-----", "not enough slots", *HELP, "-----"]},
        "launch_failed",
        "not enough slots; ",
    ),
    ({"exit_code": 1, "last_words": ["not enough slots", *HELP, "PRTE has lost"]}, "launch_failed", "; PRTE has lost"),
    ({"exit_code": 1, "last_words": [LOST_NODE]}, "node_fail", "a node does not answer: .*Node failure on node2"),
    ({"exit_code": 1, "last_words": [KILLED]}, "oom_host", "Detected 1 oom_kill event"),
    # reports of ranks
    ({"exit_code": 1, "reports": [report()]}, "crashed", "rank 1 on n1: ValueError: it is bad"),
    ({"exit_code": 3, "reports": [report(status="launch_failed")]}, "launch_failed", "it is bad"),
    ({"exit_code": 1, "reports": [report(status="oom_gpu")]}, "oom_gpu", "it is bad"),
    ({"exit_code": 1, "reports": [report(status="oom_host")]}, "oom_host", "it is bad"),
    ({"exit_code": 1, "reports": [report(0, "peer_failure"), report(2)]}, "crashed", "rank 2 on n2"),
    ({"exit_code": 1, "reports": [report(0, "peer_failure")]}, "crashed", "rank 0 on n0"),
    ({"exit_code": 1, "reports": [report(0, error=None, message="killed"), report(2)]}, "crashed", "rank 2 on n2"),
    # what the kernel and the launcher say beside them
    ({"exit_code": 1, "reports": [report()], "oom_kills": 1}, "oom_host", "the kernel killed a process for memory"),
    ({"exit_code": 1, "reports": [report()], "last_words": [KILLED]}, "oom_host", "rank 1 .*Detected 1 oom_kill"),
    ({"exit_code": 1, "reports": [report(status="oom_gpu")], "oom_kills": 1}, "oom_gpu", "it is bad"),
    ({"exit_code": 1, "reports": [report(status="launch_failed")], "oom_kills": 1}, "launch_failed", "it is bad"),
    ({"exit_code": 1, "reports": [report()], "last_words": [LOST_NODE]}, "crashed", "it is bad"),
    ({"exit_code": 1, "reports": [ENDED], "last_words": [LOST_NODE]}, "node_fail", "not answer: .*; rank 0 .*code 14"),
    ({"exit_code": 1, "reports": [ENDED]}, "crashed", "ended with exit code 14"),
    ({"exit_code": 1, "reports": [ENDED], "last_words": [LOST_NODE, KILLED]}, "oom_host", "Detected 1 oom_kill"),
    ({"exit_code": 1, "reports": [ENDED], "last_words": [LOST_NODE], "oom_kills": 1}, "oom_host", "kernel killed"),
    ({"exit_code": 1, "reports": [ENDED, report()], "last_words": [LOST_NODE]}, "crashed", "it is bad"),
    ({"exit_code": 1, "reports": [report(0, "peer_failure")], "last_words": [LOST_NODE]}, "node_fail", "rank 0 on n0"),
    ({"exit_code": 0, "summary": OK, "oom_kills": 1}, "ok", ""),
    # records that are whole, but not if a rank failed
    ({"exit_code": 1, "summary": OK}, "ok", ""),
    ({"exit_code": 1, "summary": OK, "reports": [report()]}, "crashed", "it is bad"),
    # asked to end
    ({"exit_code": 0, "asked_by": "SIGTERM"}, "cancelled", "SIGTERM: .*there is no checkpoint, it starts anew"),
    (
        {"exit_code": 1, "last_words": ["Traceback", "rank 1 on n1: OSError: [Errno 28] No space left on device: 'a'"]},
        "crashed",
        "rank 1 on n1: OSError: .* No space left on device: 'a'",
    ),
    ({"exit_code": 0, "asked_by": "SIGINT", "checkpointed_step": 30}, "cancelled", "goes on after step 30"),
    ({"exit_code": 0, "asked_by": "SIGUSR1"}, "preempted", "SIGUSR1: asked to make room"),
    ({"asked_by": "SIGUSR1", "asked_after_s": 10, "limit_s": 3600}, "preempted", "asked to make room"),
    ({"asked_by": "SIGUSR1", "asked_after_s": 3480, "limit_s": 3600}, "timeout", "near the time limit of 3600 s"),
    ({"asked_by": TIME_LIMIT, "limit_s": 60}, "timeout", "the time limit of 60 s was reached"),
    ({"exit_code": 1, "asked_by": "SIGTERM", "reports": [report()]}, "cancelled", "SIGTERM"),
    ({"exit_code": 0, "asked_by": "SIGTERM", "summary": OK}, "ok", ""),
    ({"exit_code": 1, "asked_by": "SIGTERM", "summary": OK, "reports": [report()]}, "cancelled", "SIGTERM"),
    # the supervisor's word and Slurm's
    ({"ended": CRASHED, "slurm": Ending("node_fail", "Slurm job 17")}, "crashed", "rank 1: ValueError"),
    ({"ended": CRASHED, "alive": False}, "crashed", "rank 1: ValueError"),
    ({"ended": SIGTERM}, "cancelled", "SIGTERM: asked to end"),
    *(
        ({"ended": SIGTERM, "slurm": Ending(status, "Slurm job 17")}, status, "Slurm job 17")
        for status in ("timeout", "preempted", "node_fail", "cancelled", "oom_host")
    ),
    ({"ended": SIGTERM, "slurm": Ending("crashed", "Slurm job 17")}, "cancelled", "SIGTERM: asked to end"),
    ({"alive": False, "slurm": Ending("crashed", "Slurm job 17")}, "crashed", "Slurm job 17"),
    ({"alive": False, "slurm": Ending("node_fail", "Slurm job 17")}, "node_fail", "Slurm job 17"),
]


@pytest.mark.parametrize(("known", "status", "words"), TABLE)
def test_the_end_follows_from_what_is_known(known, status, words):
    ending = classify(Evidence(**known))
    assert (ending and ending.status) == status
    if ending:
        assert re.search(words, ending.reason or "")
        assert ending.exit_code == STATUSES[status][1]


def test_a_crash_that_other_runs_would_share_says_which():
    shared = report() | {"shared_by": {"dataset": "digits"}}
    assert classify(Evidence(exit_code=1, reports=[shared])).numbers == {"steps": 7, "shared_by": {"dataset": "digits"}}
    assert classify(Evidence(exit_code=1, reports=[report()])).numbers == {"steps": 7}


def test_a_run_meets_the_faults_of_those_that_have_the_same_fields(tmp_path):
    faults = Faults(tmp_path / "faults")
    assert faults.met_by({"dataset": "digits"}) is None  # nobody has told any

    faults.tell("a-run", {"dataset": "digits", "device": None}, "rank 0: no file")

    assert faults.met_by({"dataset": "digits", "seed": 3}) == (
        "a-run, with the same dataset and device, has crashed: rank 0: no file"
    )
    assert faults.met_by({"dataset": "digits", "device": "cuda"}) is None
    assert faults.met_by({"dataset": {"name": "digits", "test": 3}}) is None


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("srun: error: node1: task 0: Out Of Memory", "oom_host"),
        ("slurmstepd: error: StepId=3.0 exceeded memory limit (4331 > 1048), being killed", "oom_host"),
        ("srun: error: Task launch for StepId=4.0 failed on node node2: Communication connection failure", "node_fail"),
        ("srun: error: Timed out waiting for job step to complete", "node_fail"),
    ],
)
def test_what_the_launcher_says_of_memory_and_nodes_counts(said, status):
    ending = classify(Evidence(exit_code=137, last_words=["some warning", said]))
    assert ending.status == status
    assert said.split("error: ")[1] in ending.reason


def test_a_rank_that_could_not_write_its_report_is_believed_what_it_printed():
    reports = [report(error=None, message="no word of why")]
    said = ["rank 0 on n0: KeyError: 1", "rank 1 on n1: OSError: [Errno 28] No space left on device", "MPI_ABORT"]
    ending = classify(Evidence(exit_code=1, reports=reports, last_words=said))
    assert (ending.status, ending.reason) == ("crashed", said[1])
    ending = classify(Evidence(exit_code=1, reports=reports, last_words=said[:1]))
    assert ending.reason == "rank 1 on n1: no word of why"


def test_a_run_that_went_on_has_the_time_that_it_takes_in_one_go():
    ending = classify(Evidence(exit_code=0, summary=OK | {"resumes": 1, "wall_s": 100.0, "lost_s": 30.0}))
    assert (ending.numbers["wall_s"], ending.numbers["resumes"]) == (70.0, 1)


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, None),
        ({"ended": {"status": "timeout", "reason": "too slow", "wall_s": 3.0}}, "timeout"),
        # as older versions left it: the driver wrote what Slurm said into the file of the supervisor
        ({"ended": {"at": "2026-01-31", "status": "node_fail", "reason": "Slurm job 17 lost a node"}}, "node_fail"),
        ({"ended": {"status": "preempted", "signal": "SIGUSR1"}, "slurm_end": {"status": "timeout"}}, "timeout"),
        ({"slurm_end": {"status": "rejected", "reason": "sbatch: no"}}, "rejected"),
    ],
)
def test_what_was_written_of_an_end_is_read(tmp_path, files, status):
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    ending = classify(written(Attempt(tmp_path)))
    assert (ending and ending.status) == status
