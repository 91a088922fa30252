"""What the tables, the figures and the page of many finished runs cost here: `ddp-hpc bench publishing`.

The runs are made up; their records are written by the project's own writer.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddp_hpc.bench.planning import copy_of
from ddp_hpc.bench.timing import Row, say
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import Planned
from ddp_hpc.system.process import path_with_own_scripts

RUNS = (1000, 10_000)
STEPS = 80
POINTS = 250  # of the grid; the rest is repeats
VERBS = ("list", "plan", "status", "table", "figure", "report")  # the first takes no study

_STUDY = """name: bench
base: {{dataset: digits, model: mlp, threads_per_rank: 1, device: cpu}}
grid:
  - {{exchange: none, world_size: 1, batch_size: [8, 16, 32, 64, 128], learning_rate: [0.01, 0.02, 0.05, 0.1, 0.2]}}
  - exchange: [ring, mpi_allreduce, parameter_server]
    world_size: [2, 4, 8]
    batch_size: [8, 16, 32, 64, 128]
    learning_rate: [0.01, 0.02, 0.05, 0.1, 0.2]
repeats: {repeats}
budget: {{steps: {steps}}}
"""


def publishing(project: Project, runs: Sequence[int]) -> list[Row]:
    """Return CPU seconds and peak memory of each verb on about so many finished runs, and how the times grow."""
    rows: list[Row] = []
    for number in runs:
        with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
            study = _STUDY.format(repeats=max(1, round(number / POINTS)), steps=STEPS)
            copy = copy_of(project, Path(folder), study)
            study_runs = copy.study_runs("bench")
            say(f"the records of {len(study_runs.planned)} runs")
            for planned in study_runs.planned:
                run = study_runs.store.run(planned.run)
                _finish(run.path, planned)
                run.sealed = run.entries()
            for verb in VERBS:
                say(f"ddp-hpc {verb}, {len(study_runs.planned)} runs")
                command = ["ddp-hpc", verb, *(["bench"] if verb != "list" else [])]
                rows.append({"runs": len(study_runs.planned), "what": verb} | _cost(command, copy.root))
    first = {row["what"]: row["cpu_s"] for row in reversed(rows)}
    return [row | {"times_first": row["cpu_s"] / first[row["what"]]} for row in rows]


def _cost(command: Sequence[str], folder: Path) -> Row:
    """Return the CPU seconds and the most memory of a command; if it fails, a RuntimeError has its last words."""
    environment = os.environ | {"PATH": path_with_own_scripts()}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            words = said.read().decode(errors="replace")[-1500:]
            raise RuntimeError(f"{' '.join(command)} failed with {process.returncode}: {words}")
    kilobytes = used.ru_maxrss / 1024 if sys.platform == "darwin" else used.ru_maxrss
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": kilobytes * 1024 / 1e6}


def _finish(folder: Path, planned: Planned) -> None:
    """Write what a run leaves: its record, and that of its steps."""
    spec, rng = planned.spec, np.random.default_rng(int(planned.spec.hash, 16) % 2**32)
    step_s = (3e-4 + 1e-5 * spec.batch_size + 1e-4 * (spec.world_size - 1)) * (1 + 0.1 * rng.random(STEPS))
    t_s, rate = np.cumsum(step_s), spec.learning_rate
    loss = (0.1 + 2.2 * np.exp(-rate * np.arange(STEPS) / 5)) * (1 + 0.05 * rng.random(STEPS))
    metadata: dict[str, Any] = {"provenance": {}, "spec": spec.canonical}
    records.write("steps", _steps(spec, t_s, step_s, loss), folder / "steps.parquet", metadata)
    _, spec_hash, code_hash = identity.parts(planned.run)
    row = spec.columns() | {
        "run": planned.run,
        "spec_hash": spec_hash,
        "code_hash": code_hash,
        "status": "ok",
        "parameters": 10_000,
        "samples_asked": spec.samples_asked,
        "samples_seen": STEPS * spec.global_batch_size,
        "steps": STEPS,
        "oversubscribed": False,
        "cores": 8,
        "hosts": 1,
        "device_used": "cpu",
        "threads_used": 1,
        "train_s": t_s[-1],
        "samples_per_s": STEPS * spec.global_batch_size / t_s[-1],
        "step_s": float(np.median(step_s)),
        "first_loss": loss[0],
        "min_loss": loss.min(),
        "final_loss": loss[-1],
        "loss_area_loss_s": float(np.trapezoid(loss, t_s)),
    }
    row |= {name: float(np.median(step_s)) / len(PHASES) for name in PHASES}
    records.write("run", {name: [value] for name, value in row.items()}, folder / "run.parquet", metadata)


def _steps(spec: RunSpec, t_s: Any, step_s: Any, loss: Any) -> dict[str, Any]:
    """Return the columns of a record of steps, in the order of steps and ranks."""
    ranks = spec.world_size
    columns = {name: np.repeat(values, ranks) for name, values in {"t_s": t_s, "loss": loss, "step_s": step_s}.items()}
    phases = {name: columns["step_s"] / len(PHASES) for name in PHASES}
    flags = dict.fromkeys(("warm_up", "sampled"), np.zeros(STEPS * ranks, bool))
    step, rank = np.repeat(np.arange(1, STEPS + 1), ranks), np.tile(np.arange(ranks), STEPS)
    return {"step": step, "rank": rank, **columns, **phases, **flags}
