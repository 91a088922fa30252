"""What planning and the workflow cost, measured here: `ddp-hpc bench planning`.

Planning is timed on studies whose runs are all finished; what the workflow adds to a run is timed with a trainer that
does nothing, next to a bare Snakefile with as many jobs that do nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ddp_hpc.bench import idle_rank
from ddp_hpc.bench.timing import Row, say
from ddp_hpc.config import catalog
from ddp_hpc.runs.attempt import RECORDS
from ddp_hpc.runs.project import Project
from ddp_hpc.system.process import path_with_own_scripts
from ddp_hpc.workflow import plan
from ddp_hpc.workflow.targets import StudyTargets

ROUNDS = 3
RUNS = 200
POINTS = (100, 1000, 5000)  # of the studies that planning is timed on

_STUDY = """name: bench
base: {{dataset: digits, model: mlp, exchange: none, world_size: 1, batch_size: 16, threads_per_rank: 1}}
budget: {{steps: 1}}
grid: {{learning_rate: 0.1, seed: [{seeds}]}}
"""

_EMPTY = "snakemake -n, an empty Snakefile"
_BARE = """
rule all:
    input: expand("out/{{n}}", n=range({runs}))
rule one:
    output: "out/{{n}}"
    resources: slot=1
    shell: "touch {{output}}"
"""


def planning(project: Project, points: Sequence[int], rounds: int = ROUNDS) -> list[Row]:
    """Time `ddp-hpc list`, `ddp-hpc plan` and `snakemake -n` on finished studies of so many points, in turns; seconds.

    `snakemake -n` of an empty Snakefile is the yardstick of `times_empty`, the median ratio within a turn.
    """
    rows = []
    for number in points:
        with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
            copy = copy_of(project, Path(folder), _study_of(number))
            _finish(copy)
            (empty := copy.root / "empty").mkdir()
            (empty / "Snakefile").write_text("rule all:\n")
            calls = {
                _EMPTY: (["snakemake", "-n"], empty),
                "list": (["ddp-hpc", "list", "bench"], copy.root),
                "plan": (["ddp-hpc", "plan", "bench"], copy.root),
                "snakemake -n": (["snakemake", "-n", "--config", "studies=[bench]"], copy.root),
            }
            say(f"list, plan and snakemake -n, {number} points")
            turns = [{name: _seconds(*call) for name, call in calls.items()} for _ in range(rounds)]
        for name in calls:
            times = [turn[name] for turn in turns]
            seconds = {"median_s": median(times), "least_s": min(times), "most_s": max(times)}
            ratio = median(turn[name] / turn[_EMPTY] for turn in turns)
            rows.append({"points": number, "what": name, **seconds, "times_empty": ratio})
    return rows


def running(project: Project, runs: int, rounds: int = ROUNDS) -> list[Row]:
    """Time what the workflow adds to each run beyond the trainer's own process; milliseconds."""
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
        root, source = copy_of(project, Path(folder), _study_of(runs)).root, Path(folder, "src")
        shutil.copytree(catalog.PACKAGE, source / "ddp_hpc", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(idle_rank.__file__, source / "ddp_hpc" / "execution" / "rank.py")
        idle = {"PYTHONPATH": str(source)}
        say(f"bare snakemake, {runs} jobs")
        (root / "bare").mkdir()
        (root / "bare" / "Snakefile").write_text(_BARE.format(runs=runs))
        flags = ["--scheduler", "greedy", "--nolock", "-c", "all", "--resources", "slot=1"]
        bare = _seconds(["snakemake", *flags], root / "bare", **idle) / runs
        say(f"the workflow, {runs} runs of a trainer that does nothing")
        whole = _seconds(["snakemake", "trained", "--config", "studies=[bench]"], root, **idle) / runs
        say("that trainer alone")
        (root / "attempt").mkdir()
        watchdog = [sys.executable, "-m", "ddp_hpc.execution.rank_watchdog", str(root / "attempt")]
        alone = median(_seconds(watchdog, root, **idle) for _ in range(min(runs, 10 * rounds)))
        start = median(_seconds(["snakemake", "-n", "trained"], root, **idle) for _ in range(rounds))
    milliseconds = {
        "bare snakemake, a job that does nothing": bare,
        "the workflow, a run of a trainer that does nothing": whole,
        "that trainer's process alone": alone,
        "the workflow adds to each run": whole - alone,
        f"of that, snakemake's start shared by {runs} runs": start / runs,
    }
    return [{"what": what, "ms": 1e3 * seconds, "times_bare": seconds / bare} for what, seconds in milliseconds.items()]


def copy_of(project: Project, folder: Path, study: str) -> Project:
    """Return a project in an empty folder with the workflow of another one, and with one study, `bench`."""
    for part in ("workflow", "profiles"):
        shutil.copytree(project.root / part, folder / part)
    (folder / "config" / "studies").mkdir(parents=True)
    (folder / "config" / "config.yaml").write_text("studies: [bench]\n")
    (folder / "config" / "studies" / "bench.yaml").write_text(study)
    return Project(folder)


def _study_of(points: int) -> str:
    return _STUDY.format(seeds=", ".join(map(str, range(points))))


def _finish(copy: Project) -> None:
    """Put an empty file where every record, table, figure and page would be: planning looks no deeper."""
    study_runs = copy.study_runs("bench")
    plan.prepare(study_runs)
    for planned in study_runs.planned:
        run = copy.store.run(planned.run)
        for kind in RECORDS:
            run.record(kind).touch()
        run.sealed = run.entries()
    targets = StudyTargets(copy, study_runs, settled=False)
    for name in [*targets.stamps, *targets.outputs, *targets.shown]:
        file = copy.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def _seconds(command: Sequence[str], folder: Path, **environment: str) -> float:
    """Return how long a command takes; if it fails, a RuntimeError has its last words."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = inherited | {"PATH": path_with_own_scripts()} | environment
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr[-1500:]}")
    return took
