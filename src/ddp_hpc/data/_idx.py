"""Files in the IDX format of the MNIST family: arrays of bytes behind a short header.

Two zero bytes, the type of the numbers, how many axes there are; the length of each axis, 4 bytes, the highest first;
then the numbers, the last axis running fastest.

Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits (1998).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BYTES = 0x08  # the type of unsigned bytes, the only one that these datasets use
MOST_AXES = 4


def read(file: Path) -> NDArray[np.uint8]:
    """Return the array in `file`, of the shape that its header gives; what is wrong with it is a ValueError."""
    content = file.read_bytes()
    zeros, kind, axes = content[:2], *content[2:4].ljust(2, b"\0")
    if zeros != b"\0\0" or not 0 < axes <= MOST_AXES:
        begins = content[:4].hex(" ") or "nothing"
        gzip = ": it is compressed with gzip, unpack it" if content[:2] == b"\x1f\x8b" else ""
        raise ValueError(f"{file} is no IDX file: it begins with {begins}, not with 00 00 08 01 or the like{gzip}")
    if kind != BYTES:
        raise ValueError(f"{file} holds numbers of the IDX type 0x{kind:02x}, expected: 0x{BYTES:02x}, unsigned bytes")
    header = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    wanted = header + int(np.prod(shape, dtype=object))
    if len(content) != wanted:
        sizes = " x ".join(map(str, shape))
        raise ValueError(f"{file} has {len(content)} bytes, but {sizes} numbers and their header take {wanted}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
