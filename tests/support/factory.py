"""Studies with made-up records: no training, but everything that a training leaves behind."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from ddp_hpc.config.grid import expand
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import Planned, StudyRuns

CORES = 8
PARAMETERS = 10_000
STUDY: dict[str, Any] = {
    "name": "made_up",
    "description": "Numbers that no machine has measured",
    "base": {"dataset": "digits", "model": "mlp", "threads_per_rank": 1},
    "grid": [
        {"exchange": "none", "world_size": 1, "batch_size": [16, 32, 64], "learning_rate": [0.1, 0.5, 2.0]},
        {"exchange": "ring", "world_size": [1, 2, 4], "batch_size": [16, 32, 64], "learning_rate": [0.1, 0.5, 2.0]},
    ],
    "budget": {"samples_seen": 25600},
    "rules": {"loss_threshold": 0.5},
}


@dataclass(frozen=True)
class Result:
    """What became of a run."""

    status: str = "ok"
    reason: str | None = None
    t_s: tuple[float, ...] = ()
    loss: tuple[float, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the run record, over what is derived
    provenance: Mapping[str, Any] = field(default_factory=dict)
    # columns of the steps record, of a counted step and a rank; None: every rank's as `phases` gives them
    of_rank: Callable[[int, int], Mapping[str, Any]] | None = None


Train = Callable[[RunSpec], Result]


def study_file(folder: Path, **keys: Any) -> Path:
    """Write a study: `STUDY` with some keys replaced."""
    study = STUDY | keys
    file = folder / "config" / "studies" / f"{study['name']}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    YAML().dump(study, file)
    return file


def planned(folder: Path, **keys: Any) -> StudyRuns:
    """Return the runs of a study that has not run."""
    expansion = expand(study_file(folder, **keys))
    runs = tuple(Planned(identity.run_id(spec), spec) for spec in expansion.specs)
    return StudyRuns(expansion.study, Store(folder / "results"), runs)


def made_up(folder: Path, train: Train | None = None, **keys: Any) -> StudyRuns:
    """Return the runs of a study whose runs have ended as `train` says (like real ones by default)."""
    study_runs = planned(folder, **keys)
    for run in study_runs.planned:
        write(study_runs, run, (train or realistic)(run.spec))
    return study_runs


def write(study_runs: StudyRuns, run: Planned, result: Result) -> None:
    """Write what a run leaves: its records if it has ended, else the journal of its attempt, if any."""
    if result.status == "missing":
        return
    if result.status not in FINISHED:
        journal = study_runs.store.run(run.run).path / "attempts" / "1"
        journal.mkdir(parents=True)
        (journal / "ended.json").write_text(json.dumps({"status": result.status, "reason": result.reason}))
        return
    folder = study_runs.store.run(run.run)
    folder.beaten = {"reason": result.reason} if result.status == "beaten" else {}
    write_records(folder.path, run, result)


def write_records(folder: Path, run: Planned, result: Result, /, **metadata: Any) -> None:
    """Write the records of a run that has ended: of the run and of its steps."""
    columns = run_columns(run, result)
    metadata = {"provenance": dict(result.provenance), "spec": run.spec.canonical, **metadata}
    records.write("steps", step_columns(run.spec, result), folder / "steps.parquet", metadata)
    write_run(folder / "run.parquet", run.spec, columns, metadata)


def write_run(file: Path, spec: RunSpec, columns: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
    """Write the record of a run: its spec and the given columns; all others are null."""
    row = spec.columns() | dict(columns)
    records.write("run", {name: [value] for name, value in row.items()}, file, metadata)


def run_columns(run: Planned, result: Result) -> dict[str, Any]:
    """Return the run record of a result."""
    spec, t_s, loss = run.spec, np.array(result.t_s), np.array(result.loss)
    _, spec_hash, code_hash = identity.parts(run.run)
    ok, steps, threads = result.status == "ok", len(loss), spec.threads_per_rank or 1
    has_area = result.status in ("ok", "beaten")
    derived: dict[str, Any] = {
        "run": run.run,
        "spec_hash": spec_hash,
        "code_hash": code_hash,
        "status": result.status,
        "reason": result.reason,
        "parameters": PARAMETERS,
        "flop_per_step": 6.0 * PARAMETERS * spec.batch_size if ok else None,
        "samples_asked": spec.samples_asked,
        "samples_seen": steps * spec.global_batch_size,
        "steps": steps,
        "oversubscribed": spec.world_size * threads > CORES,
        "cores": CORES,
        "hosts": 1,
        "device_used": "cpu",
        "threads_used": threads,
    }
    if steps:
        finite = loss[np.isfinite(loss)]
        derived |= {
            "train_s": t_s[-1],
            "samples_per_s": derived["samples_seen"] / t_s[-1],
            "step_s": float(np.median(np.diff(t_s, prepend=0.0))),
            "first_loss": loss[0],
            "min_loss": finite.min() if len(finite) else None,
            "final_loss": loss[-1],
            "loss_area_loss_s": float(np.trapezoid([loss[0], *loss], [0.0, *t_s])) if has_area else None,
        } | phases(spec, float(np.median(np.diff(t_s, prepend=0.0))))
    return derived | dict(result.columns)


def phases(spec: RunSpec, step_s: Any) -> dict[str, Any]:
    """Return how a step of `step_s` seconds splits, or each of many steps; no exchange without one."""
    exchange = 0.0 if spec.exchange.name == "none" else min(0.6, 0.1 + 0.08 * spec.world_size)
    shares = {"data_s": 0.05, "h2d_s": 0.0, "forward_s": 0.3, "backward_s": 0.45, "update_s": 0.12, "rest_s": 0.08}
    parts = {name: share * (1 - exchange) * step_s for name, share in shares.items()}
    parts["exchange_exposed_s"] = exchange * step_s
    return parts | {"wait_s": 0.3 * exchange * step_s, "move_s": 0.7 * exchange * step_s}


def step_columns(spec: RunSpec, result: Result) -> dict[str, Any]:
    """Return the steps record of a result: all ranks, and two steps of warm-up that no table may count."""
    ranks, steps = spec.world_size, len(result.loss)
    step = np.repeat(np.arange(-1, steps + 1), ranks)
    rank = np.tile(np.arange(ranks), steps + 2)
    counted = step > 0

    def of_steps(values: Sequence[float]) -> np.ndarray:
        return np.concatenate([[np.nan, np.nan], np.asarray(values, dtype=float)]).repeat(ranks)

    columns = {
        "step": step,
        "rank": rank,
        "t_s": of_steps(result.t_s),
        "loss": of_steps(result.loss),
        "warm_up": ~counted,
        "sampled": np.zeros(len(step), dtype=bool),
    }
    if not steps:
        return columns
    if result.of_rank is None:
        step_s = of_steps(np.diff(np.array(result.t_s), prepend=0.0))
        return columns | {"step_s": step_s} | phases(spec, step_s)
    measured = [
        result.of_rank(*where) if where[0] > 0 else {} for where in zip(step.tolist(), rank.tolist(), strict=True)
    ]
    return columns | {name: [row.get(name) for row in measured] for name in {name for row in measured for name in row}}


def realistic(spec: RunSpec) -> Result:
    """Return a result that looks like a real one: high rates on small batches diverge, more ranks are faster."""
    rng = np.random.default_rng(int(spec.hash, 16) % 2**32)
    batch, rate, steps = spec.global_batch_size, spec.learning_rate, (spec.steps_asked or 400)
    # seconds: a fixed cost, the samples of one rank, the exchange
    exchange = 0.0 if spec.exchange.name == "none" else 1.5e-4 * (1 + 0.4 * (spec.world_size - 1))
    step_s = (3e-4 + 1.2e-5 * spec.batch_size + exchange) * (3 if spec.world_size > CORES else 1)
    t_s = np.cumsum(step_s * (1 + 0.08 * np.abs(rng.normal(size=steps))))
    progress = np.arange(steps) * rate / (1 + rate * 8 / batch)
    loss = 0.02 + 2.3 * np.exp(-progress / 25) + 0.25 / (1 + progress / 40)
    loss = loss * (1 + 0.35 * rng.normal(size=steps) / np.sqrt(batch)) + 0.02 * rate * rng.random(steps)
    if rate / np.sqrt(batch) > 0.3:
        end = max(2, steps // 9)
        loss = loss[:end] * np.exp(np.linspace(0, 4, end))
        loss[-1] = np.nan
        return Result("diverged", f"loss is nan at step {end} (rank 0)", tuple(t_s[:end]), tuple(loss))
    return Result(t_s=tuple(t_s), loss=tuple(loss), provenance={"train_samples": 1437})


def constant(area: float, steps: int = 100, **columns: Any) -> Result:
    """Return a run of just this loss area, at a loss of 0.1, without noise."""
    t_s = np.linspace(1.0, 1.0 + area / 0.1, steps)
    return replace(Result(t_s=tuple(t_s), loss=(0.1,) * steps), columns={"loss_area_loss_s": area} | columns)
