"""Ones in front of a matrix, and taken away again, in its own memory: as torch.cat has it, whatever shape and type."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_hpc.models import _shift_kernels as realign

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool]


def buffer_of(matrix, behind=0):
    rows, cols = matrix.shape
    buffer = torch.full((rows * (cols + 1) + behind,), 7).to(matrix.dtype)
    buffer[: rows * cols] = matrix.flatten()
    return buffer


def check(matrix):
    rows, cols = matrix.shape
    buffer = buffer_of(matrix, behind=3)
    with_ones = torch.cat([torch.ones(rows, 1, dtype=matrix.dtype), matrix], 1)

    wide = realign.shift_right(buffer, rows, cols)
    assert torch.equal(wide, with_ones)
    assert wide.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    assert torch.equal(buffer[rows * (cols + 1) :], torch.full((3,), 7).to(matrix.dtype))
    assert torch.equal(realign.shift_left(buffer, rows, cols), matrix)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "cols"),
    [(1, 1), (1, 7), (7, 1), (16, 5), (5, 16), (64, 64), (5000, 3), (3, 5000), (75, 600), (0, 5), (5, 0), (0, 0)],
)
def test_as_torch_cat(rows, cols, dtype):
    check((torch.arange(rows * cols) % 251).to(dtype).view(rows, cols))


@given(rows=st.integers(0, 40), cols=st.integers(0, 40), piece_bytes=st.sampled_from([4, 8, 64, 1000]))
@settings(max_examples=60, deadline=None)
def test_whatever_is_held_at_a_time_rows_or_parts_of_a_row(rows, cols, piece_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(realign, "PIECE_BYTES", piece_bytes)
        check(torch.arange(rows * cols, dtype=torch.int32).view(rows, cols))


def published_places(rows, cols):
    """Which numbers the published kernel saves: rows, and places in the matrix, in its own arithmetic."""
    idx = np.arange(rows * (rows - 1) // 2)
    root = np.sqrt(np.float32(1) + (8 * idx).astype(np.float32))
    i = np.floor(np.float32(0.5) * (root - np.float32(1))).astype(np.int64) + 1
    return i, idx - i * (i - 1) // 2 + i * cols


def test_where_the_published_kernel_reads_beyond_the_matrix_ours_is_right():
    beyond = {rows: int((published_places(rows, 5)[1] >= rows * 5).sum()) for rows in (6, 7, 16)}
    assert beyond == {6: 0, 7: 1, 16: 14}
    for rows in beyond:
        check(torch.arange(rows * 5.0).view(rows, 5))


def test_where_the_published_places_are_no_longer_exact_ours_is_right():
    true = np.repeat(np.arange(1, 4700), np.arange(1, 4700))
    wrong = true[published_places(4700, 10)[0] != true]
    assert wrong.min() == 4608
    check(torch.arange(4700 * 10.0, dtype=torch.float64).view(4700, 10))


@pytest.mark.parametrize(
    ("buffer", "rows", "cols", "told"),
    [
        (torch.zeros(3, 4), 3, 3, "need a flat, contiguous buffer, got shape (3, 4)"),
        (torch.zeros(24)[::2], 3, 3, "need a flat, contiguous buffer, got shape (12,), strides (2,)"),
        (torch.zeros(11), 3, 3, "need room for 3 x (3 + 1) = 12 numbers, got 11"),
        (torch.zeros(11), -1, 3, "rows=-1, cols=3; expected: 0 or more"),
    ],
)
@pytest.mark.parametrize("shift", [realign.shift_right, realign.shift_left])
def test_what_cannot_be_moved_is_told_and_left_alone(shift, buffer, rows, cols, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        shift(buffer, rows, cols)
    assert not buffer.any()


def test_weights_that_are_trained_are_moved_too():
    buffer = torch.arange(6.0).requires_grad_()
    assert realign.shift_right(buffer, 2, 2).tolist() == [[1, 0, 1], [1, 2, 3]]


def kernels(device, **environment):
    script = Path(__file__).parents[1] / "support" / "kernel_cases.py"
    done = subprocess.run(
        [sys.executable, script, device], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all equal\n")


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton is installed")
def test_the_kernels_interpreted():
    kernels("cpu", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_kernels_on_a_gpu_with_many_pieces_at_once():
    kernels("cuda")
