"""Samples for the gradient noise scale: norms of gradients of small and large batches, off the clock.

Before a sampled step each rank makes the gradient of the batch that it is about to take, and the ranks average it. The
expected squared norm of a gradient of b samples is |G|^2 + tr(Sigma) / b, so two sizes of batch tell both (McCandlish
et al., An Empirical Model of Large-Batch Training, arXiv:1812.06162, appendix A.1). All is put back, so a run has the
losses of one without samples.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config.spec import RunSpec, noise_parts
from ddp_hpc.data._tasks import Samples
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.training.components import Components
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult
from ddp_hpc.training.snapshot import Snapshot
from ddp_hpc.training.trainer import StepTracer

_PIECE = 1 << 24  # numbers of a message


class NoiseSampler:
    """A tracer of the steps N, 2 N, ... of `noise_scale_every_steps: N`, and of those of another tracer, if any.

    What it finds it adds to the result's `gradient_norms`. All ranks must make one, before the training starts.
    """

    def __init__(self, spec: RunSpec, comm: MPI.Intracomm, result: TrainResult, other: StepTracer | None) -> None:
        assert spec.noise_scale_every_steps is not None
        self._every, self._comm, self._result, self._other = spec.noise_scale_every_steps, comm, result, other
        _, self._samples = noise_parts(spec.world_size, spec.batch_size)
        self._next: int | None = None

    @property
    def first(self) -> int:
        """The next step that is sampled or traced, counted from 1."""
        if self._next is None:
            before = self._result.before
            self._next = self._after(len(before.losses) - WARM_UP_STEPS if before else 0)
        return self._next

    def _after(self, step: int) -> int:
        sampled = (step // self._every + 1) * self._every
        return min(sampled, self._other.first) if self._other and self._other.first > step else sampled

    def trace(self, components: Components, take_step: Callable[[int], Tensor]) -> float:
        """Sample the step, trace it if the other tracer begins here, and return the seconds of all of that so far."""
        step, spent_s = self.first, self._result.traced_s
        if self._other and self._other.first == step:
            spent_s += self._other.trace(components, take_step)
        if step % self._every == 0:
            began = time.perf_counter()
            self._result.gradient_norms.append((step, *self._sample(components, step)))
            self._comm.Barrier()  # the clock starts on all ranks together, as after an evaluation
            spent_s += time.perf_counter() - began
        self._next = self._after(step)
        return spent_s

    def _sample(self, components: Components, step: int) -> tuple[float, float]:
        """Return the squared norm of the gradient of a part, mean over the parts of the batch, and of the whole."""
        replica = components.replica
        before = Snapshot(replica.frozen(), replica.model, components.device)
        with components.timers.redirected(Timers()):
            components.batches.load(step - 1)
            batch = components.batches.batch()
            parts = [gradient(components, part) for part in self._parts(batch)]
        before.restore()
        squares = self._comm.allgather([squared_norm(part) for part in parts])
        whole = sum_over_ranks(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0], self._comm)
        count = len(parts) * self._comm.size
        return float(np.sum(squares)) / count, squared_norm(whole) / count**2

    def _parts(self, batch: Samples) -> list[Samples]:
        """Return this rank's parts of the batch: the whole of its own or, of one rank, two halves, less an odd one."""
        starts = (0,) if self._comm.size > 1 else (0, self._samples)
        return [
            Samples(*(one[start : start + self._samples] for one in (batch.inputs, batch.targets))) for start in starts
        ]


def gradient(components: Components, batch: Samples) -> Tensor:
    """Return the gradient of the mean loss of some samples in host memory, flat; no gradient that is kept changes.

    It goes round what an exchange has wrapped around the model, and calls no hook of a parameter.
    """
    replica = components.replica
    with components.arithmetic():
        loss = components.loss(replica.model(batch.inputs), batch.targets)
    parameters = [span.parameter for span in replica.spans]
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([one.detach().reshape(-1).cpu() for one in found])


def squared_norm(values: Tensor) -> float:
    """Return the sum of squares, added in double precision."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def sum_over_ranks(values: Tensor, comm: MPI.Intracomm) -> Tensor:
    """Overwrite a flat tensor in host memory with the sum over the ranks, and return it."""
    for start in range(0, len(values), _PIECE):
        comm.Allreduce(MPI.IN_PLACE, values[start : start + _PIECE].numpy())
    return values
