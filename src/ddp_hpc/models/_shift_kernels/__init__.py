"""A column of ones put in front of a row-major matrix, or its first column taken away, in the matrix's own memory.

[1|A] times [b;W] is A W + b: with its bias as the first row of the weights a layer is one product. The source calls
the two moves ShiftRight and ShiftLeft. Its kernels first save what the move will overwrite, rows (rows - 1) / 2
numbers, which is more than the matrix has where rows > 2 cols + 1: of row i, counted from 0, the first i. But it has
only cols of them, so from rows = cols + 2 on they read beyond the matrix. And they find the place of each by a square
root in float32, which is no longer exact from row 4,608 on.

Here nothing is saved. A number moves by as many places as its row has ones before it, always in one direction, so if
the last piece of the matrix moves right first (or the first piece left), each piece is written over what has moved
already, or over itself, which is held in registers or in a small piece of memory meanwhile. Places are integers.

Source: S. Biswas, SHM-Learn-Dist (2017), section 4.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

PIECE_BYTES = 1 << 18  # what is held while it moves: it stays in the cache
KERNEL_DTYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
}


@torch.no_grad()
def shift_right(buffer: Tensor, rows: int, cols: int, kernel: bool | None = None) -> Tensor:
    """Put a column of ones in front of the matrix that begins `buffer`, in place.

    Args:
        buffer: flat, contiguous, of rows x (cols + 1) numbers or more; its first rows x cols are the matrix, row by
            row. What lies behind rows x (cols + 1) stays as it is.
        rows, cols: of the matrix, 0 or more.
        kernel: whether one Triton kernel does it, on a GPU; None: where that is possible.

    Returns:
        The new matrix, rows x (cols + 1), a view of the buffer.

    Raises:
        ValueError: the buffer is not flat and contiguous, or too short; sizes below 0.
    """
    narrow, wide = _views(buffer, rows, cols)
    if not _by_kernel("right", buffer, rows, cols, kernel):
        for piece in reversed(list(_pieces(rows, cols, buffer.itemsize))):
            wide[:, 1:][piece] = narrow[piece].clone()
        wide[:, 0] = 1
    return wide


@torch.no_grad()
def shift_left(buffer: Tensor, rows: int, cols: int, kernel: bool | None = None) -> Tensor:
    """Take away the first column of the matrix of rows x (cols + 1) that begins `buffer`, in place: undo `shift_right`.

    The column is lost; what lies behind rows x cols afterwards is left over. Arguments and errors are as there; what is
    returned is the new matrix, rows x cols, a view of the buffer.
    """
    narrow, wide = _views(buffer, rows, cols)
    if not _by_kernel("left", buffer, rows, cols, kernel):
        for piece in _pieces(rows, cols, buffer.itemsize):
            narrow[piece] = wide[:, 1:][piece].clone()
    return narrow


def _views(buffer: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    """Return the matrix without and with the column, both at the beginning of the buffer."""
    if rows < 0 or cols < 0:
        raise ValueError(f"rows={rows}, cols={cols}; expected: 0 or more")
    if buffer.dim() != 1 or not buffer.is_contiguous():
        raise ValueError(f"need a flat, contiguous buffer, got shape {tuple(buffer.shape)}, strides {buffer.stride()}")
    length = rows * (cols + 1)
    if len(buffer) < length:
        raise ValueError(f"need room for {rows} x ({cols} + 1) = {length} numbers, got {len(buffer)}")
    return buffer[: rows * cols].view(rows, cols), buffer[:length].view(rows, cols + 1)


def _by_kernel(direction: Literal["left", "right"], buffer: Tensor, rows: int, cols: int, asked: bool | None) -> bool:
    """Move the numbers by a kernel, if that is asked for or possible; return whether that was done."""
    if asked is None:
        asked = buffer.is_cuda and buffer.dtype in KERNEL_DTYPES and find_spec("triton") is not None
    if not asked or not rows * cols:
        return False
    from ddp_hpc.models._shift_kernels import _triton

    _triton.shift(direction, buffer, rows, cols)
    return True


def _pieces(rows: int, cols: int, item_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of a matrix in the order of memory: some whole rows, or where one row is too long a part of it."""
    held = PIECE_BYTES // item_bytes
    tall, wide = max(1, held // max(1, cols)), min(held, cols)
    for row in range(0, rows, tall):
        for col in range(0, cols, max(1, wide)):
            yield slice(row, row + tall), slice(col, col + wide)
