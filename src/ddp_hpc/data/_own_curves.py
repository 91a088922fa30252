"""Strain-stress curves of the user's own, from a file: 200 points of strain, stress and flag, and two parameters."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

POINTS, CHANNELS, PARAMETERS = 200, ("strain", "stress", "flag"), ("parameter_1", "parameter_2")
WIDTH = POINTS * len(CHANNELS) + len(PARAMETERS)
FEWEST = 4  # curves: three to train on, one to test

FORMAT = (
    f"a .npy file of numbers of the shape (curves, {WIDTH}), in each row {POINTS} times strain, stress, flag, then the "
    f"two parameters; or a .parquet file with the columns {', '.join(CHANNELS)} (lists of {POINTS} numbers) and "
    f"{', '.join(PARAMETERS)}"
)


def read(path: Path, samples: int | None) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the first curves, (samples, 200, 3), and their parameters, (samples, 2), as they stand in the file.

    `samples` None: all. A ValueError says what is not of the format, and which curve.
    """
    readers = {".npy": _npy, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path}: given a file named {path.suffix or 'without ending'}, expected: {FORMAT}")
    if not path.is_file():
        raise FileNotFoundError(f"{path.resolve()} is not there; dataset strain_stress takes with `path` {FORMAT}")
    found, belonging = readers[path.suffix](path)
    if len(found) < max(FEWEST, samples or 0):
        raise ValueError(f"{path} has {len(found)} curves, asked for: {samples or f'at least {FEWEST}'}")
    with np.errstate(over="ignore"):  # told below
        curves, parameters = np.asarray(found[:samples], np.float32), np.asarray(belonging[:samples], np.float64)
    broken = np.flatnonzero(~(np.isfinite(curves).all(axis=(1, 2)) & np.isfinite(parameters).all(axis=1)))
    if len(broken):
        raise ValueError(
            f"{path}: {len(broken)} of {len(curves)} curves hold what is no finite float32, the first of them "
            f"curve {broken[0]} (counted from 0); leave them out"
        )
    return curves, parameters


def _npy(path: Path) -> "tuple[NDArray[np.generic], NDArray[np.generic]]":
    try:
        table = np.lib.format.open_memmap(path, mode="r")  # load would take an archive of arrays, too
    except (ValueError, OSError, EOFError, OverflowError) as error:
        raise ValueError(f"{path} cannot be read: {error}; expected: {FORMAT}") from error
    if table.ndim != 2 or table.shape[1] != WIDTH or table.dtype.kind not in "fiu":
        raise ValueError(f"{path} holds {table.dtype} of the shape {table.shape}; expected: {FORMAT}")
    return table[:, : -len(PARAMETERS)].reshape(-1, POINTS, len(CHANNELS)), table[:, -len(PARAMETERS) :]


def _parquet(path: Path) -> "tuple[NDArray[np.generic], NDArray[np.generic]]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}; expected: {FORMAT}") from error
    lacking = [name for name in (*CHANNELS, *PARAMETERS) if name not in table.column_names]
    if lacking:
        raise ValueError(f"{path} has no column {', '.join(lacking)}; expected: {FORMAT}")
    curves = [_column(path, name, table.column(name), POINTS) for name in CHANNELS]
    parameters = [_column(path, name, table.column(name)) for name in PARAMETERS]
    return np.stack(curves, axis=2), np.stack(parameters, axis=1)


def _column(path: Path, name: str, column: "pa.ChunkedArray", points: int | None = None) -> "NDArray[np.generic]":
    """Return a column of numbers or, where `points` is given, of lists of so many numbers."""
    import pyarrow.types as types

    kind = number = column.type
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if listed:
        number = kind.value_type
    if listed != (points is not None) or not (types.is_floating(number) or types.is_integer(number)):
        raise ValueError(f"{path}: the column {name} holds {kind}; expected: {FORMAT}")
    if points is None:
        return np.asarray(column.to_numpy())
    whole = column.combine_chunks()
    lengths = whole.value_lengths().to_numpy(zero_copy_only=False)  # of what is null: NaN
    wrong = np.flatnonzero(lengths != points)
    if len(wrong):
        found = f"{name} of curve {wrong[0]} (counted from 0) has {lengths[wrong[0]]:g} points"
        raise ValueError(f"{path}: {found}; expected: {FORMAT}")
    return np.asarray(whole.flatten().to_numpy(zero_copy_only=False)).reshape(-1, points)
