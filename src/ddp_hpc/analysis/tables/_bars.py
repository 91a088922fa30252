"""The bars of an efficiency waterfall, and what each says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.tables._steps import rank_steps, why_null
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

BARS = ("wrapper", "data", "computation", "clock drop", "moving", "waiting", "update", "rest")
MEANINGS = {
    "wrapper": "what the exchange costs on one rank, where there is nobody to exchange with",
    "data": "choosing the batch and bringing it to the device",
    "computation": "forward and backward pass, beside ranks that share memory, caches and power, or on a smaller batch",
    "clock drop": "forward and backward pass on GPUs that run at lower clocks",
    "moving": "gradients on their way while nothing is computed",
    "waiting": "until the slowest rank has arrived",
    "update": "the optimiser's step",
    "rest": "what no phase covers, and what the slowest rank's clock adds",
}
NO_CLOCKS = "no GPU clocks were recorded"


@dataclass(frozen=True)
class Split:
    """The mean step of a run: `step_s`, its parts, and the reasons for those that are not known."""

    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    wait_s: float | None
    update_s: float
    clock_mhz: float | None
    why_no_wait: str = ""

    @property
    def move_s(self) -> float:
        """Exposed exchange without waiting, as far as that is known."""
        return self.exposed_s - (self.wait_s or 0.0)


def split_of(study_runs: StudyRuns, run: Mapping[str, Any]) -> Split | None:
    """Return the mean step of a run, as the rank sees it that waits most; None if no step has phases.

    What that rank does before it waits is nobody else's fault, so that all that a straggler costs is waiting. Where
    waiting is not known it is the mean over the ranks. The step is the training time over the steps, to the end of
    the slowest rank, and so a little more than the parts.
    """
    steps = rank_steps(study_runs, run["run"], ("wait_s", "forward_backward_s", *PHASES))
    if not np.isfinite(steps["exchange_exposed_s"]).any():
        return None
    wait = steps["wait_s"]
    waits = bool(np.isfinite(wait).any())
    view = slice(rank := int(np.nanmean(wait, axis=0).argmax()), rank + 1) if waits else slice(None)

    def mean(*names: str) -> float:
        return float(sum(np.nanmean(steps[name][:, view]) for name in names if np.isfinite(steps[name]).any()))

    clock = run.get("sm_clock_mean_mhz")
    return Split(
        step_s=run["train_s"] / run["steps"],
        data_s=mean("data_s", "h2d_s"),
        compute_s=mean("forward_s", "backward_s", "forward_backward_s"),
        exposed_s=mean("exchange_exposed_s"),
        wait_s=mean("wait_s") if waits else None,
        update_s=mean("update_s"),
        clock_mhz=None if clock is None or pd.isna(clock) else float(clock),
        why_no_wait="" if waits else why_null(study_runs, run["run"], "wait_s"),
    )


def bars_of(first: Split, alone: Split | None, last: Split, share: float) -> dict[str, float | None]:
    """Return by how much each bar makes a step longer than it should be, in seconds; they sum to all of it.

    Args:
        first: a step at the smaller world size.
        alone: of one rank with the exchange of `last`, where `first` has none.
        last: a step at the larger world size.
        share: what of the work of `first` a rank of `last` has: 1, or less where the global batch is fixed.
    """
    before = alone or first
    waits = last.wait_s is not None and before.wait_s is not None
    longer_s = last.compute_s - share * before.compute_s
    drop_s = None
    if last.clock_mhz and before.clock_mhz:
        drop_s = last.compute_s * (1 - last.clock_mhz / before.clock_mhz)
    bars: dict[str, float | None] = {
        "wrapper": share * (alone.step_s - first.step_s) if alone else None,
        "data": last.data_s - share * before.data_s,
        "computation": longer_s - (drop_s or 0.0),
        "clock drop": drop_s,
        "moving": last.move_s - share * before.move_s if waits else last.exposed_s - share * before.exposed_s,
        "waiting": (last.wait_s or 0.0) - share * (before.wait_s or 0.0) if waits else None,
        "update": last.update_s - share * before.update_s,
    }
    known = sum(seconds for seconds in bars.values() if seconds is not None)
    return bars | {"rest": last.step_s - share * first.step_s - known}


def sentence(bar: str, seconds: float | None, step_s: float, reason: str) -> str:
    """Return what a bar says: `waiting: 18 % of a step (0.21 ms): until the slowest rank has arrived.`"""
    if seconds is None:
        return f"{bar}: not known: {reason}."
    percent = 100 * seconds / step_s
    if abs(percent) < 0.1:
        return f"{bar}: less than 0.1 % of a step."
    before = "without the exchange" if bar == "wrapper" else "at the smaller world size"
    gain = f" less than {before}" if seconds < 0 else ""
    return f"{bar}: {abs(percent):.2g} % of a step ({_time(abs(seconds))}){gain}: {MEANINGS[bar]}."


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
