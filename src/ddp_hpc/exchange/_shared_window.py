"""Memory that the ranks of one node share: an MPI window, as torch tensors."""

import os
import socket
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.config.errors import LaunchError
from ddp_hpc.models._replica import ALIGNMENT_BYTES, Replica

_WHERE = "/dev/shm"  # where Linux keeps it
_BLOCK_BYTES = 1 << 20  # averaged, then stepped along, while it is in the cache


class NoRoomError(LaunchError):
    """A node has too little shared memory; all ranks that asked for it hear of it, and none was taken."""


def share(
    comm: MPI.Intracomm, length: int, dtype: torch.dtype, ranks: int | None = None, node: MPI.Intracomm | None = None
) -> tuple[MPI.Win, Tensor]:
    """Return memory shared by the ranks of `comm`, which sit on one node, and in it rows of zeros. All must call.

    Row r lies in the memory of rank r's processor and starts on a multiple of 64 bytes. All ranks must free the window
    together, and nothing may look at the rows then.

    Args:
        comm, length, dtype: of ranks of one node; of a row; of its numbers.
        ranks: how many rows, each by the rank of that number; None: one per rank.
        node: all ranks that call at the same time on this node, if there are more than those of `comm`.

    Raises:
        NoRoomError: the node has not so much shared memory. It is looked up before any is taken: memory that turns out
            to be missing when it is written to is a bus error, in the middle of a step.
        LaunchError: MPI gives none.
    """
    node = node or comm
    count = comm.size if ranks is None else ranks
    line = ALIGNMENT_BYTES // dtype.itemsize
    stride = max(1, -(-length // line)) * line
    wanted = count * stride * dtype.itemsize
    what = f"{count} x {length} {dtype} for each group of {comm.size} ranks"
    _check_room(node, wanted if comm.rank == 0 else 0, what)
    own = (stride * dtype.itemsize if comm.rank < count else 0) + (ALIGNMENT_BYTES if comm.rank == 0 else 0)
    try:
        window = MPI.Win.Allocate_shared(own, dtype.itemsize, comm=comm)
        first, _ = window.Shared_query(0)
    except MPI.Exception as error:
        raise LaunchError(
            f"MPI gives the ranks of {socket.gethostname()} no window of {wanted / 1e6:.0f} MB in shared memory "
            f"({error}): {_WHERE} is as good as full, or this MPI has no such windows (Open MPI: its component osc sm, "
            "which OMPI_MCA_osc may leave out); see to that, or take an exchange that sends messages, such as ring"
        ) from None
    aligned_address = first.address + -first.address % ALIGNMENT_BYTES  # MPI promises less; the same place on all ranks
    whole = MPI.memory.fromaddress(aligned_address, wanted)
    rows = torch.frombuffer(whole, dtype=dtype).view(count, stride)[:, :length]
    if comm.rank < count:
        rows[comm.rank].zero_()  # by its owner: the pages then lie at its processor
    node.Barrier()  # what is taken is no longer free
    return window, rows


def _check_room(node: MPI.Intracomm, wanted: int, what: str) -> None:
    """Refuse, on all ranks of a node, what its shared memory has no room for: `wanted` bytes, summed over the ranks."""
    wanted_by_all, free = node.allreduce(wanted), _free_bytes()
    if node.allreduce(int(free is not None and wanted_by_all > free), MPI.MAX):
        raise NoRoomError(
            f"{wanted_by_all / 1e6:.0f} MB of shared memory wanted on {socket.gethostname()}, {what}, but {_WHERE} has "
            f"{(free or 0) / 1e6:.0f} MB left: enlarge it (containers: --shm-size), use fewer ranks per node or a "
            "smaller model, or an exchange that sends messages, such as ring"
        )


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


def mean_of(rows: NDArray[Any], chosen: slice, out: NDArray[Any], divisor: int) -> None:
    """Write the sum of all rows over `chosen`, divided by `divisor`, to `out`: in the order of the rows, so that it
    repeats bit for bit. By numpy, whose calls cost less than torch's: 14 us for two rows of 76,728, torch's sums 23 us,
    `torch.mean` 30 us."""
    if len(rows) == 1:
        out[:] = rows[0, chosen]
    else:
        np.add(rows[0, chosen], rows[1, chosen], out=out)
        for row in rows[2:]:
            out += row[chosen]
    if divisor > 1:
        out /= divisor


class SharedModel:
    """One model for all ranks of a node: the weights are there once, and everyone can read everyone's gradients.

    The replica, whose weights are the same on all ranks, looks at the shared memory from now on: backward writes there,
    and nothing is copied. All ranks of `comm` must call; `node`, and errors, are as of `share`.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, node: MPI.Intracomm | None = None) -> None:
        self._replica, self._comm = replica, comm
        length, dtype = len(replica.weights), replica.weights.dtype
        window, gradients = share(comm, length, dtype, node=node)
        try:
            other, weights = share(comm, length, dtype, 1, node)
        except NoRoomError:
            window.Free()
            raise
        self._windows = window, other
        self.gradients: NDArray[Any] = gradients.numpy()  # of each rank, ranks x length
        replica.move(weights=weights[0], gradients=gradients[comm.rank])
        comm.Barrier()  # everybody has written the same weights there
        part, block = slices(length, comm.size, dtype.itemsize)[comm.rank], _BLOCK_BYTES // dtype.itemsize
        starts = range(part.start, part.stop, block)
        # this rank's part of the model, in blocks that fit into a cache; those of all ranks adjoin
        self.mine = [slice(start, min(start + block, part.stop)) for start in starts]

    def close(self) -> None:
        """Move the replica to memory of its own, and give the shared memory back. All ranks must call."""
        del self.gradients
        make_private(self._replica)
        self._comm.Barrier()  # all have their copies
        for window in self._windows:
            window.Free()


def make_private(replica: Replica) -> None:
    """Copy weights and gradients to memory of their own: the replica may be used when the shared memory is gone."""
    replica.move(weights=replica.weights.clone(), gradients=replica.gradients.clone())
