"""The records of a run whose training is a program of one's own: what it has recorded, as all else has it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution import run_record
from ddp_hpc.execution.node_meter import Metered
from ddp_hpc.execution.program_rank import ProgramPart
from ddp_hpc.execution.program_recording import Recording
from ddp_hpc.execution.rank_series import EXCHANGE, Floats, RankCurves, RankPart
from ddp_hpc.execution.record_columns import run_columns, step_pieces
from ddp_hpc.profiling.phase_names import PARTS, PHASES
from ddp_hpc.profiling.timers import Timings
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.training.result import TrainResult, since_launch_s

COLUMNS = {"data": "data_s", "compute": "forward_backward_s", "exchange": "exchange_exposed_s", "update": "update_s"}
_PLACES = {"data": "data_s", "compute": "forward_s", "exchange": "exchange_exposed_s", "update": "update_s"}
NOT_RECORDED = "the program did not record it"


@dataclass(frozen=True, kw_only=True)
class ProgramCurves(RankCurves):
    """Steps of ranks, some of which may have recorded nothing: NaN."""

    warm_up: int = 0

    @property
    def t_s(self) -> Floats:
        """Time zero to the end of each step of the slowest rank that is known."""
        return np.asarray(np.nanmax(self.rank_t_s, axis=1))

    @property
    def losses(self) -> Floats:
        """Mean over the ranks whose loss is known."""
        known = ~np.isnan(self.rank_losses).all(axis=0)
        if not known.any():
            return np.full(len(self.rank_losses), np.nan)
        return np.asarray(self.rank_losses[:, known].mean(axis=1))


def write(
    attempt: Attempt,
    launch: dict[str, Any],
    spec: RunSpec,
    parts: Sequence[ProgramPart],
    first_launch: Mapping[str, Any],
) -> None:
    """Write the records of an attempt, and last its summary. Rank 0 alone does this, whose part is the first.

    `first_launch` is of the first attempt that has recorded something.
    """
    recordings = [part.recording for part in parts]
    steps = _common_steps(recordings)
    silent = {rank for rank, one in enumerate(recordings) if not one.steps}
    ranks = [_rank_part(part, steps, silent) for part in parts]
    curve = _curves(ranks, recordings, steps)
    result = _result(first_launch, spec, parts[0], steps)
    row = run_columns(launch, spec, result, ranks, curve) | _columns(spec, result, parts, curve)
    found = run_record.TrainingFound(curve, row, lambda: _pieces(curve, recordings), lambda: _reasons(row, recordings))
    asked = spec.steps_asked
    if asked is not None and steps != asked and not result.diverged:
        text = f"the program recorded {steps} steps, its budget asks for {asked}"
        ranks[0] = replace(ranks[0], warnings=(text,))
    run_record.put(attempt, launch, spec, result, ranks, found=found, mpi_library=MPI.Get_library_version())


def _begin_s(part: ProgramPart) -> float | None:
    """Return when the first step began, on the host's monotonic clock; None if the program reads another clock."""
    begin_s = part.recording.begin_s
    return begin_s if begin_s is not None and part.began_s <= begin_s <= part.ended_s else None


def _common_steps(recordings: Sequence[Recording]) -> int:
    """Return how many steps count: those of all ranks that recorded any, up to the first loss that is not finite."""
    steps = min(one.steps for one in recordings if one.steps)
    for one in recordings:
        broken = np.flatnonzero([loss is not None and not np.isfinite(loss) for loss in one.loss[:steps]])
        steps = min(steps, int(broken[0]) + 1) if len(broken) else steps
    return steps


