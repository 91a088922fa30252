"""The result of a training on one rank, also across checkpoints."""

import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.profiling import contention
from ddp_hpc.profiling.timers import Clock, Timings
from ddp_hpc.system.process import boot_id
from ddp_hpc.training.cuda_graphs import Mode
from ddp_hpc.training.torch_compile import Compiled

WARM_UP_STEPS = 3


@dataclass(frozen=True)
class History:
    """Losses and timings of one rank's steps, those of the warmup first."""

    losses: NDArray[np.float64]  # of this rank's batches
    timings: Timings


@dataclass
class TrainResult:
    """What a training leaves on one rank. It is filled as it goes, so that a failed training leaves its part too.

    A training that goes on from a checkpoint takes over what that holds. Times of steps are sums of what the clock saw
    within steps, so they go on where the checkpoint left them: nothing that lies between is in them, nor in anything
    that is computed from them, such as the loss area. It is in `lost_s`.
    """

    losses: "array[float]" = field(default_factory=lambda: array("d"))  # of this process, the warmup's first
    clock: Clock | None = None  # of this process
    before: History | None = None  # of the processes before, as far as the checkpoint goes
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, metric, loss
    own_metrics: list[dict[str, float]] = field(default_factory=list)  # of each evaluation, those of one's own files
    # of each sampled step the squared norm of the gradient of a part of the batch, mean over the parts, and of it all
    gradient_norms: list[tuple[int, float, float]] = field(default_factory=list)
    metric_name: str = ""
    chance_metric: float | None = None  # of a model that gives all samples the same
    diverged: bool = False
    beaten: str | None = None  # by which run; None: it may win
    interrupted: bool = False  # somebody asked to end: neither complete nor diverged
    saved: bool = False  # and there is a checkpoint of the last step
    parameters: int = 0
    train_samples: int = 0  # of the dataset: an epoch
    example: Tensor | None = None  # the inputs of one sample, where the dataset lies
    device: str = ""
    compiled: Compiled = "off"
    compile_s: float | None = None  # None: nothing was compiled
    captured: Mode = "off"
    warm_up_s: float = 0.0
    startup_s: float | None = None  # from the first launch to time zero; None: this is the first
    time_zero_ns: int = 0  # when this process began or went on, on the host's monotonic clock, which nobody sets back
    ended_ns: int = 0  # on the same; evaluation at the end comes later
    cores_before: contention.CpuTimes | None = None  # when this process began or went on
    crowding: contention.Contention | None = None  # since then, pauses included
    trained_s: float = 0.0  # since time zero, as of the last step at which ranks agreed
    evaluation_s: float = 0.0
    traced_s: float = 0.0  # spent on tracing
    looked_s: float = 0.0  # spent on looks at other runs
    checkpoint_s: float = 0.0
    resumes: int = 0  # how often training went on from a checkpoint
    left_s: float = 0.0  # from the first launch to the state that this process goes on from
    left_at: float = 0.0  # when that was, by the clock of this host: another may go on
    lost_s: float = 0.0  # from there to where training went on, summed over all resumes
    resumed_s: float = 0.0  # from the first launch to where this process went on
    _began_s: float = 0.0  # when this process would have begun without any pause, on the clock of `time.perf_counter`
    metrics: dict[str, float | None] = field(default_factory=dict)  # of the exchange

    @property
    def steps(self) -> int:
        """Counted steps whose loss has been read."""
        return max(0, len(self.history_of_losses()) - WARM_UP_STEPS)

    @property
    def paused_s(self) -> float:
        """The seconds that were spent on other things than steps since time zero."""
        return self.evaluation_s + self.traced_s + self.looked_s + self.checkpoint_s

    def begin(self) -> None:
        """Note that training begins, or resumes, now."""
        self.cores_before = contention.read()
        resumed_at = time.time()  # before time zero: nothing is counted twice
        self.time_zero_ns = time.perf_counter_ns()
        if self.resumes:
            lost_s = max(0.0, resumed_at - self.left_at)
            self.lost_s, self.resumed_s = self.lost_s + lost_s, self.left_s + lost_s
        self._began_s = time.perf_counter() - self.trained_s - self.paused_s

    def end(self) -> None:
        """Note that the last step has been taken."""
        self.ended_ns = time.perf_counter_ns()
        if self.cores_before is not None:
            wall_s = (self.ended_ns - self.time_zero_ns) / 1e9
            self.crowding = contention.between(self.cores_before, contention.read(), wall_s)

    def since_start(self) -> float:
        """Return the seconds spent in steps since time zero."""
        return time.perf_counter() - self._began_s - self.paused_s

    def passed_s(self, launch: Mapping[str, Any], at_ns: int) -> float:
        """Return the seconds from the first launch to a reading of this host's monotonic clock in this process.

        It is one after this process has begun; `launch` is what `launch.json` says of this attempt.
        """
        if self.resumes:
            return self.resumed_s + (at_ns - self.time_zero_ns) / 1e9
        return since_launch_s(launch, at_ns)

    def history_of_losses(self) -> NDArray[np.float64]:
        """Return the losses of all steps that have been read."""
        own = np.array(self.losses)
        return np.concatenate([self.before.losses, own[WARM_UP_STEPS:]]) if self.before else own

    def history(self) -> History:
        """Return all steps as if they had been taken in one go: the warmup is that of the first process."""
        assert self.clock is not None, "the trainer makes the clock"
        timings = self.clock.timings()
        return History(self.history_of_losses(), _joined(self.before.timings, timings) if self.before else timings)


def _joined(before: Timings, after: Timings) -> Timings:
    """Return the steps of two processes in a row, without the warmup of the second."""
    by_step = {
        part.name: np.concatenate([getattr(before, part.name), getattr(after, part.name)[WARM_UP_STEPS:]])
        for part in fields(Timings)
        if part.name != "starts"
    }
    starts = after.starts[after.starts[:, 0] >= WARM_UP_STEPS] + [len(before.fused) - WARM_UP_STEPS, 0]
    return Timings(**by_step, starts=np.concatenate([before.starts, starts]))


def since_launch_s(launch: Mapping[str, Any], at_ns: int) -> float:
    """Return the seconds from the launch to a reading of this host's monotonic clock.

    Where the launcher reads another host's, what both hosts take for the time of day has to do.
    """
    if launch["launched_on"] == boot_id():
        return float(at_ns - launch["launched_ns"]) / 1e9
    return float(time.time() - launch["launched_at"] - (time.perf_counter_ns() - at_ns) / 1e9)
