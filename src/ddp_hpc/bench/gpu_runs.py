"""The parts of `ddp-hpc bench gpu` that start processes: runs as studies make them, and trainings on several ranks.

MPI is not started here, for a process that has done so can start no launcher. A rank is
`python -m ddp_hpc.bench.gpu_runs FOLDER`: it trains what FOLDER/asked.json asks for, one spec after another.
"""

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddp_hpc.bench.gpu_check import Asked, Findings
from ddp_hpc.bench.launch import as_rank, run_ranks
from ddp_hpc.config import catalog
from ddp_hpc.config import spec as specs
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import RunFolder
from ddp_hpc.system.files import read_json, write_json

if TYPE_CHECKING:
    from ddp_hpc.training.trainer import Trainer

TOLERANCE = 1e-5  # of float32 losses against float64, or the same ones summed in another order, relative
FEW = {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9}  # steps that can be compared
STRAIN_STRESS = {  # the network of P. Orlob, TU Dresden (2022), and its batch
    "model": {"name": "mlp", "widths": [150, 200, 163]},
    "dataset": {"name": "random_curves", "samples": 6000},
    "batch_size": 75,
    "learning_rate": 1e-4,
    "optimizer": "adam",
}
CAPTURED_DDP = {"name": "torch_ddp", "tuned": True, "captured": True}


def spec_of(asked: Asked, **fields: Any) -> RunSpec:
    """Return the spec of the strain-stress network on one rank, with other `fields`."""
    given = {"exchange": "none", "world_size": 1, "budget": {"steps": 20}, "threads_per_rank": 1}
    return RunSpec.model_validate(given | STRAIN_STRESS | {"device": asked.device} | fields)


def trainer_of(spec: RunSpec, **more: Any) -> "Trainer":
    """Return the training of one of the ranks, which all must call."""
    from mpi4py import MPI

    from ddp_hpc.training.placement import choose_slice, survey
    from ddp_hpc.training.trainer import Trainer

    place = survey(spec, MPI.COMM_WORLD)
    choose_slice(os.environ, place.local_rank)
    return Trainer(spec, MPI.COMM_WORLD, place, Path("unused"), **more)


def apart(losses: Tensor, expected: Tensor) -> float:
    """Return the largest relative difference."""
    return float(((losses - expected).abs() / expected.abs()).max())


def attempt(asked: Asked, folder: Path, spec: RunSpec) -> tuple[Any, dict[str, Any]]:
    """Train a run as studies do, in processes of its own; return how it ended, and its record where there is one.

    By the launcher: without one it would be a fork of this process, which may have started CUDA.
    """
    run = RunFolder(folder / "runs" / identity.run_id(spec))
    run.path.mkdir(parents=True)
    _, spec_hash, code_hash = identity.parts(run.path.name)
    run.plan = {
        "run": run.path.name,
        "spec": spec.canonical,
        "spec_hash": spec_hash,
        "code_hash": code_hash,
        "world_size": 1,
        "cuda_aware_mpi": False,
        "files": identity.fingerprints(spec),
    }
    ending = supervise(run.path, [*shlex.split(asked.launcher), "-n", "1"], folder / "data")
    record = records.read("run", run.record()).to_pylist()[0] if run.has_record else {}
    return ending, record


METERED = (
    *("gpu_utilisation_mean", "power_mean_w", "sm_clock_mean_mhz", "throttled_share", "energy_per_sample_j"),
    *("flop_per_s", "mfu", "samples_per_s", "step_s"),
)


def whole_run(asked: Asked, tell: Findings) -> None:
    """A run as a study makes it, with its meters: what it says, and whether two ways to the energy agree."""
    spec = spec_of(asked, budget={"steps": 40} if asked.small else {"seconds": 12.0}, batch_size=75)
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
        ending, record = attempt(asked, Path(folder), spec)
    tell.check("a run ends well", ending.status == "ok", note="" if ending.status == "ok" else ending.reason)
    for name in METERED:
        tell.note(name, record.get(name))
    counter, power = record.get("energy_counter_j"), record.get("energy_power_j")
    if counter and power:
        off = abs(counter / power - 1)
        tell.check("joules by the counter as by integrated power, within 5 %", off < 0.05, relative=off)
    else:
        tell.note("energy_j", record.get("energy_j"), "J")


def out_of_memory(asked: Asked, tell: Findings) -> None:
    """A run that needs more memory than the GPU has: a finding, not a crash."""
    if asked.device == "cpu":
        return tell.note("a run that needs more memory than there is", "left out: it needs a GPU")
    memory = torch.cuda.get_device_properties(0).total_memory
    spec = spec_of(asked, batch_size=round(1.5 * memory / (4 * 600)))
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
        ending, _ = attempt(asked, Path(folder), spec)
    tell.check(
        "a run that needs more memory than there is ends as oom_gpu", ending.status == "oom_gpu", note=ending.status
    )
    return None


