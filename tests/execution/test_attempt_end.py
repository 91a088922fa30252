"""How an attempt ended, where the ranks could not say it themselves."""

import json

import pytest

from ddp_hpc.execution import attempt_end
from ddp_hpc.system import cgroups


@pytest.mark.parametrize(
    ("own", "files", "kills"),
    [
        ("0::/a", {"a/memory.events": "low 0\noom 1\noom_kill 2\n"}, 2),
        # a rank in another step of the same job, which the job's group counts too; other jobs do not matter
        (
            "0::/slurm/job_17/step_batch",
            {
                "slurm/memory.events": "oom_kill 9",
                "slurm/job_17/memory.events": "oom_kill 1",
                "slurm/job_17/step_batch/memory.events": "oom_kill 0",
            },
            1,
        ),
        (
            "11:memory:/slurm/uid_0/job_17/step_batch\n3:cpu:/",
            {"memory/slurm/uid_0/job_17/memory.oom_control": "under_oom 0\noom_kill 3"},
            3,
        ),
        ("0::/a", {}, 0),
        ("", {}, 0),
    ],
    ids=["own group", "the job's", "version 1", "no counter", "no group"],
)
def test_kills_for_memory_are_counted_in_our_group_and_in_that_of_the_job(tmp_path, own, files, kills):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert cgroups.oom_kills(tmp_path, tmp_path / "own") == kills


def test_where_the_kernel_does_not_say_nothing_was_killed(tmp_path):
    assert cgroups.oom_kills(tmp_path, tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("srun: error: node1: task 0: Out Of Memory", "oom_host"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=17.0", "oom_host"),
        ("slurmstepd: error: StepId=3.0 exceeded memory limit (4331 > 1048), being killed", "oom_host"),
        ("srun: error: Node failure on node2", "node_fail"),
        ("srun: error: Task launch for StepId=4.0 failed on node node2: Communication connection failure", "node_fail"),
        ("srun: error: Timed out waiting for job step to complete", "node_fail"),
        ("srun: error: node1: task 0: Killed", "launch_failed"),
    ],
)
def test_what_the_launcher_says_of_memory_and_nodes_counts(tmp_path, said, status):
    outcome = attempt_end.judge(137, tmp_path, ["some warning", said])
    assert outcome.status == status
    assert said.split("error: ")[1] in outcome.reason


def test_a_rank_that_could_not_write_its_report_is_believed_what_it_printed(tmp_path):
    report = {"rank": 1, "host": "n2", "error": None, "message": "no word of why", "at": 1.0, "kind": "error"}
    (tmp_path / "rank-1.json").write_text(json.dumps(report))
    said = ["rank 0 on n1: KeyError: 1", "rank 1 on n2: OSError: [Errno 28] No space left on device", "MPI_ABORT"]
    outcome = attempt_end.judge(1, tmp_path, said)
    assert (outcome.status, outcome.reason) == ("crashed", said[1])
    assert attempt_end.judge(1, tmp_path, said[:1]).reason == "rank 1 on n2: no word of why"