def _rank_part(part: ProgramPart, steps: int, silent: Collection[int]) -> RankPart:
    """Return a rank as run records know it, its first `steps`; `silent` ranks do not say when a node trained."""
    one = part.recording
    known = bool(one.steps)
    phases_s = np.full((steps, len(PHASES)), 0.0 if known else np.nan)
    for at, told in enumerate(one.phases_s[:steps]):
        for name, seconds in told.items():
            phases_s[at, PHASES.index(_PLACES[name])] = seconds
    durations = np.array(one.step_s[:steps]) if known else np.full(steps, np.nan)
    phases_s[:, PHASES.index("rest_s")] = durations - phases_s.sum(axis=1)
    arrived = [-1 if at is None else int(at * 1e9) for at in one.arrived_s[:steps]] if known else [-1] * steps
    starts = [(at, int(began_s * 1e9)) for at, began_s in one.starts if at < steps] if _begin_s(part) else []
    return RankPart(
        losses=np.array([np.nan if loss is None else loss for loss in one.loss[:steps]] or [np.nan] * steps),
        timings=Timings(
            phases_s=phases_s,
            parts_s=np.zeros((steps, len(PARTS))),
            overlapped_s=np.zeros(steps),
            arrived_ns=np.array(arrived, dtype=np.int64),
            fused=np.full(steps, not any(one.phases_s)),
            starts=np.array(starts, dtype=np.int64).reshape(-1, 2),
        ),
        placement=part.placement,
        peak_memory_bytes=part.peak_memory_bytes,
        startup={"import_s": np.nan, **part.startup},
        facts=part.facts,
        metrics={},
        metered=Metered(
            samples=part.samples,
            ranks=tuple(rank for rank in part.ranks if rank not in silent),
            no_flop="the program's model is not known",
        ),
        crowding=part.crowding,
    )


def _curves(ranks: Sequence[RankPart], recordings: Sequence[Recording], steps: int) -> ProgramCurves:
    """Return the steps side by side; waiting is known where all ranks of one host recorded their exchange."""
    phases_s = np.stack([part.timings.phases_s for part in ranks], axis=1)
    arrived_ns = np.stack([part.timings.arrived_ns for part in ranks], axis=1)
    wait_s: NDArray[np.float64] = np.full((steps, len(ranks)), np.nan)
    if ranks[0].placement.on_one_host and (arrived_ns >= 0).all():
        late_s = (arrived_ns.max(axis=1, keepdims=True) - arrived_ns) / 1e9
        wait_s = np.clip(late_s, 0, phases_s[:, :, EXCHANGE])
    return ProgramCurves(
        rank_losses=np.stack([part.losses for part in ranks], axis=1),
        phases_s=phases_s,
        parts_s=np.stack([part.timings.parts_s for part in ranks], axis=1),
        wait_s=wait_s,
        busy_s=np.full((steps, len(ranks)), np.nan),
        fused=np.full(steps, not any(any(one.phases_s) for one in recordings)),
    )


def _result(first_launch: Mapping[str, Any], spec: RunSpec, first: ProgramPart, steps: int) -> TrainResult:
    """Return rank 0's result, as a training of ours has it."""
    one, began_s = first.recording, _begin_s(first)
    metrics = [(at, values) for at, values in one.metrics if 0 < at <= steps]
    evaluations = [
        (at, values.get("accuracy", values.get("error", np.nan)), values.get("loss", np.nan)) for at, values in metrics
    ] or [(steps, np.nan, np.nan)]
    result = TrainResult(
        evaluations=evaluations,
        own_metrics=[{} for _ in evaluations],
        metric_name="error" if metrics and "error" in metrics[-1][1] else "accuracy" if metrics else "",
        diverged=one.diverged,
        train_samples=spec.epoch_samples or 0,
        device="cuda" if first.facts["gpu"] else "cpu",
        startup_s=since_launch_s(first_launch, int(one.first_s * 1e9)) if one.resumes and began_s else None,
        time_zero_ns=int((began_s or first.began_s) * 1e9),
        ended_ns=int((one.ended_s[-1] if began_s else first.ended_s) * 1e9),
        evaluation_s=one.evaluation_s,
        resumes=one.resumes,
    )
    if one.resumes and result.startup_s is not None:
        result.resumed_s = since_launch_s(first_launch, result.time_zero_ns)
        counted_s = sum(one.step_s[: one.starts[0][0]]) + one.evaluated_before_s
        result.lost_s = result.resumed_s - result.startup_s - counted_s
    return result


