"""Gradients and weights as memory that MPI can read: whole, in parts, or in pieces copied while others are sent."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.profiling.timers import Timers

PIECE_BYTES = 1 << 22  # at 20 GB/s 0.2 ms: starting a copy and a message, some 10 us, is little beside it
WHOLE = slice(None)


class HostGradients:
    """Gradients as a numpy array: the tensor's own memory on a CPU, a pinned copy of it for a GPU.

    Staging works with every MPI; handing GPU memory to one that is not CUDA-aware is a segmentation fault.
    `begin`, then for each piece `ready` and `give_back`, then `join`: `in_pieces` does it one piece after another. On a
    CPU all of this is nothing, but for the timers' `arrived`.

    Args:
        gradients: 1-D, contiguous.
        bounds: where pieces end, in the order in which they will be needed; None: in pieces of `PIECE_BYTES` on a GPU
            and as one on a CPU, where there is nothing to overlap.

    Attributes:
        array: all gradients.
        pieces: adjoining views of `array`, or those of `bounds`.
    """

    def __init__(self, gradients: Tensor, bounds: Sequence[slice] | None = None) -> None:
        self._device = gradients if gradients.is_cuda else None
        self._host = torch.empty_like(gradients, device="cpu", pin_memory=True) if gradients.is_cuda else gradients
        self.array: NDArray[Any] = self._host.numpy()
        whole = len(gradients)
        step = max(1, PIECE_BYTES // gradients.element_size() if gradients.is_cuda else whole)
        self._bounds = list(bounds or [slice(start, start + step) for start in range(0, whole, step)])
        self.pieces = [self.array[part] for part in self._bounds]
        if self._device is not None:
            self._down, self._up = (torch.cuda.Stream(gradients.device) for _ in range(2))  # type: ignore[no-untyped-call]
            self._here = [torch.cuda.Event() for _ in self._bounds]  # type: ignore[no-untyped-call]

    def in_pieces(self, timers: Timers) -> Iterator[NDArray[Any]]:
        """Yield each piece, one on a CPU; what it holds when the next is asked for goes back to the device.

        On a GPU the next pieces are copied while this one is sent.
        """
        self.begin(timers)
        for number in range(len(self.pieces)):
            yield self.ready(number)
            self.give_back(number)
        self.join()

    def begin(self, timers: Timers) -> None:
        """Queue the copies to the host, piece by piece; wait until the gradients are complete, and say so."""
        if self._device is None:
            timers.arrived()
            return
        computing = torch.cuda.current_stream(self._device.device)
        self._down.wait_stream(computing)
        with torch.cuda.stream(self._down):
            for part, here in zip(self._bounds, self._here, strict=True):
                self._host[part].copy_(self._device[part], non_blocking=True)
                here.record()
        computing.synchronize()  # MPI reads memory, not streams
        timers.arrived()

    def ready(self, piece: int) -> NDArray[Any]:
        """Wait until this piece, and those before it, are in the array; return it."""
        if self._device is not None:
            self._here[piece].synchronize()
        return self.pieces[piece]

    def give_back(self, piece: int) -> None:
        """Begin to bring this piece back to the device: it must not be written before the next `begin`."""
        if self._device is not None:
            with torch.cuda.stream(self._up):
                part = self._bounds[piece]
                self._device[part].copy_(self._host[part], non_blocking=True)

    def join(self) -> None:
        """Let work queued on the device from now on see the pieces that were given back."""
        if self._device is not None:
            torch.cuda.current_stream(self._device.device).wait_stream(self._up)


class Hosted:
    """A tensor as a numpy array: its own memory on a CPU, a pinned copy of it for a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = tensor if tensor.is_cuda else None
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True) if tensor.is_cuda else tensor
        self.array: NDArray[Any] = self._host.numpy()

    def pull(self, part: slice = WHOLE) -> None:
        """Let the array hold what the tensor holds; waits until work queued on the device is done."""
        if self._device is not None:
            self._host[part].copy_(self._device[part])

    def push(self, part: slice = WHOLE) -> None:
        """Let the tensor hold what the array holds; work queued on the device later sees it."""
        if self._device is not None:
            self._device[part].copy_(self._host[part], non_blocking=True)


def when_ready(tensor: Tensor) -> None:
    """Wait until the device has written `tensor`: MPI reads memory, not streams."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
