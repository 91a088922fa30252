"""From what the ranks measured to the records of a run."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution import cuda_aware_check, energy_columns
from ddp_hpc.execution.clock_sync import Reading, on_first_clock, reading
from ddp_hpc.execution.node_meter import Metered
from ddp_hpc.execution.rank_series import EXCHANGE, Curves, RankPart, curves, reason_of
from ddp_hpc.profiling import contention, provenance
from ddp_hpc.profiling.phases import PARTS, PHASES
from ddp_hpc.runs import identity
from ddp_hpc.system.files import write_json
from ddp_hpc.training.lr_schedule import scaled_learning_rate
from ddp_hpc.training.placement import Placement
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult, since_launch_s

# columns of the run record that an exchange may report
REPORTED = ("staleness", "staleness_max")


def gather(
    outcome: TrainResult,
    placement: Placement,
    startup: dict[str, float],
    comm: MPI.Intracomm,
    metered: Metered | None = None,
    clock: Reading | None = None,
) -> list[RankPart]:
    """Return the parts of all ranks on rank 0, an empty list on the others. All ranks must call.

    Args:
        outcome: of this rank.
        placement: of this rank.
        startup: seconds by part.
        comm: the ranks.
        metered: what this rank's meter has sampled.
        clock: how far this rank's clock was ahead before the training, where the ranks sit on several hosts.
    """
    history, device = outcome.history(), torch.device(outcome.device)
    timings = history.timings
    arrived_ns, clock_error_s = timings.arrived_ns, None
    if clock is not None:
        now = reading(comm)
        arrived_ns, clock_error_s = on_first_clock(arrived_ns, clock, now), max(clock.error_ns, now.error_ns) / 1e9
    part = RankPart(
        losses=history.losses,
        phases_s=timings.phases_s,
        parts_s=timings.parts_s,
        overlapped_s=timings.overlapped_s,
        arrived_ns=arrived_ns,
        fused=timings.fused,
        placement=placement,
        peak_memory_bytes=provenance.peak_memory_bytes(device),
        startup=startup,
        facts=provenance.of_rank(device) | {"compiled": outcome.compiled, "captured": outcome.captured},
        crowding=outcome.crowding,
        metrics=outcome.metrics,
        starts=timings.starts,
        metered=metered or Metered(),
        clock_error_s=clock_error_s,
    )
    return comm.gather(part, root=0) or []


def write(
    folder: Path,
    launch: dict[str, Any],
    spec: RunSpec,
    outcome: TrainResult,
    parts: Sequence[RankPart],
    mpi_library: str,
) -> dict[str, str]:
    """Write the records of `records.SCHEMAS` into `folder`, and last `summary.json`: that all is there. Rank 0 alone
    does this.

    Args:
        folder: of this attempt.
        launch: what `launch.json` says.
        spec: what was trained.
        outcome: rank 0's.
        parts: by rank.
        mpi_library: what MPI says of itself.

    Returns:
        Why columns that meters fill are null.
    """
    from ddp_hpc.runs import records  # brings pyarrow, which the start of a run can do without

    flags = catalog.constants("exchange", spec.exchange.name)
    curve = curves(parts, flags["SYNCHRONOUS"], flags["OVERLAPS"])
    run = run_columns(launch, spec, outcome, parts, curve)
    try:
        consumed, samples, not_metered = energy_columns.columns(parts, spec, run)
    except Exception as error:  # a result must not fail for numbers beside it
        consumed, samples = {}, {}
        not_metered = dict.fromkeys(records.METERED, f"{type(error).__name__}: {error}")
    if outcome.resumes:  # the meters before have gone with their processes
        consumed, samples = {}, {}
        not_metered = dict.fromkeys(
            records.METERED, "training went on from a checkpoint: only its last part was metered"
        )
    run |= consumed
    metadata = {
        "provenance": provenance_of(launch, parts, run, mpi_library, not_metered)
        | {"train_samples": outcome.train_samples},
        "run": launch["run"],
        "spec": spec.canonical,
        "files": identity.fingerprints(spec),
    }
    kept = ("status", "reason", "steps", "train_s", "startup_s", "wall_s", "resumes", "lost_s")
    summary = {name: run[name] for name in kept}
    records.write("evaluations", evaluation_columns(spec, outcome, curve), folder / "evaluations.parquet", metadata)
    records.write("steps", step_columns(curve), folder / "steps.parquet", metadata)
    records.write("gpu", samples, folder / "gpu.parquet", metadata)
    records.write("run", {name: [value] for name, value in run.items()}, folder / "run.parquet", metadata)
    write_json(folder / "summary.json", summary)
    return not_metered


def step_columns(curve: Curves) -> dict[str, Any]:
    """Return the columns of the steps record: a row per step and rank."""
    steps, ranks = curve.rank_losses.shape
    number = np.arange(1 - WARM_UP_STEPS, steps - WARM_UP_STEPS + 1)
    before = np.full(WARM_UP_STEPS, np.nan)
    exposed = curve.phases_s[:, :, EXCHANGE]
    by_step = {
        "step": number,
        "t_s": np.concatenate([before, curve.t_s]),
        "loss": np.concatenate([before, curve.losses]),
        "warm_up": number < 1,
        "sampled": curve.told_apart & curve.fused.any(),
    }
    by_rank = {
        "rank_loss": curve.rank_losses,
        "rank_t_s": np.concatenate([np.full((WARM_UP_STEPS, ranks), np.nan), curve.rank_t_s]),
        "step_s": curve.step_s,
        **{phase: curve.phases_s[:, :, column] for column, phase in enumerate(PHASES)},
        "wait_s": curve.wait_s,
        "move_s": exposed - curve.wait_s,
        "exchange_busy_s": curve.busy_s,
        **({part: curve.parts_s[:, :, column] for column, part in enumerate(PARTS)} if curve.parts_s.any() else {}),
    }
    for name in by_rank.keys() - {"rank_loss", "rank_t_s", "step_s"}:
        by_rank[name] = np.where(curve.fused[:, None], np.nan, by_rank[name])
    return (
        {name: np.repeat(values, ranks) for name, values in by_step.items()}
        | {"rank": np.tile(np.arange(ranks), steps)}
        | {name: values.ravel() for name, values in by_rank.items()}
    )


def evaluation_columns(spec: RunSpec, outcome: TrainResult, curve: Curves) -> dict[str, Any]:
    """Return the columns of the evaluations record, those after the first broken step left out."""
    t_s = curve.t_s
    kept = [evaluation for evaluation in outcome.evaluations if evaluation[0] <= len(t_s)]
    return {
        "step": [step for step, _, _ in kept],
        "t_s": [t_s[step - 1] for step, _, _ in kept],
        "samples_seen": [step * spec.global_batch_size for step, _, _ in kept],
        "metric": [metric for _, metric, _ in kept],
        "loss": [loss for _, _, loss in kept],
    }


def run_columns(
    launch: dict[str, Any],
    spec: RunSpec,
    outcome: TrainResult,
    parts: Sequence[RankPart],
    curve: Curves,
) -> dict[str, Any]:
    """Return the one row of the run record."""
    losses, t_s, phased = curve.losses, curve.t_s, curve.told_apart
    steps, place = len(losses), parts[0].placement
    synchronous = catalog.constants("exchange", spec.exchange.name)["SYNCHRONOUS"]
    samples_seen = steps * spec.global_batch_size
    if not synchronous and not outcome.diverged:  # a budget in seconds: the ranks took different numbers of steps
        samples_seen = spec.batch_size * sum(len(part.losses) - WARM_UP_STEPS for part in parts)
    finite = losses[np.isfinite(losses)]
    medians = np.median(curve.phases_s[phased].mean(axis=1), axis=0)
    wait_s = float(np.median(curve.wait_s[phased].mean(axis=1)))
    moved_s = float(np.median((curve.phases_s[phased][:, :, EXCHANGE] - curve.wait_s[phased]).mean(axis=1)))
    return {
        "run": launch["run"],
        "spec_hash": launch["spec_hash"],
        "code_hash": launch["code_hash"],
        **spec.columns(),
        "status": "diverged" if outcome.diverged else "ok",
        "reason": reason_of(curve) if outcome.diverged else None,
        "parameters": outcome.parameters,
        "learning_rate_scaled": scaled_learning_rate(spec),
        "samples_asked": spec.samples_asked,
        "samples_seen": samples_seen,
        "steps": steps,
        "warm_up_steps": WARM_UP_STEPS,
        "wall_s": outcome.passed_s(launch, outcome.ended_ns),
        "startup_s": since_launch_s(launch, outcome.time_zero_ns) if outcome.startup_s is None else outcome.startup_s,
        "import_s": max(part.startup["import_s"] for part in parts),
        "compile_s": outcome.compile_s,
        "warm_up_s": outcome.warm_up_s,
        "evaluation_s": outcome.evaluation_s,
        "checkpoint_s": outcome.checkpoint_s,
        "resumes": outcome.resumes,
        "lost_s": outcome.lost_s,
        "train_s": float(t_s[-1]),
        "samples_per_s": samples_seen / t_s[-1],
        "step_s": np.median(np.diff(t_s, prepend=0)) if synchronous else None,
        **dict(zip(PHASES, medians, strict=True)),
        "wait_s": wait_s,
        "move_s": moved_s,
        "exchange_busy_s": np.median(curve.busy_s[phased].mean(axis=1)),
        **(dict(zip(PARTS, np.median(curve.parts_s[phased, 0], axis=0), strict=True)) if curve.parts_s.any() else {}),
        **reports(parts),
        "first_loss": losses[0],
        "min_loss": finite.min() if len(finite) else None,
        "final_loss": losses[-1],
        # one point encloses no area; a zero would win every comparison
        "loss_area_loss_s": None if outcome.diverged or steps < 2 else np.trapezoid(losses, t_s),
        "test_metric": None if outcome.diverged else outcome.evaluations[-1][1],
        "test_metric_name": outcome.metric_name,
        "peak_memory_bytes": max(part.peak_memory_bytes for part in parts),
        "device_used": outcome.device,
        "threads_used": place.threads,
        "cores": place.cores,
        "hosts": place.hosts,
        "core_wait_share": contention.wait_share(part.crowding for part in parts),
        "others_core_share": contention.others_share(
            (part.placement.host, part.placement.core_set, part.crowding) for part in parts
        ),
        "oversubscribed": place.oversubscribed,
        "placement_verified": place.verified,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def reports(parts: Sequence[RankPart]) -> dict[str, float | None]:
    """Return what the ranks' exchanges say of themselves: the mean over the ranks; of a maximum, the largest."""
    row: dict[str, float | None] = dict.fromkeys(REPORTED)
    for name in row:
        values = [value for part in parts if (value := part.metrics.get(name)) is not None]
        if values:
            row[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return row


def provenance_of(
    launch: dict[str, Any], parts: Sequence[RankPart], run: dict[str, Any], mpi_library: str, nulls: dict[str, str]
) -> dict[str, Any]:
    """Return on what the run was made, and why columns are null; `nulls` says it of some."""
    null_columns = nulls | {"forward_backward_s": "forward and backward were told apart"}
    for name, what in (("core_wait_share", "threads wait for cores"), ("others_core_share", "cores are busy")):
        if run[name] is None:
            null_columns[name] = f"Linux does not count here how long {what}"
    if run["compile_s"] is None:
        null_columns["compile_s"] = "nothing was compiled"
    if not catalog.constants("exchange", run["exchange"])["SYNCHRONOUS"]:
        null_columns |= dict.fromkeys(("step_s", "wait_s", "move_s"), "each rank takes its steps by itself")
    elif not parts[0].common_clock:
        null_columns |= dict.fromkeys(("wait_s", "move_s"), "the ranks' hosts have no common clock")
    elif parts[0].fused.any() and len(parts) > 1:
        null_columns |= dict.fromkeys(("wait_s", "move_s"), "a CUDA graph holds the exchange: no host sees it begin")
    if np.isnan(run["exchange_busy_s"]):
        null_columns["exchange_busy_s"] = "the exchange overlaps the backward pass and does not say for how long"
    if run["status"] != "ok":
        null_columns |= dict.fromkeys(("loss_area_loss_s", "test_metric"), f"the run is {run['status']}")
    if run["device_used"] == "cuda":
        nccl = "ONE_GPU_EACH" in catalog.constants("exchange", run["exchange"])
        direct = "device memory, by MPI, tried before the start" if cuda_aware_check.asked(launch["spec"]) else None
        staged = "device memory, by NCCL" if nccl else direct or "through pinned host memory"
        gradient_path = "none" if run["exchange"] == "none" else staged
    else:
        gradient_path = "host memory"
    return {
        "software": provenance.software(mpi_library),
        "source": provenance.source(),
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
            }
            for part in parts
        ],
        "null_columns": null_columns,
    }