def _columns(spec: RunSpec, result: TrainResult, parts: Sequence[ProgramPart], curve: ProgramCurves) -> dict[str, Any]:
    """Return the columns of the run record that are otherwise than of a training of ours."""
    told = {name for part in parts for phases in part.recording.phases_s for name in phases}
    steps = len(curve.rank_losses)
    samples = [part.recording.samples[:steps] for part in parts if part.recording.steps]
    seen = steps * spec.global_batch_size
    if all(one is not None for rank in samples for one in rank):  # silent ranks take as many as the others
        seen = round(sum(int(one or 0) for rank in samples for one in rank) * len(parts) / len(samples))
    train_s = float(curve.t_s[-1])
    row = dict.fromkeys(PHASES) | {"forward_backward_s": None, "exchange_busy_s": None}
    if told:
        medians = np.nanmedian(np.nanmean(curve.phases_s, axis=1), axis=0)
        row |= {COLUMNS[name]: float(medians[PHASES.index(_PLACES[name])]) for name in told}
        row["rest_s"] = float(medians[PHASES.index("rest_s")])
    evaluated = bool(result.metric_name)
    return row | {
        "samples_seen": seen,
        "samples_per_s": seen / train_s if train_s else None,
        "parameters": None,
        "import_s": None,
        "warm_up_s": None,
        "checkpoint_s": None,
        "test_metric": result.evaluations[-1][1] if evaluated and not result.diverged else None,
        "test_metric_name": result.metric_name or None,
        "peak_memory_bytes": None if result.device == "cuda" else max(part.peak_memory_bytes for part in parts),
    }


def _pieces(curve: ProgramCurves, recordings: Sequence[Recording]) -> Iterator[dict[str, Any]]:
    """Yield the columns of the steps record; phases that no rank has told are left out."""
    told = {name for one in recordings for phases in one.phases_s for name in phases}
    for piece in step_pieces(curve):
        compute_s = piece["forward_s"]
        kept = {name: values for name, values in piece.items() if name not in PHASES}
        if told:
            kept["rest_s"] = piece["rest_s"]
        for name in told:
            kept[COLUMNS[name]] = compute_s if name == "compute" else piece[COLUMNS[name]]
        yield kept


def _reasons(row: Mapping[str, Any], recordings: Sequence[Recording]) -> dict[str, str]:
    """Return why columns are null that no meter fills."""
    of_program = ("parameters", "import_s", "warm_up_s", "checkpoint_s", "core_wait_share", "chance_metric")
    reasons = dict.fromkeys((*of_program, "compile_s"), "only the program knows")
    reasons |= {name: NOT_RECORDED for name in (*PHASES, "forward_backward_s", "test_metric") if row[name] is None}
    reasons |= dict.fromkeys(("h2d_s", "forward_s", "backward_s"), "a program records compute as a whole")
    reasons["own_metrics"] = "what a program records is its test metric"
    reasons |= dict.fromkeys(("wait_s", "move_s"), "not all ranks of one host recorded their exchange")
    reasons |= dict.fromkeys(("exchange_busy_s", "model", "dataset"), "only the program knows")
    if row["device_used"] == "cuda":
        reasons["peak_memory_bytes"] = "only the program's allocator knows what it held on the GPU"
    if not any(loss is not None for one in recordings for loss in one.loss):
        reasons |= dict.fromkeys(("first_loss", "min_loss", "final_loss", "loss_area_loss_s"), NOT_RECORDED)
    if row["status"] != "ok":
        reasons |= dict.fromkeys(("loss_area_loss_s", "test_metric"), f"the run is {row['status']}")
    return {name: why for name, why in reasons.items() if row.get(name) is None or row[name] != row[name]}
