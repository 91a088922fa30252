"""Arrays that are written once, beside the fetched data, by whoever comes first, and mapped into memory by all.

A folder of arrays is there as a whole or not at all: it is written under another name and renamed. Others who want it
meanwhile wait for it; if its writer shows no sign of life, one of them takes its turn. Imports neither torch nor MPI.
"""

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.system.progress import ProgressLine

Arrays = Mapping[str, NDArray[np.float32]]
Chunks = Callable[[], Iterator[Arrays]]  # makes all rows of all arrays, some at a time, in order
Shapes = Mapping[str, tuple[int, ...]]  # of all arrays, by name; the first axis counts the rows

MEMORY_BYTES = 256_000_000  # up to here, arrays are made in memory by everybody who needs them
PATIENCE_S = 60.0  # without a sign of life, after which a writer counts as gone
LOOK_EVERY_S = 0.2


def arrays(folder: Path, shapes: Shapes, chunks: Chunks) -> Arrays:
    """Return arrays of float32 that `chunks` fills: in memory if they are small, else mapped from files in `folder`.

    All have equally many rows; the name of the folder has to say all that they depend on.
    """
    if sum(4 * int(np.prod(shape)) for shape in shapes.values()) <= MEMORY_BYTES:
        made = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        done = 0
        for rows in chunks():
            for name, values in rows.items():
                made[name][done : done + len(values)] = values
            done += len(values)
        return made
    while not folder.is_dir():
        _write_or_wait(folder, shapes, chunks)
    # private: what is written to them stays in this process, and torch asks for arrays that can be written to
    return {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in shapes}


def _write_or_wait(folder: Path, shapes: Shapes, chunks: Chunks) -> None:
    """Write `folder`, or wait until another process has, or seems to be gone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    turn = folder.with_name(f".{folder.name}.turn")
    try:
        turn.mkdir()
    except FileExistsError:
        _wait(folder, turn)
        return
    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
    try:
        part.mkdir()
    except OSError as error:
        turn.rmdir()
        raise OSError(f"cannot write {folder}: {error}") from error
    try:
        if not folder.is_dir():
            _write(folder, part, turn, shapes, chunks)
    except OSError as error:
        if not part.is_dir():
            return  # another took us for gone, and has the turn
        raise OSError(f"cannot write {folder}: {error}") from error
    finally:
        if part.is_dir() or folder.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            with suppress(FileNotFoundError):
                turn.rmdir()


def _write(folder: Path, part: Path, turn: Path, shapes: Shapes, chunks: Chunks) -> None:
    for left in folder.parent.glob(f".{folder.name}.*.part"):  # by a process that was killed
        if left != part:
            shutil.rmtree(left, ignore_errors=True)
    count = next(iter(shapes.values()))[0]
    done, line = 0, ProgressLine(sys.stderr)
    with ExitStack() as stack:  # plain files: of a memory map, a full disk would end the process without a word
        files = {name: stack.enter_context((part / f"{name}.npy").open("wb")) for name in shapes}
        for name, shape in shapes.items():
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(files[name], header)
        for rows in chunks():
            for name, values in rows.items():
                files[name].write(np.ascontiguousarray(values, dtype="<f4").data)
                files[name].flush()
                os.fsync(files[name].fileno())  # each time: one long wait at the end would pass for the end of us
            done += len(values)
            with suppress(FileNotFoundError):
                os.utime(turn)  # we live
            line.show(f"writing {folder}: {done:,} of {count:,} rows")
        line.end()
    part.rename(folder)


def _wait(folder: Path, turn: Path) -> None:
    """Return when `folder` is there or its writer gone: by no clock but ours, for a file server may have another."""
    seen, since = -1, time.monotonic()
    while not folder.is_dir():
        try:
            alive = turn.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if alive != seen:
            seen, since = alive, time.monotonic()
        if time.monotonic() - since >= PATIENCE_S:
            with suppress(OSError):
                turn.rmdir()
            return
        time.sleep(LOOK_EVERY_S)
