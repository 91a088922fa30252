"""What planning and the workflow cost, measured here: `ddp-hpc bench planning`.

Planning is timed on studies whose runs are all finished; what the workflow adds to a run is timed with a trainer that
does nothing, next to a bare Snakefile with as many jobs that do nothing.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddp_hpc.bench import idle_rank
from ddp_hpc.config import catalog
from ddp_hpc.runs.project import Project
from ddp_hpc.system.process import path_with_own_scripts
from ddp_hpc.workflow import plan
from ddp_hpc.workflow.targets import StudyTargets

REPEATS = 3
RUNS = 200
POINTS = (100, 1000, 5000)  # of the studies that planning is timed on

_STUDY = """name: bench
base: {{dataset: digits, model: mlp, exchange: none, world_size: 1, batch_size: 16, threads_per_rank: 1}}
budget: {{steps: 1}}
grid: {{learning_rate: 0.1, seed: [{seeds}]}}
"""

_BARE = """
rule all:
    input: expand("out/{{n}}", n=range({runs}))
rule one:
    output: "out/{{n}}"
    resources: slot=1
    shell: "touch {{output}}"
"""


def planning(project: Project, points: Sequence[int], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time `ddp-hpc list`, `ddp-hpc plan` and `snakemake -n` on finished studies of so many points; seconds."""
    rows = []
    for number in points:
        with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
            copy = _copy_of(project, Path(folder), number)
            _finish(copy)
            calls = {
                "list": ["ddp-hpc", "list", "bench"],
                "plan": ["ddp-hpc", "plan", "bench"],
                "snakemake -n": ["snakemake", "-n", "--config", "studies=[bench]"],
            }
            for name, command in calls.items():
                say(f"{name}, {number} points")
                times = [_seconds(command, copy.root, _environment()) for _ in range(REPEATS)]
                seconds = {"median_s": statistics.median(times), "least_s": min(times), "most_s": max(times)}
                rows.append({"points": number, "what": name, **seconds})
    return rows


def running(project: Project, say: Callable[[str], None], runs: int = RUNS) -> list[dict[str, Any]]:
    """Time what the workflow adds to each run beyond the trainer's own process; milliseconds."""
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
        copy = _copy_of(project, Path(folder), runs)
        source = copy.root / "src"
        shutil.copytree(catalog.PACKAGE, source / "ddp_hpc", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(idle_rank.__file__, source / "ddp_hpc" / "execution" / "rank.py")
        environment = _environment(PYTHONPATH=str(source))
        say(f"bare snakemake, {runs} jobs")
        bare = _bare(copy.root / "bare", runs, environment)
        say(f"the workflow, {runs} runs of a trainer that does nothing")
        began = time.perf_counter()
        command = ["snakemake", "trained", "--config", "studies=[bench]"]
        _seconds(command, copy.root, environment)
        whole = (time.perf_counter() - began) / runs
        say("that trainer alone")
        alone = _alone(copy, environment)
        start = statistics.median(
            _seconds(["snakemake", "-n", "trained"], copy.root, environment) for _ in range(REPEATS)
        )
    return [
        {"what": "bare snakemake, a job that does nothing", "ms": 1e3 * bare},
        {"what": "the workflow, a run of a trainer that does nothing", "ms": 1e3 * whole},
        {"what": "that trainer's process alone", "ms": 1e3 * alone},
        {"what": "the workflow adds to each run", "ms": 1e3 * (whole - alone)},
        {"what": f"of that, snakemake's start shared by {runs} runs", "ms": 1e3 * start / runs},
    ]


def _bare(folder: Path, runs: int, environment: dict[str, str]) -> float:
    folder.mkdir()
    (folder / "Snakefile").write_text(_BARE.format(runs=runs))
    flags = ["--scheduler", "greedy", "--nolock", "-c", "all", "--resources", "slot=1"]
    return _seconds(["snakemake", *flags], folder, environment) / runs


def _alone(copy: Project, environment: dict[str, str]) -> float:
    attempt = copy.root / "attempt"
    attempt.mkdir()
    command = [sys.executable, "-m", "ddp_hpc.execution.rank_watchdog", str(attempt)]
    return statistics.median(_seconds(command, copy.root, environment) for _ in range(10 * REPEATS))


def _copy_of(project: Project, folder: Path, points: int) -> Project:
    for part in ("workflow", "profiles"):
        shutil.copytree(project.root / part, folder / part)
    (folder / "config" / "studies").mkdir(parents=True)
    (folder / "config" / "config.yaml").write_text("studies: [bench]\n")
    seeds = ", ".join(map(str, range(points)))
    (folder / "config" / "studies" / "bench.yaml").write_text(_STUDY.format(seeds=seeds))
    return Project(folder)


def _finish(copy: Project) -> None:
    """Put an empty file where every record, table, figure and page would be: planning looks no deeper."""
    study_runs = copy.study_runs("bench")
    plan.prepare(study_runs)
    for planned in study_runs.planned:
        copy.store.file(planned.run).touch()
    targets = StudyTargets(copy, study_runs, settled=False)
    for name in [*targets.stamps, *targets.outputs]:
        file = copy.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def _environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PATH": path_with_own_scripts()} | more


def _seconds(command: Sequence[str], folder: Path, environment: dict[str, str]) -> float:
    """Return how long a command takes.

    Raises:
        RuntimeError: it failed; with its last words.
    """
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr[-1500:]}")
    return took
