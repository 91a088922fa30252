"""What the MPI library that is loaded in this process can do, asked without importing mpi4py."""

import ctypes
import re
from pathlib import Path


def mpi_cuda_aware() -> bool | None:
    """Return whether the MPI library in this process says that it reads GPU memory; None if it does not say."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.split(maxsplit=5)[-1]
        if re.fullmatch(r".*/libmpi\.so[.\d]*", file):
            query = getattr(ctypes.CDLL(file), "MPIX_Query_cuda_support", None)
            return None if query is None else bool(query())
    return None
