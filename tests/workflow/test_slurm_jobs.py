"""What a driver makes of the queue: which jobs are its own, when a workflow is pointless, what is cancelled."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import factory
import fake_slurm
import pytest
from fake_slurm import line, says

from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import mark_slurm, state_of
from ddp_hpc.slurm import client
from ddp_hpc.system import deadlines
from ddp_hpc.system.progress import ProgressLine
from ddp_hpc.workflow.progress import TrainingProgress
from ddp_hpc.workflow.retries import RetryRounds
from ddp_hpc.workflow.slurm_jobs import Jobs, Watch
from ddp_hpc.workflow.snakemake_process import Signals

GRID = [{"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 0.2, 0.3]}]


@pytest.fixture
def study_runs(tmp_path):
    """Three runs of which nothing is there."""
    return factory.planned(tmp_path, grid=GRID)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Install made-up commands; what Slurm said before is forgotten."""

    def install(**commands: str) -> None:
        client.forget()
        fake_slurm.install(tmp_path / "bin", monkeypatch, commands)

    yield install
    client.forget()


@pytest.fixture
def jobs(tmp_path, study_runs):
    return Jobs(Project(tmp_path), study_runs.planned, Signals())


def listed(study_runs, folder, *states: str) -> str:
    """What squeue prints of jobs in these states, of the planned runs one after the other."""
    runs = zip(states, study_runs.planned, strict=False)
    return says("\n".join(line(n, state, one.run, folder) for n, (state, one) in enumerate(runs, 17)))


def test_ours_are_the_jobs_of_planned_runs_in_this_folder_that_are_not_over(tmp_path, study_runs, jobs, cluster):
    run = study_runs.planned[0].run
    lines = [line(17, "RUNNING", run, tmp_path), line(18, "PENDING", run, "/elsewhere")]
    lines += [line(19, "RUNNING", "another", tmp_path), line(20, "FAILED", run, tmp_path)]
    cluster(squeue=says("\n".join(lines)))
    assert [job.number for job in jobs.active()] == ["17"]


def test_a_job_that_squeue_has_left_out_is_active_until_scontrol_says_otherwise(tmp_path, study_runs, jobs, cluster):
    everything = listed(study_runs, tmp_path, "RUNNING", "PENDING")
    cluster(squeue=everything)
    assert [job.number for job in jobs.active()] == ["17", "18"]
    cluster(squeue="exit 0", scontrol=says(fake_slurm.shown(17, "RUNNING")))
    assert [job.number for job in jobs.active()] == ["17", "18"]
    cluster(squeue="exit 0", scontrol=says(fake_slurm.shown(17, "COMPLETED")))
    assert jobs.active() == []
    cluster(squeue="exit 0", scontrol="exit 1")
    assert jobs.active() == []


@pytest.fixture
def watch(jobs, monkeypatch) -> Callable[[int, float], Watch]:
    """A watch that has seen no job for so many seconds, over a pass of which so many runs have not ended."""

    def make(unended: int, idle_s: float) -> Watch:
        made = Watch(jobs, lambda: unended)
        made._last_active -= idle_s
        return made

    return make


