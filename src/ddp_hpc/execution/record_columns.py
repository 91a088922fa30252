"""The columns of a run's records, from what its ranks measured."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.rank_series import EXCHANGE, Floats, RankCurves, RankPart, reason_of
from ddp_hpc.profiling import contention
from ddp_hpc.profiling.phase_names import PARTS, PHASES
from ddp_hpc.runs.schema import EVALUATIONS
from ddp_hpc.training.lr_schedule import scaled_learning_rate
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult, since_launch_s

EXCHANGE_METRICS = ("staleness", "staleness_max")  # columns of the run record that an exchange may fill
NORMS = ("part_gradient_norm2", "gradient_norm2")  # in the order of a TrainResult's
PIECE_ROWS = 2**20  # of the steps record, that are in memory at a time: a row group
OF_RESULT = ("parameters", "compile_s", "warm_up_s", "evaluation_s", "checkpoint_s", "resumes", "lost_s")


GradientNorms = Sequence[tuple[int, float, float]]  # of sampled steps, as a TrainResult has them


def step_pieces(curve: RankCurves, gradient_norms: GradientNorms = ()) -> Iterator[dict[str, Any]]:
    """Yield the columns of the steps record, so many steps at a time that memory does not grow with the run."""
    steps, ranks = curve.rank_losses.shape
    at_once = max(1, PIECE_ROWS // ranks)
    for first in range(0, steps, at_once):
        yield step_columns(curve, slice(first, first + at_once), gradient_norms)


def step_columns(curve: RankCurves, chosen: slice = slice(None), gradient_norms: GradientNorms = ()) -> dict[str, Any]:
    """Return the columns of the steps record, or of the chosen steps: a row per step and rank."""
    steps, ranks = curve.rank_losses.shape
    number = np.arange(1 - curve.warm_up, steps - curve.warm_up + 1)
    before = np.full(curve.warm_up, np.nan)
    phases_s, parts_s, wait_s = curve.phases_s[chosen], curve.parts_s[chosen], curve.wait_s[chosen]
    by_step = {
        "step": number,
        "t_s": np.concatenate([before, curve.t_s]),
        "loss": np.concatenate([before, curve.losses]),
        "warm_up": number < 1,
        "sampled": curve.told_apart & curve.fused.any(),
    }
    if gradient_norms:
        by_step |= _norms(gradient_norms, number)
    by_rank = {
        "rank_loss": curve.rank_losses[chosen],
        "rank_t_s": curve.rank_t_s_with_warm_up[chosen],
        "step_s": curve.step_s[chosen],
        **{phase: phases_s[:, :, column] for column, phase in enumerate(PHASES)},
        "wait_s": wait_s,
        "move_s": phases_s[:, :, EXCHANGE] - wait_s,
        "exchange_busy_s": curve.busy_s[chosen],
        **({part: parts_s[:, :, column] for column, part in enumerate(PARTS)} if curve.parts_s.any() else {}),
    }
    for name in by_rank.keys() - {"rank_loss", "rank_t_s", "step_s"}:
        by_rank[name] = np.where(curve.fused[chosen, None], np.nan, by_rank[name])
    return (
        {name: np.repeat(values[chosen], ranks) for name, values in by_step.items()}
        | {"rank": np.tile(np.arange(ranks), len(phases_s))}
        | {name: values.ravel() for name, values in by_rank.items()}
    )


def _norms(gradient_norms: GradientNorms, number: "np.ndarray[Any, Any]") -> dict[str, Floats]:
    """Return the squared norms of gradients of steps of these numbers, NaN where none was sampled."""
    found = {name: np.full(len(number), np.nan) for name in NORMS}
    for step, *norms in gradient_norms:
        for name, value in zip(NORMS, norms, strict=True):
            found[name][number == step] = value
    return found


def evaluation_columns(spec: RunSpec, result: TrainResult, curve: RankCurves) -> dict[str, Any]:
    """Return the columns of the evaluations record, those after the first broken step left out."""
    t_s = curve.t_s
    rows = [  # in the order of the columns
        (step, t_s[step - 1], step * spec.global_batch_size, metric, loss, _json(_finite(own)))
        for (step, metric, loss), own in zip(result.evaluations, result.own_metrics, strict=True)
        if step <= len(t_s)
    ]
    return {name: [row[at] for row in rows] for at, name in enumerate(EVALUATIONS.names)}


def run_columns(
    launch: dict[str, Any], spec: RunSpec, result: TrainResult, parts: Sequence[RankPart], curve: RankCurves
) -> dict[str, Any]:
    """Return the one row of the run record."""
    place = parts[0].placement
    return {
        **{name: launch[name] for name in ("run", "spec_hash", "code_hash")},
        **spec.columns(),
        "status": "diverged" if result.diverged else "beaten" if result.beaten else "ok",
        "reason": reason_of(curve) if result.diverged else result.beaten,
        "learning_rate_scaled": scaled_learning_rate(spec),
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **_trained(spec, result, parts, curve),
        # the seconds around the steps, and the resumes that some of them go to
        "wall_s": result.passed_s(launch, result.ended_ns),
        "startup_s": since_launch_s(launch, result.time_zero_ns) if result.startup_s is None else result.startup_s,
        "import_s": max(part.startup["import_s"] for part in parts),
        **{name: getattr(result, name) for name in OF_RESULT},
        **_phases(curve),
        **exchange_metrics(parts),
        # what the ranks ran on, and how much of it was theirs
        "peak_memory_bytes": max(part.peak_memory_bytes for part in parts),
        "device_used": result.device,
        "threads_used": place.threads,
        "cores": place.cores,
        "hosts": place.hosts,
        "core_wait_share": contention.wait_share(part.crowding for part in parts),
        "others_core_share": contention.others_share(
            (part.placement.host, part.placement.core_set, part.crowding) for part in parts
        ),
        "throttled_by_quota_share": contention.throttled_share(part.crowding for part in parts),
        "other_trainings": max(part.beside for part in parts),
        "oversubscribed": place.oversubscribed,
        "placement_verified": place.verified,
    }


def _trained(spec: RunSpec, result: TrainResult, parts: Sequence[RankPart], curve: RankCurves) -> dict[str, Any]:
    """Return how much was trained, how fast, and what became of the loss and of the test set's metric."""
    losses, t_s = curve.losses, curve.t_s
    steps, finite = len(losses), losses[np.isfinite(losses)]
    synchronous = catalog.constants("exchange", spec.exchange.name)["SYNCHRONOUS"]
    samples_seen = steps * spec.global_batch_size
    if not synchronous and not result.diverged:  # a budget in seconds: the ranks took different numbers of steps
        samples_seen = spec.batch_size * sum(len(part.losses) - WARM_UP_STEPS for part in parts)
    return {
        "samples_asked": spec.samples_asked,
        "samples_seen": samples_seen,
        "steps": steps,
        "warm_up_steps": curve.warm_up,
        "train_s": float(t_s[-1]),
        "samples_per_s": samples_seen / float(t_s[-1]),
        "step_s": np.median(np.diff(t_s, prepend=0)) if synchronous else None,
        "first_loss": losses[0],
        "min_loss": finite.min() if len(finite) else None,
        "final_loss": losses[-1],
        "loss_area_loss_s": None if result.diverged else loss_area(losses, t_s, spec.budget.seconds),
        "test_metric": None if result.diverged or result.beaten else result.evaluations[-1][1],
        "test_metric_name": result.metric_name,
        "chance_metric": result.chance_metric,
        "own_metrics": None if result.diverged or result.beaten else _ending_metrics(spec, result),
    }


