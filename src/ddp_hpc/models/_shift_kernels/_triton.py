"""The moves of `realign` as one kernel each, for GPUs; imported only where they are used.

The matrix is cut into pieces. A program takes the next piece by drawing a number, reads it into registers, says so,
waits until every piece that lies where it is going to write has been read, and writes. Numbers are drawn in the order
in which the pieces move, so it waits only for programs that have begun before it, and those read before they wait:
however few of them run at a time, and in whatever order, all come to an end.

Source: in-place sliding by such flags is of Gomez-Luna et al., In-Place Data Sliding Algorithms for Many-Core
Architectures, ICPP 2015.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 4096  # numbers that a program holds in registers
WARPS = 8


@triton.jit
def _say_read(flags, piece):
    tl.debug_barrier()  # all threads have read
    tl.atomic_xchg(flags + piece, 1, sem="release")


@triton.jit
def _wait_for(flags, first, end):
    """Wait until the pieces from `first` up to, not with, `end` have been read."""
    for piece in range(first, end):
        while tl.atomic_add(flags + piece, 0, sem="acquire") == 0:
            pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["length", "cols", "pieces"])  # one kernel for all shapes
def _right(buffer, drawn, flags, length, cols, pieces, size: tl.constexpr):  # noqa: PLR0917  (a kernel)
    piece = (pieces - 1 - tl.atomic_add(drawn, 1)).to(tl.int64)
    at = piece * size + tl.arange(0, size)
    inside = at < length
    numbers = tl.load(buffer + at, mask=inside)
    _say_read(flags, piece)
    last = tl.minimum((piece + 1) * size, length) - 1
    furthest = (last + last // cols + 1) // size  # the piece that lies where the last number goes
    _wait_for(flags, piece + 1, tl.minimum(furthest + 1, pieces))
    to = at + at // cols + 1
    tl.store(buffer + to, numbers, mask=inside)
    ones = tl.full((size,), 1, buffer.dtype.element_ty)
    tl.store(buffer + to - 1, ones, mask=inside & (at % cols == 0))


@triton.jit(do_not_specialize=["length", "cols", "pieces"])  # one kernel for all shapes
def _left(buffer, drawn, flags, length, cols, pieces, size: tl.constexpr):  # noqa: PLR0917  (a kernel)
    piece = tl.atomic_add(drawn, 1).to(tl.int64)
    to = piece * size + tl.arange(0, size)
    inside = to < length
    numbers = tl.load(buffer + to + to // cols + 1, mask=inside)
    _say_read(flags, piece)
    start = piece * size
    row, col = start // (cols + 1), start % (cols + 1)
    nearest = (row * cols + tl.maximum(col - 1, 0)) // size  # the piece that lies where the first number goes
    _wait_for(flags, nearest, piece)
    tl.store(buffer + to, numbers, mask=inside)


def shift(direction: str, buffer: Tensor, rows: int, cols: int) -> None:
    """As `realign.shift_right` and `shift_left`, of rows x cols > 0."""
    pieces = triton.cdiv(rows * cols, PIECE)
    state = torch.zeros(1 + pieces, dtype=torch.int32, device=buffer.device)
    drawn, flags = state[:1], state[1:]  # how many numbers; and of each piece, whether it has been read
    kernel = _right if direction == "right" else _left
    kernel[(pieces,)](buffer, drawn, flags, rows * cols, cols, pieces, size=PIECE, num_warps=WARPS)
