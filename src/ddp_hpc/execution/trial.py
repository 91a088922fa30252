"""`ddp-hpc try`: builds each model and dataset of a study and takes two steps, on one rank, each in its own process."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ddp_hpc.config.spec import RunSpec, load
from ddp_hpc.runs.study_runs import StudyRuns

STEPS = 2
KEPT = ("model", "dataset", "batch_size", "dtype", "precision", "device", "data_placement", "threads_per_rank")


def trials(study_runs: StudyRuns, data_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every model, dataset and batch size of a study: what it takes, or the `problem` with it.

    Exchanges are not tried: a rank is alone here, and `none` takes their place.
    """
    specs = [planned.spec for planned in study_runs.planned]
    yield from (
        {"program": text, "not_tried": "it takes its steps by itself"}
        for text in dict.fromkeys(spec.program.called for spec in specs if spec.program)
    )
    alone = {spec.hash: spec for spec in (_alone(spec) for spec in specs if not spec.program)}
    for spec in alone.values():
        row = {"model": str(spec.model), "dataset": str(spec.dataset), "batch_size": spec.batch_size}
        with ProcessPoolExecutor(1, get_context("fork")) as process:  # its own: memory is the most that it ever held
            try:
                yield row | process.submit(_taken, spec, data_dir).result()
            except BrokenProcessPool:
                yield row | {"problem": "its process was killed: no memory is left, or native code has crashed"}


def _alone(spec: RunSpec) -> RunSpec:
    """Return the spec that builds the same on one rank, and is through after a few steps that change little."""
    same = {name: spec.canonical[name] for name in KEPT if name in spec.canonical}
    return load({**same, "learning_rate": 1e-6, "exchange": "none", "world_size": 1, "budget": {"steps": STEPS}})


def _taken(spec: RunSpec, data_dir: Path) -> dict[str, Any]:
    """Take the steps; return shapes, number of parameters, memory and seconds per step, or the problem."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    from ddp_hpc.profiling import provenance
    from ddp_hpc.training import placement
    from ddp_hpc.training.trainer import Trainer

    MPI.Init()
    try:
        trainer = Trainer(spec, MPI.COMM_SELF, placement.survey(spec, MPI.COMM_SELF), data_dir)
        result = trainer.run()
    except (Exception, SystemExit) as error:  # of their code, whatever it is
        return {"problem": f"{type(error).__name__}: {error}"}
    finally:
        MPI.Finalize()
    if result.diverged:
        return {"problem": f"the loss is not finite after {result.steps} steps"}
    data = trainer.components.dataset.train
    return {
        "inputs": "x".join(map(str, data.inputs.shape)),
        "targets": "x".join(map(str, data.targets.shape)),
        "parameters": result.parameters,
        "memory_mb": round(provenance.peak_memory_bytes(trainer.components.device) / 1e6),
        "step_s": float(f"{result.trained_s / STEPS:.3g}"),
    }