def _ending_metrics(spec: RunSpec, result: TrainResult) -> str | None:
    """Return the metrics of one's own at the end, each with which is better, as the text of a column.

    A program has none: what it records is its test metric.
    """
    if spec.program:
        return None
    better = catalog.metrics_of(spec.model.name, spec.dataset.name)
    values = _finite(result.own_metrics[-1])
    return _json({name: {"value": values[name], "better": better[name]} for name in values})


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


def _json(values: Mapping[str, Any]) -> str | None:
    return json.dumps(values) if values else None


def loss_area(losses: Floats, t_s: Floats, until_s: float | None = None) -> float | None:
    """Return the area under a loss curve in loss x seconds, by trapezoids, from the start of the training.

    The first loss is that of the initial model, so it holds from the start to the end of the first step: without that
    large batches, of few long steps, would have a smaller area for it. None of one step: a single point is no curve.

    Args:
        losses, t_s: of each step its loss and its end in seconds.
        until_s: where the area ends: a training for a given time ends some steps after it.
    """
    if len(losses) < 2:
        return None
    curve_s, curve = np.concatenate([[0.0], t_s]), np.concatenate([losses[:1], losses])
    if until_s is not None and until_s < curve_s[-1]:
        within = curve_s < until_s
        curve = np.append(curve[within], np.interp(until_s, curve_s, curve))
        curve_s = np.append(curve_s[within], until_s)
    return float(np.trapezoid(curve, curve_s))


def _phases(curve: RankCurves) -> dict[str, Any]:
    """Return the median step by phase: of means over the ranks; by part of the exchange: of rank 0."""
    steps = curve.told_apart
    if not steps.any():
        return dict.fromkeys((*PHASES, "wait_s", "move_s", "exchange_busy_s"), math.nan)
    phases_s, wait_s = curve.phases_s[steps], curve.wait_s[steps]
    row = {
        **dict(zip(PHASES, np.median(phases_s.mean(axis=1), axis=0), strict=True)),
        "wait_s": float(np.median(wait_s.mean(axis=1))),
        "move_s": float(np.median((phases_s[:, :, EXCHANGE] - wait_s).mean(axis=1))),
        "exchange_busy_s": np.median(curve.busy_s[steps].mean(axis=1)),
    }
    if curve.parts_s.any():
        row |= dict(zip(PARTS, np.median(curve.parts_s[steps, 0], axis=0), strict=True))
    return row


def exchange_metrics(parts: Sequence[RankPart]) -> dict[str, float | None]:
    """Return the metrics of the ranks' exchanges: the mean over the ranks; of a maximum, the largest."""
    row: dict[str, float | None] = dict.fromkeys(EXCHANGE_METRICS)
    for name in row:
        values = [value for part in parts if (value := part.metrics.get(name)) is not None]
        if values:
            row[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return row
