"""`ddp-hpc run`: one command to the page, whatever happens on the way."""

import errno
import json
import os
import pwd
import re
import signal
import subprocess

import factory
import pytest
from faulty import FAULTY
from sandbox import Sandbox, half_written, wait_for

from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import State
from ddp_hpc.system.progress import ProgressLine
from ddp_hpc.workflow import driver, progress
from ddp_hpc.workflow import driver_lock as lock_of

HEAD = (
    "base: {dataset: digits, exchange: none, world_size: 1, batch_size: 16, threads_per_rank: 1, learning_rate: 0.1}\n"
)


@pytest.fixture
def project(tmp_path):
    sandbox = Sandbox.make(tmp_path / "project")
    (sandbox.package / "models" / "faulty.py").write_text(FAULTY)
    yield sandbox
    sandbox.end_all()


def trained_in(project: Sandbox) -> int:
    """How many trainings have been attempted so far."""
    return len(list((project.root / "results" / "runs").glob("*/attempts/*")))


def test_runs_that_would_crash_as_another_did_are_not_started(project):
    """A model lacks its weights, a dataset its file, an exchange a package."""
    (project.package / "data" / "gone.py").write_text(
        '"""Numbers of a file."""\n\nTASK, OUTPUTS, SHAPE, TRAIN_SAMPLES = "classification", 10, (64,), 100\n\n\n'
        'def build(folder):\n    return open("gone.csv")\n'
    )
    lacks = (project.package / "exchange" / "none.py").read_text().replace('"""\n', '"""\nimport no_such_package\n', 1)
    (project.package / "exchange" / "lacking.py").write_text(lacks)
    project.study(
        "some",
        HEAD + "budget: {steps: 2}\ntables: []\nfigures: []\ngrid:\n"
        "- {model: mlp, seed: 1}\n"
        "- {model: {name: faulty, fault: before the first step}, seed: [1, 2]}\n"
        "- {dataset: gone, model: [mlp, faulty], seed: 1}\n"
        "- {exchange: lacking, model: [mlp, faulty], seed: 3}\n",
    )

    tried = project.call("ddp-hpc", "try", "some", "--json")
    done = project.call("ddp-hpc", "run", "some")

    assert tried.stdout, tried.stderr
    problems = [row.get("problem") for row in json.loads(tried.stdout)]
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'gone.csv'"
    assert (tried.returncode, problems) == (
        1,
        [None, "RuntimeError: no such file: weights.bin", missing, missing, None],
    )
    good = json.loads(tried.stdout)[0]
    assert (good["inputs"].endswith("x64"), good["parameters"] > 1000, good["step_s"] > 0) == (True, True, True)
    rows = project.status("some").values()
    assert done.returncode == 1
    assert sorted(row["status"] for row in rows) == [*3 * ["cancelled"], *3 * ["crashed"], "ok"]
    assert len(list((project.root / "results" / "runs").glob("*/attempts/*/rank-0.json"))) == 3
    assert re.search("no such file: weights.bin; runs with the same model and dataset and .* not started", done.stderr)
    reasons = {row["reason"].partition(": ")[2] for row in rows if row["status"] == "cancelled"}
    assert all(re.match("[^ ]+, with the same .*, has crashed: rank 0 on ", reason) for reason in reasons)
    project.edit("src/ddp_hpc/models/faulty.py", "raise RuntimeError", "str")  # other code: other runs
    (project.root / "gone.csv").touch()  # now it is there: the same runs are tried again

    again = project.call("ddp-hpc", "run", "some")

    assert "no such file" not in again.stderr
    assert "gone.csv" not in again.stderr


