"""The records of a run: gathered from its ranks, written by rank 0."""

import pickle
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution import energy_columns
from ddp_hpc.execution.clock_sync import ClockReading, on_first_clock, reading
from ddp_hpc.execution.node_meter import Metered, bug_of
from ddp_hpc.execution.rank_series import RankCurves, RankPart, curves
from ddp_hpc.execution.record_columns import NORMS, evaluation_columns, run_columns, step_pieces
from ddp_hpc.profiling import provenance
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import identity, records, schema
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.training.placement import Placement
from ddp_hpc.training.result import TrainResult

PIECE_BYTES = 2**28  # of a message to rank 0


def gather(
    result: TrainResult,
    placement: Placement,
    startup: dict[str, float],
    comm: MPI.Intracomm,
    metered: Metered | None = None,
    clock: ClockReading | None = None,
    *,
    warnings: Sequence[str] = (),
    beside: int = 0,
) -> list[RankPart]:
    """Return the parts of all ranks on rank 0, an empty list on the others. All ranks must call.

    Args:
        result: of this rank.
        placement: of this rank.
        startup: seconds by part.
        comm: the ranks.
        metered: what this rank's meter has sampled.
        clock: how far this rank's clock was ahead before the training, where the ranks sit on several hosts.
        warnings: what Python has warned of on this rank.
        beside: other trainings on this node.
    """
    history, device = result.history(), torch.device(result.device)
    timings, clock_error_s = history.timings, None
    if clock:
        now = reading(comm)
        timings = replace(timings, arrived_ns=on_first_clock(timings.arrived_ns, clock, now))
        clock_error_s = max(clock.error_ns, now.error_ns) / 1e9
    part = RankPart(
        losses=history.losses,
        timings=timings,
        placement=placement,
        peak_memory_bytes=provenance.peak_memory_bytes(device),
        startup=startup,
        facts=provenance.of_rank(device) | {"compiled": result.compiled, "captured": result.captured},
        crowding=result.crowding,
        metrics=result.metrics,
        warnings=tuple(warnings),
        beside=beside,
        metered=metered or Metered(),
        clock_error_s=clock_error_s,
    )
    apart = comm.Dup()  # from what an exchange may have left unread
    if comm.rank:
        _send(part, apart)
    parts = [] if comm.rank else [part, *(_receive(source, apart) for source in range(1, comm.size))]
    apart.Free()
    return parts


def _send(part: RankPart, comm: MPI.Intracomm) -> None:
    """Send a part to rank 0: its arrays as they lie in memory, in pieces, for MPI counts bytes up to 2^31."""
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(part, protocol=5, buffer_callback=arrays.append)
    views = [array.raw() for array in arrays]
    comm.send((head, [view.nbytes for view in views]), dest=0)
    for view in views:
        for start in range(0, view.nbytes, PIECE_BYTES):
            comm.Send([view[start : start + PIECE_BYTES], MPI.BYTE], dest=0)


def _receive(source: int, comm: MPI.Intracomm) -> RankPart:
    head, lengths = comm.recv(source=source)
    arrays = [bytearray(length) for length in lengths]
    for array in arrays:
        for start in range(0, len(array), PIECE_BYTES):
            comm.Recv([memoryview(array)[start : start + PIECE_BYTES], MPI.BYTE], source=source)
    part: RankPart = pickle.loads(head, buffers=arrays)
    return part


def write(
    attempt: Attempt,
    launch: dict[str, Any],
    spec: RunSpec,
    result: TrainResult,
    parts: Sequence[RankPart],
    mpi_library: str,
) -> dict[str, str]:
    """Write the records of an attempt, and last its summary, which says that all is there. Rank 0 alone does this.

    `launch` is what was launched, `result` rank 0's, and `mpi_library` what MPI says of itself. Return why columns that
    meters fill are null.
    """
    flags = catalog.constants("exchange", spec.exchange.name)
    curve = curves(parts, flags["SYNCHRONOUS"], flags["OVERLAPS"])
    run = run_columns(launch, spec, result, parts, curve)
    found = TrainingFound(
        curve, run, lambda: step_pieces(curve, result.gradient_norms), lambda: null_reasons(parts, run)
    )
    return put(attempt, launch, spec, result, parts, found=found, mpi_library=mpi_library)


@dataclass(frozen=True)
class TrainingFound:
    """What a training was found to have done."""

    curve: RankCurves
    run: dict[str, Any]  # the one row of the run record, without what meters say
    steps: Callable[[], Iterable[dict[str, Any]]]  # the columns of the steps record, piece by piece
    null_reasons: Callable[[], dict[str, str]]  # once the row is complete


def put(
    attempt: Attempt,
    launch: dict[str, Any],
    spec: RunSpec,
    result: TrainResult,
    parts: Sequence[RankPart],
    *,
    found: TrainingFound,
    mpi_library: str,
) -> dict[str, str]:
    """Write the records of what was found, and last the summary; return why columns that meters fill are null."""
    run = found.run
    consumed, samples, not_metered, bugs = _metered(parts, spec, run, result.resumes)
    run |= consumed
    about = {"null_columns": not_metered | found.null_reasons(), "train_samples": result.train_samples}
    said = {"bugs": bugs, "warnings": list(dict.fromkeys(text for part in parts for text in part.warnings))}
    metadata = {
        "provenance": provenance_of(launch, parts, run, mpi_library, identity.files(spec)) | about,
        "run": launch["run"],
        "spec": spec.canonical,
        "files": identity.fingerprints(spec),
    }
    for kind, pieces in (
        ("evaluations", lambda: [evaluation_columns(spec, result, found.curve)]),
        ("steps", found.steps),
        ("gpu", lambda: [samples]),
    ):
        try:
            records.write_pieces(kind, pieces(), attempt.record(kind), metadata)
        except Exception as error:  # a result must not fail for the series beside it
            said["warnings"].append(f"the record {kind!r} is empty: {type(error).__name__}: {error}")
            print(said["warnings"][-1], file=sys.stderr)
            records.write(kind, {}, attempt.record(kind), metadata)
    metadata["provenance"] |= {name: texts for name, texts in said.items() if texts}
    records.write("run", {name: [value] for name, value in run.items()}, attempt.record(), metadata)
    kept = ("status", "reason", "steps", "train_s", "startup_s", "wall_s", "resumes", "lost_s")
    attempt.summary = {name: run[name] for name in kept}
    return not_metered


