"""The kernels of `realign` on a GPU or in Triton's interpreter: a script, for that is chosen before Triton is there."""

import sys

import torch

from ddp_hpc.models import _shift_kernels as realign
from ddp_hpc.models._shift_kernels import _triton

SHAPES = [(1, 1), (1, 9), (9, 1), (16, 5), (5, 16), (33, 31), (100, 3), (3, 100)]
LARGE = [(16, 5), (5000, 3), (1_000_000, 1), (1_000_000, 3), (3, 1_000_000), (5000, 1000), (75, 600), (4609, 2)]


def check(rows: int, cols: int, dtype: torch.dtype, device: str) -> None:
    matrix = (torch.arange(rows * cols, device=device) % 101).to(dtype).view(rows, cols)
    ones = matrix.new_ones(rows, 1)
    buffer = matrix.new_full((rows * (cols + 1) + 3,), 7)
    buffer[: rows * cols] = matrix.flatten()
    where = f"{rows} x {cols}, {dtype}"
    assert torch.equal(realign.shift_right(buffer, rows, cols, kernel=True), torch.cat([ones, matrix], 1)), where
    assert (buffer[rows * (cols + 1) :] == 7).all(), f"{where}: what lies behind"
    assert torch.equal(realign.shift_left(buffer, rows, cols, kernel=True), matrix), where


if __name__ == "__main__":
    device = sys.argv[1]
    _triton.PIECE = 16 if device == "cpu" else _triton.PIECE  # interpreted programs run one after another
    for shape in SHAPES if device == "cpu" else SHAPES + LARGE * 20:
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int8, torch.int64):
            check(*shape, dtype, device)
    print("all equal")
