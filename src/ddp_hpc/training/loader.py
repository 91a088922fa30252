"""This rank's batches, on its device when a step needs them: from a dataset that lies there, or from host memory."""

from collections.abc import Callable

import torch
from torch import Tensor

from ddp_hpc.data._tasks import Samples
from ddp_hpc.exchange._pinned import Pinned
from ddp_hpc.profiling.timers import Timers

Numbers = Callable[[int], Tensor]  # of the step, counted from 0: the numbers of this rank's samples, int64


class Resident:
    """Batches gathered on the device where samples and numbers lie, and on a CPU, where all memory is the device's."""

    def __init__(self, samples: Samples, numbers: Numbers, timers: Timers) -> None:
        self._samples, self._numbers, self._timers = samples, numbers, timers
        self._chosen, self._fixed = numbers(0), False

    def load(self, step: int) -> None:
        """Let `batch` be the one of this step, counted from 0.

        Raises:
            ValueError: the place of batches is fixed, and this one has another size.
        """
        chosen = self._numbers(step)
        if self._fixed:
            _check_shape(step, chosen, self._chosen)
            self._chosen.copy_(chosen)
        else:
            self._chosen = chosen

    def batch(self) -> Samples:
        """Gather the samples of the step; they are valid until the next `load`."""
        inputs, targets = (part.index_select(0, self._chosen) for part in (self._samples.inputs, self._samples.targets))
        self._timers.mark("data_s")
        return Samples(inputs, targets)

    def prefetch(self, step: int) -> None:
        """Begin to load the batch of a step to come, while the device works on what is queued: nothing here."""

    def fix(self) -> None:
        """Let batches be gathered from one place from now on, for graphs that were captured to read there."""
        self._chosen, self._fixed = self._chosen.clone(), True


class _Slot:
    """One batch on its way: where it is gathered and copied to, and what has to be waited for."""

    def __init__(self, samples: Samples, batch_size: int, device: torch.device) -> None:
        self.inputs, self.targets = (
            Pinned(torch.empty((batch_size, *part.shape[1:]), dtype=part.dtype, device=device))
            for part in (samples.inputs, samples.targets)
        )
        self.batch = Samples(self.inputs.tensor, self.targets.tensor)
        self.copied, self.used = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.step = -1


class Staged:
    """Batches gathered in host memory and copied to a GPU beside the step before.

    Two buffers take turns. The dataset itself is not pinned: only the copy needs that, and pinned memory is scarce.
    `h2d_s` is what a step waits for its copy; the copy itself is longer, and hidden.

    Args:
        samples: in host memory.
        numbers: in host memory.
        batch_size: samples per step.
        device: a GPU.
        timers: is told of `h2d_s` and `data_s`.
    """

    def __init__(
        self, samples: Samples, numbers: Numbers, batch_size: int, device: torch.device, timers: Timers
    ) -> None:
        self._samples, self._numbers, self._timers, self._device = samples, numbers, timers, device
        self._slots = [_Slot(samples, batch_size, device) for _ in range(2)]
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._now = self._slots[0]
        self._fixed: Samples | None = None

    def load(self, step: int) -> None:
        """Let the device wait until the batch of this step is there."""
        self._now = self._slots[step % 2]
        if self._now.step != step:  # nobody has asked for it before: the first step
            self._fill(step)
        torch.cuda.current_stream(self._device).wait_event(self._now.copied)
        if self._fixed:
            self._fixed.inputs.copy_(self._now.batch.inputs)
            self._fixed.targets.copy_(self._now.batch.targets)
        self._timers.mark("h2d_s")

    def batch(self) -> Samples:
        """Return the batch that was loaded."""
        self._timers.mark("data_s")
        return self._fixed or self._now.batch

    def prefetch(self, step: int) -> None:
        """Gather the batch of the step after this one and queue its copy; call it when this step has been queued."""
        self._now.used.record()
        self._fill(step)

    def fix(self) -> None:
        """Let batches be copied once more, to one place on the device."""
        self._fixed = Samples(self._now.batch.inputs.clone(), self._now.batch.targets.clone())

    def _fill(self, step: int) -> None:
        slot, chosen = self._slots[step % 2], self._numbers(step)
        _check_shape(step, chosen, slot.targets.host)
        slot.copied.synchronize()  # the copy before this one has read the pinned memory
        torch.index_select(self._samples.inputs, 0, chosen, out=slot.inputs.host)
        torch.index_select(self._samples.targets, 0, chosen, out=slot.targets.host)
        self._copying.wait_event(slot.used)  # the step that had this buffer is through
        with torch.cuda.stream(self._copying):
            slot.inputs.push()
            slot.targets.push()
            slot.copied.record()
        slot.step = step


Batches = Resident | Staged


def _check_shape(step: int, chosen: Tensor, room: Tensor) -> None:
    if len(chosen) != len(room):
        raise ValueError(
            f"the batch of step {step + 1} has {len(chosen)} samples, there is room for {len(room)}: graphs that were "
            "captured, and buffers that are pinned, take batches of one size"
        )