def test_one_failed_run_blocks_neither_the_others_nor_the_page(project, tmp_path, monkeypatch):
    """The profile that this user has for other workflows would only look."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("dry-run: true\n")
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(tmp_path / "mine"))
    project.study(
        "some",
        HEAD + "budget: {steps: 20}\ngrid: {model: [mlp, {name: faulty, fault: exception}], seed: [1, 2]}\n"
        "tables: [runs, winners]\nfigures: [loss_curves]\n",
    )

    done = project.call("ddp-hpc", "run", "some")

    assert done.returncode == 1
    assert "2 of 4 runs" in done.stdout
    assert done.stderr.count("ValueError: the eighth step is bad") == 1  # the same reason once, with its count
    assert "2 crashed: rank 0 on " in done.stderr
    page = project.root / "results" / "studies" / "some" / "report" / "index.html"
    assert "2 of 4 runs, 2 missing: 2 crashed" in page.read_text()
    assert {row["status"] for row in project.status("some").values()} == {"ok", "crashed"}
    runs = project.root / "results" / "runs"
    begun = {run: (runs / run / "attempts" / "1" / "launch.json").stat().st_mtime_ns for run in project.status("some")}
    listed = list(begun)  # in the order of the study: two models, each with two seeds
    assert sorted(begun, key=begun.get) == [*listed[::2], *listed[1::2]]  # trained in rounds, a seed each

    table = project.root / "results" / "studies" / "some" / "tables" / "runs.parquet"
    before, tried = table.stat().st_mtime_ns, trained_in(project)
    (project.root / "profiles" / "bare").mkdir()  # has lost the lines that a profile must keep
    (project.root / "profiles" / "bare" / "profile.yaml").write_text("cores: 1\n")
    again = project.call("ddp-hpc", "run", "some", "--profile", "profiles/bare")
    assert again.returncode == 1
    assert trained_in(project) == tried + 2  # asked again: the failed ones only
    assert table.stat().st_mtime_ns == before  # and nothing new to show

    warns = '__import__("warnings").warn("the eighth step is odd")'
    project.edit("src/ddp_hpc/models/faulty.py", 'raise ValueError("the eighth step is bad")', warns)
    mended = project.call("ddp-hpc", "run", "some")
    assert mended.returncode == 0, mended.stderr
    assert "4 of 4 runs" in mended.stdout
    assert re.search(r"in 2 of 4 runs .{1,8}UserWarning: the eighth step is odd \(faulty.py:\d+\)", page.read_text())
    assert (
        "missing" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page.read_text(), flags=re.DOTALL)[:3000]
    )


def test_a_full_disk_is_named_with_each_file_and_what_was_half_written_goes_with_the_next_call(project):
    project.study("full", HEAD + "budget: {steps: 20}\ngrid: {model: mlp}\ntables: [runs]\nfigures: [loss_curves]\n")
    with project.results_on_a_disk(megabytes=3) as leave:
        project.finish("full")
        leave(0)
        done = project.call("ddp-hpc", "run", "full")
        assert done.returncode == 2
        assert "No space left on device, writing: " in done.stderr
        assert done.stderr.rstrip().endswith("results/driver.lock'")

        leave(148)  # for tables and their stamps, but not for a figure in three formats
        done = project.call("ddp-hpc", "run", "full")
        assert done.returncode == 1
        assert re.search(r"No space left on device, writing: '.*/results/studies/full/figures/loss_curves", done.stderr)
        assert re.search(rf"the disk of {project.root / 'results'} is full: \d+ kB are left", done.stderr)
        assert "Traceback" not in done.stderr

        leave(None)
        half = half_written(project.root / "results" / "studies" / "full" / "tables" / "runs.csv")
        done = project.call("ddp-hpc", "run", "full")
        assert done.returncode == 0, done.stderr
        assert not half.exists()


def test_another_record_makes_new_tables_and_no_flag_deletes_or_retrains_one(project, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nowhere")  # a node without the home folder
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    project.study("kept", HEAD + "budget: {steps: 20}\ngrid: {model: mlp}\ntables: [runs]\nfigures: []\n")
    assert project.call("ddp-hpc", "run", "kept").returncode == 0
    table = project.root / "results" / "studies" / "kept" / "tables" / "runs.parquet"
    made = table.stat().st_mtime_ns
    (record,) = (project.root / "results" / "runs").glob("*/run.parquet")
    content = record.read_bytes()

    os.utime(record, (1e9, 1e9))  # whatever the date of what was put in its place
    assert project.call("ddp-hpc", "run", "kept").returncode == 0
    assert table.stat().st_mtime_ns > made
    again = project.call("ddp-hpc", "run", "kept")
    assert "nothing to do: 1 of 1 run finished; tables, figures and page are up to date" in again.stdout

    os.utime(record)  # newer than the tables that were made from it
    for flag in ("--forceall", "--delete-all-output"):
        project.call("snakemake", flag, "--config", "studies=[kept]")
    assert record.read_bytes() == content
    again = project.call("ddp-hpc", "run", "kept")
    assert again.returncode == 0
    assert trained_in(project) == 1


def test_failures_that_differ_in_job_host_and_log_only_are_one_line(tmp_path):
    grid = [{"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [n / 100 for n in range(1, 13)]}]
    study_runs = factory.planned(tmp_path, grid=grid)
    said = [
        f"Slurm job {n} failed on gx-r{n:02}: FAILED, exit code 1:0; its log, /a/{n}.log, says: No" for n in range(10)
    ]
    said += ["Slurm job 11 failed on gx-r11: FAILED, exit code 1:0; its log, /a/11.log, says: Yes", None]
    states = [State("crashed" if reason else "missing", reason) for reason in said]
    lines = driver._failures(
        study_runs, {one.run: state for one, state in zip(study_runs.planned, states, strict=True)}
    )
    assert [line.split(":")[0] for line in lines] == ["  10 crashed", "  1 crashed", "  1 not yet run"]
    assert "Slurm job 0 failed on gx-r00" in lines[0]


@pytest.fixture
def without_locks(monkeypatch):
    """A file system that knows no flock, as Lustre is often mounted."""

    def unsupported(*ignored: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock_of.fcntl, "flock", unsupported)
    monkeypatch.setattr(lock_of, "OTHERS_WRITE_S", 0)


def test_where_files_cannot_be_locked_the_process_that_the_file_names_holds_it(tmp_path, without_locks):
    first, second = lock_of.DriverLock(tmp_path), lock_of.DriverLock(tmp_path)
    assert first.take()
    assert not second.take()
    assert f"pid {os.getpid()}" in second.refusal()
    assert f"has no locks: if it is gone, delete {second.file}" in second.refusal()
    first.release()
    assert second.take()
    second.release()


def test_where_files_cannot_be_locked_a_dead_holder_holds_nothing_and_one_elsewhere_does(tmp_path, without_locks):
    lock = lock_of.DriverLock(tmp_path)
    assert lock.take()
    ours = json.loads(lock.file.read_text())
    lock.file.write_text(json.dumps(ours | {"process_created": ours["process_created"] - 1}))  # the id was used before
    assert lock.take()
    lock.file.write_text(json.dumps(ours | {"process_space": "another container"}))
    assert not lock.take()


def test_what_is_written_in_a_group_folder_is_for_the_group(tmp_path, monkeypatch):
    for folder in ("config/studies", "workflow", "results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "workflow" / "Snakefile").touch()
    before = os.umask(0o022)
    try:
        for mode, expected in ((0o2755, 0o644), (0o2775, 0o664)):
            (tmp_path / "results").chmod(mode)
            lock = lock_of.DriverLock(Project.here(tmp_path).root)
            assert lock.take()
            lock.release()
            assert lock.file.stat().st_mode & 0o777 == expected
            lock.file.unlink()
    finally:
        os.umask(before)


def test_who_may_not_write_the_lock_is_told_whose_it_is(tmp_path, monkeypatch):
    lock = lock_of.DriverLock(tmp_path)
    assert lock.take()
    lock.release()
    lock.file.chmod(0o640)

    def refused(*ignored: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(lock_of.os, "open", refused)
    owner = pwd.getpwuid(os.getuid()).pw_name
    with pytest.raises(PermissionError, match=rf"driver.lock is not yours to write \(of {owner}, mode 0640\)"):
        lock.take()


def test_a_driver_on_another_host_is_not_to_be_killed_here(tmp_path):
    lock = lock_of.DriverLock(tmp_path)
    assert lock.take()
    assert f"(`kill {os.getpid()}`); `ddp-hpc status" in lock.refusal()
    lock.file.write_text('{"pid": 4, "host": "login2", "since": "2026-01-31T08:00:00+00:00"}')
    assert "pid 4 on login2" in lock.refusal()
    assert "(`kill 4` on login2); `ddp-hpc status" in lock.refusal()
    lock.release()


def test_while_tables_and_figures_are_made_they_are_counted(tmp_path, capsys):
    before, now = tmp_path / "before", tmp_path / "now"
    for file in (before, now):
        file.touch()
    os.utime(before, (1, 1))
    making = progress.Making([before, now, tmp_path / "later"], began=2)
    making.line = ProgressLine(at_once=True)
    making.show()

    assert capsys.readouterr().out.startswith("making tables, figures and page: 1 done")


def test_plain_snakemake_makes_the_page_from_what_there_is_and_exits_non_zero(project):
    project.study(
        "some",
        HEAD + "budget: {steps: 20}\ngrid: {model: [mlp, {name: faulty, fault: exception}]}\n"
        "tables: [runs]\nfigures: []\n",
    )

    done = project.call("snakemake", "--config", "studies=[some]")

    assert done.returncode == 1
    page = project.root / "results" / "studies" / "some" / "report" / "index.html"
    assert "1 of 2 runs, 1 missing: 1 crashed" in page.read_text()


@pytest.mark.parametrize(("asked", "left"), [((), "None"), (("--max-jobs-per-timespan", "50/2s"), "50")])
def test_snakemake_does_not_look_for_jobs_each_second_beside_a_training(project, asked, left):
    """With its default limit it would, and once more for every job that has ended."""
    limit = "getattr(workflow.scheduler.job_rate_limiter, 'max_jobs', None)"
    project.append("workflow/Snakefile", f"\n\nonsuccess:\n    print('limit:', {limit})\n")
    project.study("some", HEAD + "budget: {steps: 2}\ntables: []\nfigures: []\ngrid: {model: mlp}\n")

    done = project.call("snakemake", *asked, "--config", "studies=[some]")

    assert f"limit: {left}\n" in done.stdout + done.stderr


def test_a_wrong_study_starts_nothing(project):
    project.study("wrong", HEAD.replace("0.1", "'0.1'") + "budget: {steps: 20}\ngrid: {model: mlp}\n")

    done = project.call("ddp-hpc", "run", "wrong")

    assert done.returncode == 2
    assert "wrong.yaml:2: learning_rate: given '0.1' (string" in done.stderr
    assert not (project.root / "results").exists()
    assert project.call("snakemake", "--config", "studies=[wrong]").returncode != 0


@pytest.fixture
def slow(project) -> Sandbox:
    """A study with one finished run, and two that take for ever unless QUICK is set."""
    project.study("slow", HEAD + "budget: {steps: 1500}\ntables: [runs]\nfigures: []\ngrid:\n  - {model: mlp}\n")
    project.finish("slow")
    project.append("config/studies/slow.yaml", "  - {model: {name: faulty, fault: slow}, seed: [1, 2]}\n")
    return project


def running(project: Sandbox) -> bool:
    return trained_in(project) and "running" in [row["status"] for row in project.status("slow").values()]


def test_a_second_driver_is_refused_with_a_clear_line(slow):
    first = slow.start("ddp-hpc", "run", "slow")
    try:
        wait_for(lambda: running(slow))
        for command in (["ddp-hpc", "run", "slow"], ["snakemake", "--config", "studies=[slow]"]):
            second = slow.call(*command)
            assert second.returncode != 0
            who = f"pid {first.pid} of {pwd.getpwuid(os.geteuid()).pw_name} on {os.uname().nodename}"
            assert f"another driver is running in this project: {who}" in second.stdout + second.stderr
        assert len(slow.snakemake_would_train("slow")) == 2  # looking is allowed
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait(60)
    wait_for(lambda: not slow.processes())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_was_killed_leaves_nothing_behind_and_the_same_command_goes_on(slow, how):
    """Only unfinished points run again."""
    first = slow.start("ddp-hpc", "run", "slow", start_new_session=True, stderr=subprocess.PIPE)
    wait_for(lambda: running(slow))
    os.kill(first.pid, how)
    assert first.wait(60) != 0
    wait_for(lambda: not slow.processes())
    wait_for(lambda: sorted(row["status"] for row in slow.status("slow").values()) == ["cancelled", "missing", "ok"])
    assert trained_in(slow) == 1
    said = first.communicate()[1]
    if how == signal.SIGTERM:
        assert "  1 not yet run\n" in said
        assert re.search(r"^  1 cancelled: .* \(.*, logs/train/\S+\.log\)$", said, flags=re.MULTILINE)

    again = slow.call("env", "QUICK=1", "ddp-hpc", "run", "slow")

    assert again.returncode == 0, again.stderr
    assert "3 of 3 runs" in again.stdout
    assert trained_in(slow) == 3
    assert slow.to_train("slow") == set()
