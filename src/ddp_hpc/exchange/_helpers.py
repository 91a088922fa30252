"""What the exchanges share: their protocols, and gradients as memory that MPI can read."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor


class Optimizer(Protocol):
    """Takes the weights that it was made for one step along their gradients."""

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""


class Timers(Protocol):
    """What an exchange tells the clock."""

    def arrived(self) -> None:
        """This rank's gradients are complete: from now on it waits for others, or moves data."""

    def mark(self, phase: str) -> None:
        """What this rank did since the last mark was `phase`, a name from `phases.PHASES`."""


class Exchange(Protocol):
    """A way to go from the gradients of all ranks to the next weights."""

    def update(self) -> None:
        """Exchange the gradients, then take the optimiser's step. All ranks must call."""

    def close(self) -> None:
        """Give back what is held."""


MakeOptimizer = Callable[[Tensor, Tensor], Optimizer]  # of weights and gradients: all, or the same slice of both


class HostGradients:
    """Gradients as a numpy array: the tensor's own memory on a CPU, a pinned copy of it for a GPU.

    Staging works with every MPI; handing GPU memory to one that is not CUDA-aware is a segmentation fault.
    """

    def __init__(self, gradients: Tensor) -> None:
        self._device = gradients if gradients.is_cuda else None
        self._host = torch.empty_like(gradients, device="cpu", pin_memory=True) if gradients.is_cuda else gradients
        self.array: NDArray[Any] = self._host.numpy()

    def fetch(self, timers: Timers) -> None:
        """Wait until the gradients are complete, say so to the timers, and bring them to the host."""
        if self._device is None:
            timers.arrived()
            return
        torch.cuda.current_stream().synchronize()  # MPI reads memory, not streams
        timers.arrived()
        self._host.copy_(self._device)

    def put_back(self) -> None:
        """Bring the array back to the device; work queued there later sees it."""
        if self._device is not None:
            self._device.copy_(self._host, non_blocking=True)
