"""Whatever is killed, at whatever moment: the same command then ends with what an undisturbed study ends with.

`make test` kills a process of each kind in one study. `make crash` disturbs 60 studies once each and prints a table;
the moments follow from the number of a study: `CRASHES=17:18 pytest tests/workflow/test_crashes.py` has one again.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from faulty import FAULTY
from sandbox import Sandbox, wait_for

from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Attempt, RunFolder

KILLS = [(kind, "KILL") for kind in ("driver", "snakemake", "supervisor", "launcher", "watchdog", "rank")]
STOPS = [(kind, "STOP") for kind in ("driver", "supervisor", "launcher", "rank")]  # and CONT, a second later
ASKED = os.environ.get("CRASHES")
STUDIES = (
    {number: [(KILLS + STOPS)[number % 10]] for number in range(*map(int, ASKED.split(":")))} if ASKED else {0: KILLS}
)
BASE = (
    "base: {dataset: digits, model: {name: faulty, fault: slow}, batch_size: 16, learning_rate: 0.1, "
    "threads_per_rank: 1}\n"
    "budget: {steps: 40}\ntables: [runs]\nfigures: []\n"
    "grid: [{exchange: none, world_size: 1}, {exchange: ring, world_size: 2}]\n"
)  # 2 s each, with a model that sleeps
TOLD: Counter[tuple[str, str, str]] = Counter()  # by fault, what became of it


@pytest.fixture(scope="module", autouse=True)
def table(request):
    yield
    if ASKED:
        names = ("tries", "lost", "doubled", "left behind")
        rows = [
            ("kind", "signal", *names),
            *((*fault, *(TOLD[*fault, name] for name in names)) for fault in KILLS + STOPS),
        ]
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print("", *("".join(f"{cell!s:12}" for cell in row) for row in rows), sep="\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with its own folder for temporary files, so that what is left there is left by it."""
    root = tmp_path_factory.mktemp("crashes")
    sandbox = Sandbox.make(root / "project")
    (sandbox.package / "models" / "faulty.py").write_text(FAULTY)
    (root / "tmp").mkdir()
    profile = sandbox.root / "profiles" / "default" / "profile.yaml"
    profile.write_text(profile.read_text() + "  checkpoint_every_s: 1\n")
    yield sandbox
    sandbox.end_all()


@pytest.fixture(scope="module")
def undisturbed(project):
    """What the studies, which ask for the same runs, are to end with; without its sleep a model does the same."""
    project.study("undisturbed", BASE)
    assert project.call("ddp-hpc", "plan", "undisturbed", "--write").returncode == 0
    trainings = []
    for run in (project.root / "results" / "runs").iterdir():
        ranks = RunFolder(run).plan["world_size"]
        words = ("train", run.name, "--launcher", f"mpiexec -n {ranks}" if ranks > 1 else "")
        trainings.append(subprocess.Popen(**command(project, *words, QUICK="1")))
    for training in trainings:
        assert training.communicate(timeout=240)
        assert training.returncode == 0
    return outcome(project)


