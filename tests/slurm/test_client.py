"""What Slurm says is believed, what it does not say is unknown, and no question hangs or raises."""

import fake_slurm
import pytest
from fake_slurm import line, says, shown

from ddp_hpc.slurm import client, job_end, job_environment


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Install made-up commands: `cluster(squeue="...")`."""
    client.forget()
    yield lambda **commands: fake_slurm.install(tmp_path / "bin", monkeypatch, commands)
    client.forget()


def test_jobs_are_found_by_run_and_folder_the_newest_last(cluster, tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    lines = [line(10, "RUNNING", "a", here), line(9, "FAILED", "a", here), line(11, "RUNNING", "a", elsewhere)]
    cluster(squeue=says("\n".join([*lines, line(12, "PENDING", "b", here, "Resources")])))

    found = client.queue()

    assert [job.number for job in found.of(here, "a")] == ["9", "10"]
    assert [job.number for job in found.of(tmp_path / "link", "a")] == ["9", "10"]
    assert [(job.waits, job.reason) for job in found.of(here, "b")] == [(True, "Resources")]
    assert found.of(here, "c") == []
    assert found.problem is None


@pytest.mark.parametrize(
    ("state", "active", "waits"),
    [
        ("PENDING", True, True),
        ("CONFIGURING", True, True),
        ("REQUEUED", True, True),
        ("RUNNING", True, False),
        ("SUSPENDED", True, False),
        ("COMPLETING", True, False),
        ("A_STATE_OF_NEXT_YEAR", True, False),
        ("COMPLETED", False, False),
        ("CANCELLED", False, False),
        ("NODE_FAIL", False, False),
        ("OUT_OF_MEMORY", False, False),
        ("PREEMPTED", False, False),
        ("TIMEOUT", False, False),
    ],
)
def test_only_a_known_end_is_an_end(cluster, state, active, waits):
    cluster(squeue=says(line(1, state)))
    (job,) = client.queue().jobs
    assert (job.active, job.waits) == (active, waits)


@pytest.mark.parametrize(
    ("squeue", "said"),
    [
        ("echo; exit 1", "squeue: "),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        (says("Welcome to this cluster!"), "Welcome to this cluster!'"),
        (says(f"{line(1, 'RUNNING')}\n{line(2, 'RUNNING')[:20]}"), "ends within a job"),
        ("while :; do /bin/sleep 0.1; done", "no answer within 0.5 s"),
        (None, "No such file"),
    ],
    ids=["fails", "no controller", "greeting", "half", "hangs", "absent"],
)
def test_a_query_that_fails_knows_of_no_job_and_says_why(cluster, monkeypatch, squeue, said):
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    cluster(**({"squeue": squeue} if squeue else {}))

    found = client.queue()

    assert found.jobs == ()
    assert said in found.problem
    assert client.record("1") is None


def test_an_answer_without_the_names_of_its_columns_is_none_and_a_greeting_before_them_is_no_job(cluster, tmp_path):
    cluster(squeue=says(line(1, "RUNNING")))
    script = tmp_path / "bin" / "squeue"
    whole = script.read_text()
    script.write_text("#!/bin/sh\nexit 0\n")
    client.forget()
    assert (client.queue().jobs, client.queue().problem) == ((), "squeue: an empty answer")
    script.write_text(whole.replace("#!/bin/sh\n", "#!/bin/sh\necho 'Maintenance on Monday'\n"))
    client.forget()
    assert [job.number for job in client.queue().jobs] == ["1"]


def test_what_others_write_into_their_jobs_hides_none_of_ours(cluster, tmp_path):
    odd = [
        "two\nlines",
        "\n",
        f"a separator {fake_slurm.SEPARATOR} in it",
        f"a {fake_slurm.BEGINS} b",
        "a | b\tc",
        "é–≤",
    ]
    foreign = [line(2 + at, "RUNNING").rpartition(fake_slurm.SEPARATOR)[0] for at in range(len(odd))]
    rows = [f"{job}{fake_slurm.SEPARATOR}{comment}" for job, comment in zip(foreign, odd, strict=True)]
    cluster(squeue=says("\n".join([line(1, "RUNNING", "a", tmp_path), *rows, line(20, "PENDING", "b", tmp_path)])))

    found = client.queue()

    assert found.problem is None
    assert [job.number for job in found.jobs if job.run] == ["1", "20"]
    assert found.job("2").comment == "two"


@pytest.mark.parametrize(("clusters", "asked"), [("a,b", "none"), ("all", "none"), ("b", "b")])
def test_only_one_cluster_is_asked(cluster, monkeypatch, clusters, asked):
    monkeypatch.setenv("SLURM_CLUSTERS", clusters)
    cluster(squeue=says(line(1, "RUNNING")), scontrol='echo "cluster ${SLURM_CLUSTERS:-none}" >&2; exit 1')
    assert client._ask("scontrol").last_words == f"cluster {asked}"
    shell = {"SLURM_CLUSTERS": clusters}
    note = job_environment.without_shapes(shell)
    assert (shell, bool(note)) == (({}, True) if asked == "none" else ({"SLURM_CLUSTERS": "b"}, False))


def test_no_jobs_is_an_answer(cluster):
    cluster(squeue="exit 0")
    assert client.queue() == client.Queue()


def test_squeue_is_asked_once_for_all_runs(cluster, tmp_path):
    cluster(squeue=f"echo x >> {tmp_path}/asked; {says(line(1, 'RUNNING'))}")
    for _ in range(5):
        client.queue()
    assert (tmp_path / "asked").read_text() == "x\n"
    client.queue(kept_s=0)
    assert (tmp_path / "asked").read_text() == "x\nx\n"


def test_a_controller_that_is_away_is_not_asked_all_the_time(cluster, tmp_path):
    cluster(squeue=f"echo x >> {tmp_path}/asked; exit 1")
    for _ in range(5):
        client.queue(kept_s=0)
    assert (tmp_path / "asked").read_text() == "x\n"


@pytest.mark.parametrize("state", sorted(client.ENDED))
def test_every_end_is_told_with_the_words_of_slurm(cluster, state):
    cluster(scontrol=says(shown(7, state, "ExitCode=1:0")))
    status, reason = job_end.ending(client.record("7"))
    expected = {
        "TIMEOUT": "timeout",
        "DEADLINE": "timeout",
        "NODE_FAIL": "node_fail",
        "BOOT_FAIL": "node_fail",
        "PREEMPTED": "preempted",
        "OUT_OF_MEMORY": "oom_host",
        "CANCELLED": "cancelled",
        "REVOKED": "cancelled",
    }
    assert status == expected.get(state, "crashed")
    assert "Slurm job 7" in reason
    assert state.lower() in reason.lower() or state == "REVOKED"


def test_a_job_that_left_before_its_time_to_make_room_was_over_was_preempted(cluster):
    """Slurm then says FAILED, as a run that has left its checkpoint ends with 1."""
    cluster(scontrol=says(shown(7, "FAILED", "ExitCode=1:0 PreemptEligibleTime=2026-01-31 PreemptTime=2026-01-31")))
    status, reason = job_end.ending(client.record("7"))
    assert (status, reason) == ("preempted", "Slurm job 7 had to make room for another: told to at 2026-01-31 on node1")
    cluster(scontrol=says(shown(8, "FAILED", "ExitCode=1:0 PreemptEligibleTime=2026-01-31 PreemptTime=None")))
    assert job_end.ending(client.record("8"))[0] == "crashed"


ACCOUNTED = "CANCELLED by 1234|0:15|1||node1|00:01:00\nCANCELLED|0:15|1|900000K|node1|"


def test_accounting_tells_who_cancelled_when_the_controller_has_forgotten(cluster):
    cluster(scontrol=says("slurm_load_jobs error: Invalid job id specified", 1), sacct=says(ACCOUNTED))
    found = client.record("7")
    assert (found.state, found.by, found.peak_bytes) == ("CANCELLED", "1234", 900_000 * 1024)
    assert job_end.ending(found)[1] == "Slurm job 7 was cancelled by user 1234 on node1"


def test_what_the_controller_says_comes_first_and_accounting_adds(cluster):
    cluster(scontrol=says(shown(7, "CANCELLED")), sacct=says(ACCOUNTED))
    found = client.record("7")
    assert (found.by, found.limit, found.memory_bytes) == ("1234", "00:01:00", 1000 * 1024**2)


@pytest.mark.parametrize(
    "sacct",
    [says("Slurm accounting storage is disabled", 1), says("garbage"), "while :; do /bin/sleep 0.1; done", None],
)
def test_without_accounting_a_forgotten_job_is_unknown(cluster, monkeypatch, sacct):
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    cluster(scontrol="exit 1", **({"sacct": sacct} if sacct else {}))
    assert client.record("7") is None


def test_accounting_that_hangs_is_asked_once_and_not_for_every_job(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    cluster(scontrol=says(shown(7, "FAILED")), sacct=f"echo x >> {tmp_path}/asked; while :; do /bin/sleep 0.1; done")
    assert {client.record(number).state for number in "789"} == {"FAILED"}
    assert (tmp_path / "asked").read_text() == "x\n"


def test_a_job_that_still_runs_is_not_looked_up_in_accounting(cluster, tmp_path):
    cluster(scontrol=says(shown(7, "RUNNING")), sacct=f"touch {tmp_path}/asked")
    assert client.record("7").state == "RUNNING"
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("more", "log", "seen", "status", "said"),
    [
        ("ExitCode=0:9", "slurmstepd: error: Exceeded job memory limit", None, "oom_host", "its log says"),
        ("ExitCode=1:0", "slurmstepd: error: Detected 1 oom-kill event(s)", None, "oom_host", "its log says"),
        ("ExitCode=0:9", "", 1.0e9, "oom_host", "1.00 of 1.05 GB in use: most likely for lack of memory"),
        ("ExitCode=0:9", "", 0.5e9, "crashed", "exit code 0:9"),
        ("ExitCode=0:9", "", None, "crashed", "exit code 0:9"),
        ("ExitCode=1:0", "", 1.0e9, "crashed", "exit code 1:0"),
    ],
)
def test_a_lack_of_memory_is_told_from_other_failures_and_how_sure_that_is(
    cluster, tmp_path, more, log, seen, status, said
):
    (tmp_path / "job.log").write_text(f"step 1\n{log}\n")
    cluster(scontrol=says(shown(7, "FAILED", f"{more} StdOut={tmp_path}/job.log Power=")))
    found, reason = job_end.ending(client.record("7"), seen)
    assert found == status
    assert said in reason


def test_jobs_are_cancelled_by_number(cluster, tmp_path):
    cluster(scancel=f"echo $* > {tmp_path}/asked")
    assert client.cancel(["7", "8"]) is None
    assert (tmp_path / "asked").read_text() == "7 8\n"
    cluster(scancel="echo scancel: error: Access denied >&2; exit 1")
    assert client.cancel(["7"]) == "scancel: error: Access denied"
