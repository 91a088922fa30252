"""A flat tensor as memory that MPI can read and write, whole or in part."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

WHOLE = slice(None)


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
