"""Tensors as memory that host and MPI can read: whole, in parts, or in pieces that are copied while others are sent.

Staging works with every MPI; handing GPU memory to one that is not CUDA-aware is a segmentation fault.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.profiling.timers import Timers

PIECE_BYTES = 1 << 22  # at 20 GB/s 0.2 ms: starting a copy and a message, some 10 us, is little beside it


@contextmanager
def pinning() -> Iterator[None]:
    """Name pinned memory that the host does not have: CUDA says of it what it says of a GPU's.

    Raises:
        MemoryError: there is too little.
    """
    try:
        yield
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        raise MemoryError(f"too little pinned host memory: {error}") from error


class Pinned:
    """A tensor as host memory: its own on a CPU, a pinned copy of it for a GPU; `array` is that for numpy and MPI."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        with pinning():
            self.host = torch.empty_like(tensor, device="cpu", pin_memory=True) if tensor.is_cuda else tensor
        self.array: NDArray[Any] = self.host.numpy()

    def pull(self, part: slice | None = None, non_blocking: bool = False) -> None:
        """Let the host hold what the tensor holds, or a part of it, after all that is queued in the current stream.

        Waits until it does, unless it is `non_blocking`.
        """
        if self.host is not self.tensor:
            host, tensor = (self.host, self.tensor) if part is None else (self.host[part], self.tensor[part])
            host.copy_(tensor, non_blocking=non_blocking)

    def push(self, part: slice | None = None) -> None:
        """Let the tensor hold what the host holds, or a part of it; work queued later in the current stream sees it."""
        if self.host is not self.tensor:
            host, tensor = (self.host, self.tensor) if part is None else (self.host[part], self.tensor[part])
            tensor.copy_(host, non_blocking=True)


class PinnedPieces:
    """A flat tensor as host memory, in pieces that come and go on streams beside the one that computes.

    `begin`, or `fetch` of some, then for each piece `ready` and `give_back`, then `join`: `in_pieces` does it one piece
    after another. On a CPU all of this is nothing, but for the timers' `arrived`.

    Args:
        tensor: 1-D, contiguous.
        bounds: where pieces end, in the order in which they will be needed; None: in pieces of `PIECE_BYTES` on a GPU
            and as one on a CPU, where there is nothing to overlap.
        one_stream: pieces go back behind those that come; else both ways at once.
    """

    def __init__(self, tensor: Tensor, bounds: Sequence[slice] | None = None, one_stream: bool = False) -> None:
        self._pinned, self._on_gpu = Pinned(tensor), tensor.is_cuda
        self.array = self._pinned.array
        whole = len(tensor)
        step = max(1, PIECE_BYTES // tensor.element_size() if self._on_gpu else whole)
        self._bounds = list(bounds or [slice(start, start + step) for start in range(0, whole, step)])
        self.pieces = [self.array[part] for part in self._bounds]  # adjoining views of all, or those of `bounds`
        if self._on_gpu:
            self._down = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
            self._up = self._down if one_stream else torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
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
        """Fetch all pieces; wait until the tensor is complete, and say so."""
        if self._on_gpu:
            self.fetch(range(len(self.pieces)))
            when_ready(self._pinned.tensor)
        timers.arrived()

    def fetch(self, pieces: Iterable[int]) -> None:
        """Queue the copies of these pieces to the host, behind all that is queued now on the current stream."""
        if self._on_gpu:
            self._down.wait_stream(torch.cuda.current_stream(self._pinned.tensor.device))
            with torch.cuda.stream(self._down):
                for piece in pieces:
                    self._pinned.pull(self._bounds[piece], non_blocking=True)
                    self._here[piece].record()

    def is_ready(self, piece: int) -> bool:
        """Return whether a piece that was fetched is in the array."""
        return not self._on_gpu or self._here[piece].query()  # type: ignore[no-untyped-call]

    def ready(self, piece: int) -> NDArray[Any]:
        """Wait until a piece that was fetched is in the array; return it."""
        if self._on_gpu:
            self._here[piece].synchronize()
        return self.pieces[piece]

    def give_back(self, piece: int) -> None:
        """Begin to bring this piece back to the device: it must not be written before it is fetched again."""
        if self._on_gpu:
            with torch.cuda.stream(self._up):
                self._pinned.push(self._bounds[piece])

    def join(self) -> None:
        """Let work queued on the device from now on see the pieces that were given back."""
        if self._on_gpu:
            torch.cuda.current_stream(self._pinned.tensor.device).wait_stream(self._up)


def when_ready(tensor: Tensor) -> None:
    """Wait until the device has written `tensor`: MPI reads memory, not streams."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