def command(project: Sandbox, *words: str, **environment: str) -> dict:
    keywords = {"cwd": project.root, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    temporary = {"TMPDIR": str(project.root.parent / "tmp")}
    return {"args": ["ddp-hpc", *words], "env": project.environment | temporary | environment, **keywords}


def outcome(project: Sandbox) -> dict[str, tuple]:
    """Return of each run: status, counts, and all losses of all steps and ranks. Times are left out."""
    found = {}
    for folder in (project.root / "results" / "runs").iterdir():
        (row,) = records.read("run", folder / "run.parquet").to_pylist()
        steps = records.read("steps", folder / "steps.parquet").to_pylist()
        counts = tuple(row[column] for column in ("status", "steps", "samples_seen", "final_loss", "min_loss"))
        found[folder.name] = (
            *counts,
            [(step["step"], step["rank"], step["rank_loss"], step["loss"]) for step in steps],
        )
    return found


def who(project: Sandbox, kind: str) -> list[int]:
    """The processes of a kind. A rank is forked by its watchdog, and that of one rank alone by the supervisor."""
    commands = project.processes()

    def forks(pid: int) -> int:
        parent = parent_of(pid)
        return 1 + forks(parent) if commands.get(parent) == commands[pid] else 0

    def kind_of(pid: int, words: list[str]) -> str:
        if words[0].endswith(("prterun", "mpiexec")):
            return "launcher"
        if words[1:3] == ["-m", "snakemake"]:
            return "snakemake"
        if words[1:3] == ["-m", "ddp_hpc.execution.rank_watchdog"]:
            return ("watchdog", "rank", "other")[min(forks(pid), 2)]  # a rank forks before it starts a program
        if words[2:3] == ["train"]:
            return ("supervisor", "watchdog", "rank", "other")[min(forks(pid), 3)]
        return "driver" if words[2:3] == ["run"] else "other"

    return sorted(pid for pid, line in commands.items() if kind_of(pid, line.split()) == kind)


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0  # it has just gone


def disturb(project: Sandbox, dice: random.Random, driver: subprocess.Popen, kind: str, fault: str) -> bool:
    """Kill a process of a kind, or stop it for a second; most often while ranks train. Return whether there was one."""
    training, later_s = dice.random() < 0.8, dice.uniform(0, 0.7)
    while training and driver.poll() is None and not who(project, "rank"):
        time.sleep(0.05)
    time.sleep(later_s)
    while driver.poll() is None:
        if found := who(project, kind):
            victim = dice.choice(found)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.Signals[f"SIG{fault}"])
            if fault == "STOP":
                time.sleep(1)
                os.kill(victim, signal.SIGCONT)
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", STUDIES)
def test_after_a_kill_the_same_command_ends_with_what_an_undisturbed_study_ends_with(project, undisturbed, number):
    dice, name, runs = random.Random(number), f"crash_{number}", project.root / "results" / "runs"
    shutil.rmtree(runs)
    project.study(name, BASE)
    driver, hits = subprocess.Popen(**command(project, "run", name)), 0
    for fault in dice.sample(STUDIES[number], len(STUDIES[number])):
        while not (hit := disturb(project, dice, driver, *fault)) and driver.returncode:  # it had failed: go on
            _, said = driver.communicate()
            assert driver.returncode != 2, said  # refused: it would be so for ever
            driver = subprocess.Popen(**command(project, "run", name))
        hits += hit
    driver.communicate(timeout=240)
    wait_for(lambda: not project.processes())
    done = subprocess.run(**command(project, "run", name, QUICK="1"), timeout=240, check=False)

    told = STUDIES[number][0]
    TOLD[*told, "tries"] += hits
    attempts = list(runs.glob("*/attempts/*"))
    lost, left = done.returncode or outcome(project) != undisturbed, what_is_left(project, attempts)
    ended_well = Counter(one.parts[-3] for one in attempts if Attempt(one).ended.get("status") == "ok")
    doubled = [run for run, count in ended_well.items() if count > 1]
    TOLD[*told, "lost"] += bool(lost)
    TOLD[*told, "doubled"] += bool(doubled)
    TOLD[*told, "left behind"] += bool(left)
    assert not lost, done.stderr
    assert not doubled
    assert not left


def what_is_left(project: Sandbox, attempts: list[Path]) -> list[str]:
    """Processes, and files that nobody needs: in shared memory, in the folder of temporary files, in the results.

    A Snakemake that was killed leaves an empty folder of its own, whose name nobody else knows.
    """
    results, temporary = project.root / "results", project.root.parent / "tmp"
    shared = [Path("/dev/shm", Attempt(one).started.get("scratch", "none")) for one in attempts]
    files = [file for file in shared if file.exists()]
    files += [file for pattern in (".*.tmp", "rank-*.pid", "room", "checkpoint") for file in results.rglob(pattern)]
    files += [file for file in temporary.iterdir() if not file.name.startswith("snakemake") or list(file.iterdir())]
    return [*map(str, files), *project.processes().values()]
