"""Time series of all ranks side by side: their steps, phases and losses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.execution.node_meter import Metered
from ddp_hpc.profiling.contention import Contention
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.profiling.timers import Timings
from ddp_hpc.training.placement import Placement
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult
from ddp_hpc.training.sampler import weighted_mean

Floats = NDArray[np.float64]
EXCHANGE = PHASES.index("exchange_exposed_s")


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """What one rank measured; its steps start with the warmup."""

    losses: Floats  # by step
    timings: Timings  # arrivals are on the host's monotonic clock, or on rank 0's
    placement: Placement
    peak_memory_bytes: int
    startup: dict[str, float]  # seconds by part
    facts: dict[str, Any]
    metrics: dict[str, float | None]  # of the exchange
    warnings: tuple[str, ...] = ()  # of Python
    metered: Metered = field(default_factory=Metered)
    beside: int = 0  # other trainings on this node, at most
    crowding: Contention | None = None  # from time zero to the last step
    clock_error_s: float | None = None  # of arrivals on rank 0's clock; None: they are on the host's

    @property
    def common_clock(self) -> bool:
        """Whether arrivals can be compared with those of the other ranks."""
        return self.placement.on_one_host or self.clock_error_s is not None


@dataclass(frozen=True, kw_only=True)
class RankCurves:
    """All ranks' steps; arrays are steps x ranks, the warmup first."""

    rank_losses: Floats
    phases_s: Floats  # steps x ranks x phases
    parts_s: Floats  # steps x ranks x parts
    wait_s: Floats  # NaN where it cannot be known
    busy_s: Floats  # of the exchange, with what overlaps the backward pass; NaN where that cannot be known
    fused: NDArray[np.bool_]  # by step: its phases were not told apart on some rank
    warm_up: int = WARM_UP_STEPS  # the first of them

    @property
    def counted(self) -> slice:
        """The steps after the warmup."""
        return slice(self.warm_up, None)

    @property
    def told_apart(self) -> NDArray[np.bool_]:
        """Which steps are counted, and have phases."""
        return ~self.fused & (np.arange(len(self.fused)) >= self.warm_up)

    @cached_property
    def step_s(self) -> Floats:
        """Each rank's steps: the sum of their phases."""
        return np.asarray(self.phases_s.sum(axis=2))

    @cached_property
    def rank_t_s_with_warm_up(self) -> Floats:
        """Time zero to each rank's end of each step; NaN in the warmup."""
        times = np.full(self.step_s.shape, np.nan)
        np.cumsum(self.step_s[self.counted], axis=0, out=times[self.counted])
        return times

    @property
    def rank_t_s(self) -> Floats:
        """Time zero to each rank's end of each counted step."""
        return self.rank_t_s_with_warm_up[self.counted]

    @cached_property
    def t_s(self) -> Floats:
        """Time zero to the slowest rank's end of each counted step."""
        return np.asarray(self.rank_t_s.max(axis=1))

    @cached_property
    def losses(self) -> Floats:
        """Mean over the samples of all ranks, by counted step; every rank's batch has the same size."""
        return weighted_mean(self.rank_losses[self.counted].T, np.ones(self.rank_losses.shape[1]))


def curves(parts: Sequence[RankPart], synchronous: bool = True, overlaps: bool = False) -> RankCurves:
    """Return the ranks' steps side by side, up to the first one (included) in which some loss is not finite.

    Asynchronous ranks may have taken different numbers of steps: the curves end with the shortest, and waiting is not
    known, for nobody waits for the same step. Nor is it where the exchange is part of a graph: no host sees it begin.
    How long an exchange that overlaps is busy is known only if it says so itself, which a baseline does not.
    """
    shortest = min(len(part.losses) for part in parts)
    losses = np.stack([part.losses[:shortest] for part in parts], axis=1)
    broken = np.flatnonzero(~np.isfinite(losses[WARM_UP_STEPS:]).all(axis=1))
    last = WARM_UP_STEPS + int(broken[0]) + 1 if len(broken) else len(losses)
    phases_s, parts_s, overlapped_s, arrived_ns, fused = (
        np.stack([getattr(part.timings, name)[:last] for part in parts], axis=1)
        for name in ("phases_s", "parts_s", "overlapped_s", "arrived_ns", "fused")
    )
    fused = np.asarray(fused.any(axis=1))
    if parts[0].common_clock and synchronous and not (fused.any() and len(parts) > 1):
        wait_s = (arrived_ns.max(axis=1, keepdims=True) - arrived_ns) / 1e9
        wait_s = np.clip(wait_s, 0, phases_s[:, :, EXCHANGE])
        if len(parts) > 1:
            wait_s[(arrived_ns < 0).any(axis=1)] = np.nan
    else:
        wait_s = np.full(arrived_ns.shape, np.nan)
    busy_s = phases_s[:, :, EXCHANGE] + overlapped_s
    if overlaps and len(parts) > 1 and not overlapped_s.any():
        busy_s = np.full(busy_s.shape, np.nan)
    return RankCurves(
        rank_losses=losses[:last], phases_s=phases_s, parts_s=parts_s, wait_s=wait_s, busy_s=busy_s, fused=fused
    )


def finite_curve(result: TrainResult) -> tuple[list[float], list[float]]:
    """Return times (s since time zero) and losses of this rank's steps, as far as both are known and finite."""
    history = result.history()
    losses = history.losses[WARM_UP_STEPS:]
    t_s = np.cumsum(history.timings.phases_s[WARM_UP_STEPS:].sum(axis=1))
    known = min(len(losses), len(t_s))
    broken = np.flatnonzero(~np.isfinite(losses[:known]))
    end = int(broken[0]) if len(broken) else known
    return t_s[:end].tolist(), losses[:end].tolist()


def reason_of(curve: RankCurves) -> str:
    """Return where a diverged run broke, e.g. `loss is nan at step 37 (rank 1)`."""
    broken = np.flatnonzero(~np.isfinite(curve.rank_losses[-1]))
    if not len(broken):
        return f"weights are not finite after step {len(curve.losses)}, the last"
    rank = int(broken[0])
    return f"loss is {curve.rank_losses[-1, rank]} at step {len(curve.losses)} (rank {rank})"