def _metered(
    parts: Sequence[RankPart], spec: RunSpec, run: dict[str, Any], resumes: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], list[str]]:
    """Return columns of the run record and of the gpu record, why columns are null, and tracebacks of bugs of ours."""
    bugs = [part.metered.bug for part in parts if part.metered.bug]
    if resumes:  # the meters before have gone with their processes
        why = "training went on from a checkpoint: only its last part was metered"
        return {}, {}, dict.fromkeys(schema.METERED, why), bugs
    try:
        return *energy_columns.columns(parts, spec, run), bugs
    except Exception as error:  # a result must not fail for numbers beside it
        return {}, {}, dict.fromkeys(schema.METERED, bug_of(error)), [*bugs, traceback.format_exc()]


def null_reasons(parts: Sequence[RankPart], run: dict[str, Any]) -> dict[str, str]:
    """Return why columns are null that no meter fills."""
    reasons = {"forward_backward_s": "forward and backward were told apart"}
    for name, what in (("core_wait_share", "threads wait for cores"), ("others_core_share", "cores are busy")):
        if run[name] is None:
            reasons[name] = f"Linux does not count here how long {what}"
    if run["throttled_by_quota_share"] is None:
        reasons["throttled_by_quota_share"] = "no control group of ours has a quota of CPU time"
    if run["own_metrics"] is None:
        reasons["own_metrics"] = "neither model nor dataset has METRICS of its own"
    if run["noise_scale_every_steps"] and run["world_size"] * run["batch_size"] == 1:
        reasons |= dict.fromkeys(NORMS, "a batch of one sample has no parts")
    if run["compile_s"] is None:
        reasons["compile_s"] = "nothing was compiled"
    if not catalog.constants("exchange", run["exchange"])["SYNCHRONOUS"]:
        reasons |= dict.fromkeys(("step_s", "wait_s", "move_s"), "each rank takes its steps by itself")
    elif not parts[0].common_clock:
        reasons |= dict.fromkeys(("wait_s", "move_s"), "the ranks' hosts have no common clock")
    elif parts[0].timings.fused.any() and len(parts) > 1:
        reasons |= dict.fromkeys(("wait_s", "move_s"), "a CUDA graph holds the exchange: no host sees it begin")
    if np.isnan(run["rest_s"]):
        phases = (*PHASES, "wait_s", "move_s", "exchange_busy_s")
        reasons |= dict.fromkeys(phases, "each of its steps is one CUDA graph, and none was sampled")
    elif np.isnan(run["exchange_busy_s"]):
        reasons["exchange_busy_s"] = "the exchange overlaps the backward pass and does not say for how long"
    if run["status"] != "ok":
        lacking = ("loss_area_loss_s", "test_metric", "own_metrics")[run["status"] != "diverged" :]
        reasons |= dict.fromkeys(lacking, f"the run is {run['status']}")
    return reasons


def provenance_of(
    launch: dict[str, Any],
    parts: Sequence[RankPart],
    run: dict[str, Any],
    mpi_library: str,
    files: Collection[str] = (),
) -> dict[str, Any]:
    """Return on what the run was made."""
    gradient_path = catalog.constants("exchange", run["exchange"]).get("GRADIENT_PATH", "through pinned host memory")
    if run["device_used"] != "cuda":
        gradient_path = "host memory"
    elif run["exchange"] == catalog.PROGRAM:
        gradient_path = "the program's own"
    elif launch.get("cuda_aware_mpi"):
        gradient_path = "device memory, by MPI, tried before the start"
    own = [name for name in files if name.startswith(identity.OWN)]
    told = {gpu.asked: gpu.facts for part in parts if part.metered.samples for gpu in part.metered.samples.devices}
    return {
        "software": provenance.software(mpi_library),
        "machine": provenance.machine(),
        "source": provenance.source([name for name in files if name not in own]),
        **({"project": provenance.source(own, Path(launch["project"]), "workflow/Snakefile")} if own else {}),
        "command": launch.get("command"),
        "environment": provenance.environment(),
        "slurm_job": provenance.slurm_job(),
        "request": launch.get("request"),
        "ranks_on_nodes": list(parts[0].placement.blocks),
        "gradient_path": gradient_path,
        "startup": {"by_rank": [part.startup for part in parts]},
        "ranks": [
            {
                "rank": part.placement.rank,
                "host": part.placement.host,
                "core_set": list(part.placement.core_set),
                "threads": part.placement.threads,
                "clock_error_s": part.clock_error_s,
                **part.facts,
                "gpu": gpu and gpu | told.get(gpu["uuid"], {}),
            }
            for part in parts
            for gpu in [part.facts.get("gpu")]
        ],
    }