def train_on(asked: Asked, ranks: int, specs_: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Train these specs one after another, in one launch; return of each what the ranks found."""
    with tempfile.TemporaryDirectory(prefix="ddp-hpc-bench-") as folder:
        told = {"specs": [spec.canonical for spec in specs_]}
        run_ranks("gpu_runs", Path(folder), told, ranks, asked.launcher)
        return list(read_json(Path(folder) / "found.json")["found"])


def shared_gpu(asked: Asked, tell: Findings) -> None:
    """Several ranks on one GPU, by MPI, against one rank with the whole batch."""
    ranks = 2 if asked.small else 4
    (alone,) = train_on(asked, 1, [spec_of(asked, batch_size=12 * ranks, **FEW)])
    expected = torch.tensor(alone["losses"], dtype=torch.float64)
    chosen = [
        name
        for name in catalog.readable("exchange")
        if asked.device in catalog.devices(name)
        and catalog.constants("exchange", name).get("MAX_WORLD_SIZE", ranks) >= ranks
        and not any(catalog.constants("exchange", name).get(flag) for flag in ("ONE_GPU_EACH", "PACKAGE"))
    ]
    fields = {"world_size": ranks, "batch_size": 12, "share_gpu": True} | FEW
    found = train_on(asked, ranks, [spec_of(asked, exchange=name, **fields) for name in chosen])
    for name, one in zip(chosen, found, strict=True):
        known, losses = catalog.constants("exchange", name), torch.tensor(one["losses"], dtype=torch.float64)
        if known["EXACT"] and known["SYNCHRONOUS"]:
            off = apart(losses, expected)
            tell.check(f"{name} on {ranks} ranks: losses of one with the whole batch", off < TOLERANCE, relative=off)
        else:
            tell.check(f"{name} on {ranks} ranks: trains", bool(losses.isfinite().all()))
        tell.note(f"{name} on {ranks} ranks", 1e6 * one["step_s"], "us per step")


def nccl_ends(asked: Asked, tell: Findings) -> None:
    """Captured steps with NCCL on several GPUs: such a training must come to its end."""
    ranks = asked.gpus if asked.device == "cuda" else 2
    for exchange in ("nccl", CAPTURED_DDP) if asked.device == "cuda" else ("gloo",):
        spec = spec_of(asked, exchange=exchange, world_size=ranks, budget={"steps": 20 if asked.small else 200})
        (found,) = train_on(asked, ranks, [spec])
        what = f"{spec.exchange} on {ranks} ranks"
        tell.check(f"{what}, {found['captured']} captured: comes to its end", True)
        tell.note(what, 1e6 * found["step_s"], "us per step")


def several_gpus(asked: Asked, tell: Findings) -> None:
    """What of each exchange is exposed where every rank has a GPU; the overlapped ring against the ring."""
    ranks = asked.gpus if asked.device == "cuda" else 2
    names = ["ring", "ring_overlapped", *([] if asked.small else ["torch_ddp", "nccl", "hierarchical"])]
    wide = {"name": "mlp", "widths": [32] if asked.small else [2048, 2048, 1024]}
    fields = {"world_size": ranks, "model": wide, "budget": {"steps": 10 if asked.small else 60}}
    found = dict(zip(names, train_on(asked, ranks, [spec_of(asked, exchange=n, **fields) for n in names]), strict=True))
    for name, one in found.items():
        tell.note(f"{name} on {ranks} ranks", 1e6 * one["step_s"], "us per step")
        tell.note(f"{name} on {ranks} ranks: exchange exposed", 1e6 * one["exposed_s"], "us per step")
    share = found["ring_overlapped"]["exposed_s"] / found["ring"]["exposed_s"]
    tell.note("exposed by ring_overlapped, of what ring exposes", share)


def main(folder: Path) -> None:
    """Be one of several ranks: train what is asked for, and leave in FOLDER/found.json what was found."""
    from mpi4py import MPI

    from ddp_hpc.training.result import WARM_UP_STEPS

    comm, found = MPI.COMM_WORLD, []
    for asked in read_json(folder / "asked.json")["specs"]:
        result = trainer_of(specs.load(asked)).run()
        losses = comm.gather(list(result.losses)[WARM_UP_STEPS:])
        phases = result.history().timings.phases_s[WARM_UP_STEPS:]
        step_s = comm.allreduce(float(torch.from_numpy(phases).sum(1).median()), MPI.MAX)
        exposed_s = comm.allreduce(
            float(torch.from_numpy(phases)[:, PHASES.index("exchange_exposed_s")].median()), MPI.MAX
        )
        if losses:
            mean = torch.tensor(losses, dtype=torch.float64).mean(0).tolist()
            found.append({"losses": mean, "step_s": step_s, "exposed_s": exposed_s, "captured": result.captured})
    if comm.rank == 0:
        write_json(folder / "found.json", {"found": found})
    comm.Barrier()


if __name__ == "__main__":
    as_rank(main)
