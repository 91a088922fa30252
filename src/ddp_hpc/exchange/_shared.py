"""Memory that the ranks of one node share: an MPI window, as torch tensors."""

import os
from dataclasses import dataclass
from itertools import pairwise

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.placement import LaunchError
from ddp_hpc.replica import ALIGNMENT_BYTES

_WHERE = "/dev/shm"  # where Linux keeps it


@dataclass(frozen=True)
class SharedRows:
    """Rows of equal length, one per rank, that all ranks of a node read and write.

    `rows[r]` lies in the memory of rank r's processor and starts on a multiple of 64 bytes. `free` gives it back; all
    ranks must call it, and nothing may look at the rows then.
    """

    rows: Tensor  # ranks x length, zeros
    window: MPI.Win

    def free(self) -> None:
        """Give the memory back. All ranks must call, with no tensor of theirs in it."""
        self.window.Free()


def share(comm: MPI.Intracomm, length: int, dtype: torch.dtype, ranks: int | None = None) -> SharedRows:
    """Return rows of `length` numbers in memory shared by the ranks of `comm`, which sit on one node. All must call.

    Args:
        comm: ranks of one node.
        length: of a row.
        dtype: of the numbers.
        ranks: how many rows, each by the rank of that number; None: one per rank.

    Raises:
        LaunchError: the node has not so much shared memory.
    """
    count = comm.size if ranks is None else ranks
    aligned = ALIGNMENT_BYTES // dtype.itemsize
    stride = max(1, -(-length // aligned)) * aligned
    wanted = count * stride * dtype.itemsize
    free = _free_bytes()
    if comm.allreduce(int(free is not None and wanted > free), MPI.MAX):
        raise LaunchError(
            f"{wanted / 1e6:.0f} MB of shared memory for {count} x {length} {dtype}, but {_WHERE} has "
            f"{(free or 0) / 1e6:.0f} MB left: enlarge it (containers: --shm-size), use fewer ranks per node or a "
            "smaller model, or an exchange that sends messages, such as ring"
        )
    own = stride * dtype.itemsize if comm.rank < count else 0
    window = MPI.Win.Allocate_shared(own, dtype.itemsize, comm=comm)
    first, _ = window.Shared_query(0)
    whole = MPI.memory.fromaddress(first.address, wanted)
    rows = torch.frombuffer(whole, dtype=dtype).view(count, stride)[:, :length]
    if comm.rank < count:
        rows[comm.rank].zero_()  # by its owner: the pages then lie at its processor
    comm.Barrier()
    return SharedRows(rows, window)


def _free_bytes() -> int | None:
    """Return how much shared memory is left on this node; None where that cannot be known."""
    try:
        found = os.statvfs(_WHERE)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def slices(length: int, parts: int, itemsize: int) -> list[slice]:
    """Return `parts` adjoining slices of `length` numbers, as equal as whole cache lines allow; some may be empty."""
    aligned = ALIGNMENT_BYTES // itemsize
    lines = -(-length // aligned)
    bounds = [min(length, lines * part // parts * aligned) for part in range(parts + 1)]
    return [slice(first, last) for first, last in pairwise(bounds)]


def mean_of(rows: Tensor, chosen: slice, out: Tensor, divisor: int) -> None:
    """Write the sum of all rows over `chosen`, divided by `divisor`, to `out`: in the order of the rows, so that it
    repeats bit for bit. Half the time of `torch.mean` over two rows."""
    if len(rows) == 1:
        out.copy_(rows[0, chosen])
    else:
        torch.add(rows[0, chosen], rows[1, chosen], out=out)
        for row in rows[2:]:
            out += row[chosen]
    if divisor > 1:
        out /= divisor
