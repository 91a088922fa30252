"""Whatever is killed, at whatever moment: the same command then ends with what an undisturbed study ends with.

`make crash` does this 60 times and prints a table; the moments follow from the number, so one that fails can be had
again: `CRASHES=17:18 pytest tests/workflow/test_crashes.py`.
"""

import json
import os
import random
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

STEPS = 40  # 2 s, with a model that sleeps
KINDS = ("driver", "snakemake", "supervisor", "launcher", "watchdog", "rank")
FIRST, END = map(int, os.environ.get("CRASHES", "0:2").split(":"))
TOLD: Counter[tuple[str, str]] = Counter()  # kind of process and signal, and what became of it


@pytest.fixture(scope="module", autouse=True)
def table(request):
    yield
    if END - FIRST > 2:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(
                "\n" + "".join(f"{name:10}" for name in ("kind", "signal", "tries", "lost", "doubled", "left behind"))
            )
            for kind in sorted({kind for kind, _ in TOLD}):
                found = (TOLD[kind, name] for name in ("tries", "lost", "doubled", "left behind"))
                print("".join(f"{cell!s:10}" for cell in (*kind.split(), *found)))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with its own folder for temporary files, so that what is left there is left by it."""
    root = tmp_path_factory.mktemp("crashes")
    sandbox = Sandbox.make(root / "project")
    (sandbox.package / "models" / "faulty.py").write_text(FAULTY)
    (root / "tmp").mkdir()
    profile = sandbox.root / "profiles" / "default" / "profile.yaml"
    profile.write_text(profile.read_text() + "  checkpoint_every_s: 0.3\n")
    yield sandbox
    sandbox.end_all()


@pytest.fixture(scope="module")
def undisturbed(project):
    """What the studies, which differ in their seed only, are to end with; their runs are quick, and do the same."""
    return {}


def study(project: Sandbox, number: int) -> str:
    name = f"crash_{number}"
    project.study(
        name,
        "base: {dataset: digits, model: {name: faulty, fault: slow}, batch_size: 16, learning_rate: 0.1, "
        f"threads_per_rank: 1}}\nbudget: {{steps: {STEPS}}}\ntables: [runs]\nfigures: []\n"
        "grid: [{exchange: none, world_size: 1}, {exchange: ring, world_size: 2}]\n",
    )
    return name


def command(project: Sandbox, name: str, **environment: str) -> dict:
    keywords = {"cwd": project.root, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    temporary = {"TMPDIR": str(project.root.parent / "tmp")}
    return {"args": ["ddp-hpc", "run", name], "env": project.environment | temporary | environment, **keywords}


def outcome(project: Sandbox, name: str) -> dict[str, tuple]:
    """Of each run: status, counts, and all losses of all steps and ranks. Times are left out."""
    found = {}
    for item in project.plan(name):
        folder = project.root / "results" / "runs" / item["run"]
        (row,) = records.read("run", folder / "run.parquet").to_pylist()
        steps = records.read("steps", folder / "steps.parquet").to_pylist()
        counts = tuple(row[column] for column in ("status", "steps", "samples_seen", "final_loss", "min_loss"))
        losses = [(step["step"], step["rank"], step["rank_loss"], step["loss"]) for step in steps]
        found[item["run"]] = (*counts, losses)
    return found


def who(project: Sandbox) -> dict[str, list[int]]:
    """The processes of each kind. One rank alone has no launcher: its watchdog is a copy of the supervisor."""
    commands = project.processes()
    parents = {pid: parent_of(pid) for pid in commands}
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for pid, line in commands.items():
        words, parent = line.split(), parents[pid]
        ranked = "ddp_hpc.execution.rank_watchdog" in line.split(" /")[0] or "rank_watchdog" in words[2:3]
        if any(word.endswith("ddp-hpc") for word in words[:2]) and "run" in words[1:3]:
            found["driver"].append(pid)
        elif words[1:3] == ["-m", "snakemake"]:
            found["snakemake"].append(pid)
        elif words[0].endswith(("prterun", "mpiexec")):
            found["launcher"].append(pid)
        elif ranked or "train" in words[1:3]:
            up = commands.get(parent, "")
            over = commands.get(parents.get(parent, 0), "")
            same, above = up == line, over == line
            kind = "rank" if above or (ranked and same) else "watchdog" if ranked or same else "supervisor"
            found[kind].append(pid)
    return found


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def disturb(project: Sandbox, driver: subprocess.Popen, name: str, dice: random.Random, kind: str, stops: bool) -> bool:
    """Kill a process of a kind, or stop it for a second; most often while ranks train. Return whether there was one."""
    runs = [project.root / "results" / "runs" / item["run"] for item in project.plan(name)]
    training, later_s = dice.random() < 0.8, dice.uniform(0, 2)
    while training and driver.poll() is None and not any(list(run.glob("attempts/*/rank-0.pid")) for run in runs):
        time.sleep(0.02)
    time.sleep(later_s)
    while driver.poll() is None and not (found := who(project)[kind]):
        time.sleep(0.02)
    if driver.poll() is not None:
        return False
    victim = dice.choice(sorted(found))
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGSTOP if stops else signal.SIGKILL)
        if stops:
            time.sleep(1)
            os.kill(victim, signal.SIGCONT)
    return True


@pytest.mark.parametrize("number", range(FIRST, END))
def test_after_a_kill_the_same_command_ends_with_what_an_undisturbed_study_ends_with(project, undisturbed, number):
    dice = random.Random(number)
    kind, stops = KINDS[(number + 3) % len(KINDS)], number % 10 == 9
    name = study(project, number)
    if not undisturbed:
        done = subprocess.run(**command(project, name, QUICK="1"), timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        undisturbed.update(outcome(project, name))
    for run in undisturbed:  # all studies ask for the same runs
        subprocess.run(["rm", "-r", project.root / "results" / "runs" / run], check=True)
    told = f"{kind} {'STOP' if stops else 'KILL'}"

    driver = subprocess.Popen(**command(project, name))
    assert disturb(project, driver, name, dice, kind, stops) or driver.returncode == 0
    driver.communicate(timeout=240)
    wait_for(lambda: not project.processes())
    again = subprocess.run(**command(project, name, QUICK="1"), timeout=240, check=False)

    TOLD[told, "tries"] += 1
    assert again.returncode == 0, again.stderr
    lost = outcome(project, name) != undisturbed
    TOLD[told, "lost"] += lost
    attempts = {run: list((project.root / "results" / "runs" / run / "attempts").iterdir()) for run in undisturbed}
    ends = {run: [read(one / "ended.json").get("status") for one in attempts[run]] for run in undisturbed}
    doubled = [run for run in ends if ends[run].count("ok") > 1]
    TOLD[told, "doubled"] += bool(doubled)
    left = what_is_left(project, [one for all_ in attempts.values() for one in all_])
    TOLD[told, "left behind"] += bool(left)
    assert not lost
    assert not doubled, ends
    assert not left


def read(file: Path) -> dict:
    return json.loads(file.read_text()) if file.exists() else {}


def what_is_left(project: Sandbox, attempts: list[Path]) -> list[str]:
    """Processes, and files that nobody needs: in shared memory, in the folder of temporary files, in the results.

    A Snakemake that was killed leaves an empty folder of its own, whose name nobody else knows.
    """
    names = [read(attempt / "started.json").get("scratch", "none") for attempt in attempts]
    results, temporary = project.root / "results", project.root.parent / "tmp"
    files = [Path("/dev/shm", name) for name in names if Path("/dev/shm", name).exists()]
    files += [file for pattern in (".*.tmp", "rank-*.pid", "room", "checkpoint") for file in results.rglob(pattern)]
    files += [file for file in temporary.iterdir() if not file.name.startswith("snakemake") or list(file.iterdir())]
    return [*map(str, files), *project.processes().values()]
