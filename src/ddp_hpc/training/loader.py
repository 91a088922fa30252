"""This rank's batches, on its device when a step needs them: from a dataset that lies there, or from host memory."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from ddp_hpc.data._tasks import Samples
from ddp_hpc.exchange._pinned import Pinned
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.training.sampler import RankSamples

ROWS = 64  # steps whose sample numbers lie on the device

Numbers = Callable[[int], Tensor]  # of the step, counted from 0: the numbers of this rank's samples, int64


class Resident:
    """Batches gathered on the device where samples and numbers lie, and on a CPU, where all memory is the device's.

    For captured steps the numbers of `ROWS` steps are there at once, and so is the number of the step among them: each
    takes its row and moves on by itself, and the host has next to nothing to do between two of them.
    """

    def __init__(self, samples: Samples, numbers: Numbers, timers: Timers) -> None:
        self._samples, self._numbers, self._timers = samples, numbers, timers
        self._chosen = numbers(0)
        self._table: Tensor | None = None  # a row per step
        self._first = self._next = -1  # the steps of its first row, and of the row that is next
        self.counters: list[Tensor] = []  # to be increased by 1 in each captured step

    def load(self, step: int) -> None:
        """Let `batch` be the one of this step, counted from 0.

        Raises:
            ValueError: the place of batches is fixed, and this one has another size.
        """
        if self._table is None:
            self._chosen = self._numbers(step)
            return
        if step != self._next or step == self._first + ROWS:
            if not self._first <= step < self._first + ROWS or self._first < 0:
                rows = self._rows(step)
                _check_shape(step, rows[0], self._table[0])
                self._table.copy_(rows)
                self._first = step
            self.counters[0].fill_(step - self._first)
        self._next = step + 1

    def _rows(self, step: int) -> Tensor:
        if isinstance(self._numbers, RankSamples):
            return self._numbers.rows(step, ROWS)
        return torch.stack([self._numbers(number) for number in range(step, step + ROWS)])

    def batch(self) -> Samples:
        """Gather the samples of the step; they are valid until the next `load`."""
        chosen = self._chosen
        if self._table is not None:
            chosen = self._table.index_select(0, self.counters[0]).view(-1)
        inputs, targets = (part.index_select(0, chosen) for part in (self._samples.inputs, self._samples.targets))
        self._timers.mark("data_s")
        return Samples(inputs, targets)

    def prefetch(self, step: int) -> None:
        """Begin to load the batch of a step to come, while the device works on what is queued: nothing here."""

    def fix(self) -> None:
        """Let graphs that are captured from now on find the batches by themselves, if the `counters` count."""
        self._table = self._chosen.repeat(ROWS, 1)
        self.counters = [torch.zeros(1, dtype=torch.int64, device=self._chosen.device)]


class Loaded:
    """Batches by torch's DataLoader, as people use it: single samples collated by the host, pinned, and copied.

    It is there to be compared with; in one process, and with the samples of each step that all others take.
    """

    def __init__(self, samples: Samples, numbers: Numbers, device: torch.device, timers: Timers) -> None:
        self._dataset = TensorDataset(samples.inputs, samples.targets)
        self._numbers, self._device, self._timers = numbers, device, timers
        self._next = -1
        self._batches: Iterator[Any] = iter(())
        self._now: Samples | None = None
        self._fixed = False
        self.counters: list[Tensor] = []

    def load(self, step: int) -> None:
        """Let the batch of this step be collated, and copied to the device."""
        if step != self._next:
            numbers = (self._numbers(number).tolist() for number in count(step))
            self._batches = iter(
                DataLoader(self._dataset, batch_sampler=numbers, pin_memory=self._device.type == "cuda")
            )
        self._next = step + 1
        parts = next(self._batches)
        self._timers.mark("data_s")
        loaded = Samples(*(part.to(self._device, non_blocking=True) for part in parts))
        if self._fixed and self._now:
            _check_shape(step, loaded.targets, self._now.targets)
            self._now.inputs.copy_(loaded.inputs)
            self._now.targets.copy_(loaded.targets)
        else:
            self._now = loaded
        self._timers.mark("h2d_s")

    def batch(self) -> Samples:
        """Return the batch that was loaded."""
        assert self._now is not None, "load comes first"
        return self._now

    def prefetch(self, step: int) -> None:
        """Nothing: a DataLoader without processes of its own works when it is asked."""

    def fix(self) -> None:
        """Let batches be copied once more, to one place on the device."""
        assert self._now is not None, "load comes first"
        self._now, self._fixed = Samples(self._now.inputs.clone(), self._now.targets.clone()), True


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
        self.counters: list[Tensor] = []

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


Batches = Resident | Staged | Loaded


def _check_shape(step: int, chosen: Tensor, room: Tensor) -> None:
    if len(chosen) != len(room):
        raise ValueError(
            f"the batch of step {step + 1} has {len(chosen)} samples, there is room for {len(room)}: graphs that were "
            "captured, and buffers that are pinned, take batches of one size"
        )