@pytest.fixture
def workflow() -> Iterator[int]:
    """The process id of one without children, as Snakemake is while it waits."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    ("squeue", "unended", "idle_s", "over", "stuck"),
    [
        ("exit 0", 0, 2 * deadlines.QUIET_S, True, False),  # all has ended, Snakemake has not noticed
        ("exit 0", 0, 0.0, False, False),
        ("exit 0", 1, 2 * deadlines.QUIET_S, False, False),  # it may be about to submit
        ("exit 0", 1, 2 * deadlines.STUCK_S, True, True),
        ("exit 1", 1, 2 * deadlines.STUCK_S, False, False),  # unknown is not none
        ("exit 1", 0, 2 * deadlines.STUCK_S, False, False),
    ],
)
def test_a_workflow_is_pointless_when_all_has_ended_or_it_waits_for_jobs_that_are_not_there(
    cluster, watch, workflow, squeue, unended, idle_s, over, stuck
):
    cluster(squeue=squeue)
    one = watch(unended, idle_s)
    assert one(workflow) is over
    assert (one.stuck is not None) is stuck


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_workflow_whose_jobs_wait_or_run_is_left_alone(tmp_path, study_runs, cluster, watch, workflow, state):
    cluster(squeue=listed(study_runs, tmp_path, state))
    assert watch(1, 2 * deadlines.STUCK_S)(workflow) is False


def test_a_workflow_that_fetches_a_dataset_is_left_alone(cluster, watch, workflow, monkeypatch):
    cluster(squeue="exit 0")
    monkeypatch.setattr(deadlines, "LOOK_S", 0.2)
    with subprocess.Popen(["/bin/sh", "-c", "/bin/sleep 2; echo"], stdout=subprocess.PIPE) as fetching:
        time.sleep(0.5)
        assert watch(1, 2 * deadlines.STUCK_S)(fetching.pid) is False
    assert watch(1, 2 * deadlines.STUCK_S)(workflow) is True


def test_a_workflow_that_waits_for_accounting_that_hangs_does_not_work(cluster, watch, monkeypatch, tmp_path):
    """With slurmdbd stopped, one sacct took 45 s, and the plugin asks twenty times."""
    cluster(squeue="exit 0")
    monkeypatch.setattr(deadlines, "LOOK_S", 0.2)
    (tmp_path / "sacct").symlink_to("/bin/sleep")
    with subprocess.Popen(["/bin/sh", "-c", f"{tmp_path}/sacct 2; echo"], stdout=subprocess.PIPE) as asking:
        time.sleep(0.5)
        assert watch(0, 2 * deadlines.QUIET_S)(asking.pid) is True


def test_all_jobs_are_cancelled_once_and_named(tmp_path, study_runs, jobs, cluster, capsys):
    cancel = f"echo $* >> {tmp_path}/cancelled; echo exit 0 > {tmp_path}/gone"
    away = f"test -e {tmp_path}/asked || {{ : > {tmp_path}/asked; exit 1; }}"  # only the first time
    squeue = (
        f"{away}\ntest -e {tmp_path}/gone && exit 0\n{listed(study_runs, tmp_path, 'RUNNING', 'PENDING', 'COMPLETED')}"
    )
    cluster(squeue=squeue, scancel=cancel)
    jobs.cancel()
    assert (tmp_path / "cancelled").read_text() == "17 18\n"
    assert capsys.readouterr().err == "cancelled 2 Slurm jobs: 17, 18\n"


def test_what_cannot_be_cancelled_because_slurm_is_away_is_said(jobs, cluster, capsys):
    cluster(squeue="exit 1", scancel="exit 1")
    jobs.cancel()
    assert "jobs may go on, and the same command finds them" in capsys.readouterr().err


def test_nothing_is_submitted_until_slurm_answers(tmp_path, jobs, cluster, monkeypatch, capsys):
    monkeypatch.setattr(client, "KEPT_WITHOUT_ANSWER_S", 0)
    cluster(squeue=f"echo x >> {tmp_path}/asked; read -r two < {tmp_path}/answers || exit 1")
    threading.Timer(1, lambda: (tmp_path / "answers").write_text("yes\n")).start()
    jobs.wait_for_slurm()
    assert (tmp_path / "answers").exists()
    assert capsys.readouterr().err.count("nothing is submitted until it does") == 1


def test_a_slow_squeue_does_not_keep_progress_from_looking_again(tmp_path, study_runs, cluster):
    """Waiting for Slurm takes no core from the trainings; two minutes without a look would hide all ends."""
    mark_slurm(study_runs.store)
    cluster(squeue="/bin/sleep 1.5")
    progress = TrainingProgress(study_runs, study_runs.planned)
    progress.show()
    assert progress.next_look - time.monotonic() < deadlines.STUCK_S / 4


def test_while_nothing_runs_it_is_said_why_jobs_wait(tmp_path, study_runs, cluster, capsys):
    mark_slurm(study_runs.store)
    lines = [line(17 + n, "PENDING", one.run, tmp_path, "JobHeldAdmin") for n, one in enumerate(study_runs.planned)]
    cluster(squeue=says("\n".join(lines)))
    progress = TrainingProgress(study_runs, study_runs.planned)
    progress.line = ProgressLine(at_once=True)
    progress.show()
    assert "0 of 3 runs trained, 3 queued (JobHeldAdmin), " in capsys.readouterr().out


class Scripted:
    """A Snakemake that is made up: in each round the runs end as the script says; it notes what it was to train."""

    def __init__(self, study_runs, *script: dict[int, str]) -> None:
        self.study_runs, self.script, self.trained = study_runs, list(script), []
        self.project = Project(study_runs.store.root.parent)
        self.log, self.events = Path("try.log"), self

    def start(self, target, progress, only) -> int:
        runs = json.loads((self.project.root / only.removeprefix("only=")).read_text())
        numbers = {one.run: number for number, one in enumerate(self.study_runs.planned)}
        self.trained.append([numbers[run] for run in runs])
        for number, status in self.script.pop(0).items():
            one = self.study_runs.planned[number]
            if status == "ok":
                factory.write(self.study_runs, one, factory.realistic(one.spec))
                continue
            tried = len(self.study_runs.store.run(one.run).attempts)
            journal = self.study_runs.store.run(one.run).path / "attempts" / str(tried + 1)
            journal.mkdir(parents=True)
            (journal / "ended.json").write_text(json.dumps({"status": status, "reason": "scripted"}))
        return 1


RETRIES = {"timeout": 1, "node_fail": 2}


def test_what_fails_is_tried_again_as_often_as_the_machine_says_and_no_other(study_runs):
    workflow = Scripted(
        study_runs,
        {0: "ok", 1: "timeout", 2: "crashed"},
        {1: "node_fail"},
        {1: "node_fail"},
        {1: "timeout"},
    )
    RetryRounds(study_runs, workflow, None, RETRIES, Signals()).train(study_runs.planned)
    assert workflow.trained == [[0, 1, 2], [1], [1], [1]]
    assert state_of(study_runs.store, study_runs.planned[1].run).status == "timeout"


def test_what_failed_with_its_node_waits_before_it_is_tried_again(study_runs, capsys):
    workflow = Scripted(study_runs, {0: "timeout"}, {0: "node_fail"}, {0: "ok"})
    began = time.monotonic()
    RetryRounds(study_runs, workflow, None, RETRIES, Signals(), pause_s=1.0).train([study_runs.planned[0]])
    assert time.monotonic() - began >= 1.0
    assert [line for line in capsys.readouterr().out.splitlines() if "try again" in line] == [
        "1 run to try again: 1 timeout",
        "1 run to try again, in 1 s: 1 node_fail",
    ]


def test_without_a_machine_nothing_is_tried_again_within_one_call(study_runs):
    workflow = Scripted(study_runs, {0: "ok", 1: "timeout", 2: "node_fail"})
    RetryRounds(study_runs, workflow, None, {}, Signals()).train(study_runs.planned)
    assert workflow.trained == [[0, 1, 2]]


def test_failures_of_earlier_calls_do_not_count(study_runs):
    for _ in range(2):
        workflow = Scripted(study_runs, {1: "timeout"}, {1: "timeout"})
        RetryRounds(study_runs, workflow, None, RETRIES, Signals()).train([study_runs.planned[1]])
        assert workflow.trained == [[1], [1]]


def test_after_a_signal_nothing_is_tried_again(study_runs):
    signals = Signals()
    workflow = Scripted(study_runs, {1: "timeout"})
    signals.asked.append(15)
    assert RetryRounds(study_runs, workflow, None, RETRIES, signals).train([study_runs.planned[1]]) == -1
    assert workflow.trained == []


class Refusing(Scripted):
    """The queue of this user takes one job at a time: sbatch refuses the others."""

    def start(self, target, progress, only, over) -> int:
        runs = json.loads((self.project.root / only.removeprefix("only=")).read_text())
        self.script = [{number: "ok"} for number, one in enumerate(self.study_runs.planned) if one.run == runs[0]]
        self.refused = dict.fromkeys(runs[1:], "sbatch: error: AssocMaxSubmitJobLimit")
        return super().start(target, progress, only)

    def refusals(self) -> dict[str, str]:
        refused, self.refused = self.refused, {}
        return refused


def test_what_a_full_queue_has_refused_is_submitted_when_there_is_room(study_runs, jobs, cluster, capsys):
    cluster(squeue="exit 0")
    workflow = Refusing(study_runs)
    RetryRounds(study_runs, workflow, jobs, {}, Signals()).train(study_runs.planned)
    assert workflow.trained == [[0, 1, 2], [1, 2], [2]]
    assert "2 runs to try again: 2 rejected" in capsys.readouterr().out


def test_what_is_refused_though_no_other_job_is_there_is_not_submitted_for_ever(study_runs, jobs, cluster):
    cluster(squeue="exit 0")
    workflow = Refusing(study_runs)
    workflow.refused = {one.run: "Job violates policy (job submit limit)" for one in study_runs.planned}
    workflow.start = lambda *given, **named: 1
    RetryRounds(study_runs, workflow, jobs, {}, Signals()).train(study_runs.planned)
    assert {state_of(study_runs.store, one.run).status for one in study_runs.planned} == {"rejected"}
    assert all(state_of(study_runs.store, one.run).attempts == 1 for one in study_runs.planned)
