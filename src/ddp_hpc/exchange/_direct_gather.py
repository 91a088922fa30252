"""A server's part of GPU memory that is given to MPI as it lies: for an MPI that is CUDA-aware."""

from collections.abc import Callable

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.exchange._pinned import PIECE_BYTES, when_ready
from ddp_hpc.exchange._server import GRADIENTS, UNDER_WAY
from ddp_hpc.profiling.timers import Timers


class Direct:
    """As `_pinned.Pinned`, of a tensor that MPI reads and writes where it lies."""

    def __init__(self, tensor: Tensor) -> None:
        self.array = tensor

    def pull(self) -> None:
        """Wait until the device has written it."""
        when_ready(self.array)

    def push(self) -> None:
        """What MPI has written is there."""


class DirectGather:
    """Gradients go to rank 0 as they are, in pieces, from device to device."""

    def __init__(self, gradients: Tensor, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._pieces = torch.split(gradients, max(1, PIECE_BYTES // gradients.element_size()))
        senders = comm.size - 1 if comm.rank == 0 else 0
        self._room = gradients.new_empty((UNDER_WAY, senders, len(self._pieces[0])))
        self.state: Callable[[], list[Tensor]] = list  # nothing is kept

    def send(self) -> None:
        """Send this rank's gradients, which are complete."""
        MPI.Request.Waitall([self._comm.Isend(piece, 0, GRADIENTS) for piece in self._pieces])

    def mean(self, timers: Timers) -> None:
        """Overwrite rank 0's gradients with the mean of all, added in the order of the ranks."""
        arriving = [self._receive(number) for number in range(min(UNDER_WAY, len(self._pieces)))]
        for number, piece in enumerate(self._pieces):
            MPI.Request.Waitall(arriving[number])
            timers.mark("exchange_exposed_s", "gather_s")
            for row in self._room[number % UNDER_WAY]:
                piece += row[: len(piece)]
            piece /= self._comm.size
            timers.mark("exchange_exposed_s", "average_s")
            if number + UNDER_WAY < len(self._pieces):
                when_ready(piece)  # what is overwritten next has been added
                arriving.append(self._receive(number + UNDER_WAY))

    def _receive(self, number: int) -> list[MPI.Request]:
        """Begin to receive a piece from all others, in the room of the one before the last."""
        length = len(self._pieces[number])
        rows = self._room[number % UNDER_WAY]
        return [self._comm.Irecv(row[:length], rank, GRADIENTS) for rank, row in enumerate(rows, start=1)]


def gathered_average(buffer: Tensor, comm: MPI.Intracomm) -> None:
    """Average a flat tensor over the ranks of `comm`, in place, where it lies, on rank 0, which gives it to all."""
    gather, whole = DirectGather(buffer, comm), Direct(buffer)
    whole.pull()
    if comm.rank == 0:
        gather.mean(Timers())
        whole.pull()
    else:
        gather.send()
    comm.Bcast(whole.array)
