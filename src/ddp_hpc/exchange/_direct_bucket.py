"""A bucket of GPU gradients that goes round a ring as it lies: for an MPI that is CUDA-aware."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.exchange.ring import ring
from ddp_hpc.models._replica import Span


class Beside:
    """A stream beside the one that computes; on a CPU, where all is done when it is asked for, nothing."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = tensor.device
        self.stream: Any = torch.cuda.Stream(self._device) if tensor.is_cuda else None  # type: ignore[no-untyped-call]

    def join(self) -> None:
        """Let what is queued in the current stream from now on come after all that is queued here."""
        if self.stream:
            torch.cuda.current_stream(self._device).wait_stream(self.stream)

    def queueing(self) -> AbstractContextManager[Any]:
        """Queue here."""
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()


class DirectBucket:
    """As `ring_overlapped.Bucket`, of gradients that MPI reads and writes where they lie.

    MPI knows no streams: a message begins when what was queued before it has been computed, which an event tells.
    """

    def __init__(self, spans: list[Span], piece: Tensor, number: int, comm: MPI.Intracomm, beside: Beside) -> None:
        self.parameters = [span.parameter for span in spans]
        self._piece, self._comm, self._tag, self._beside = piece, comm, number, beside
        self._right, self._left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._inbox = torch.empty(-(-len(piece) // comm.size), dtype=piece.dtype, device=piece.device)
        self._computed: Any = torch.cuda.Event() if beside.stream else None  # type: ignore[no-untyped-call]
        self._ring: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._requests: list[MPI.Request] = []
        self.reset()

    def reset(self) -> None:
        """Be ready for the next backward pass."""
        self.missing = len(self.parameters)  # so many parameters have no gradient yet
        self.started = self.done = False

    def start(self) -> None:
        """Let the gradients of this bucket go round; no rank writes them from now on."""
        self.started = True
        self._ring = ring(self._piece, self._comm.rank, self._comm.size, self._inbox, divisor=self._comm.size)
        self._compute()  # nothing: the first message is part of the gradients, which the current stream completes

    def _compute(self) -> None:
        """Queue in the current stream what the last message has brought, and remember what to send after that."""
        self._message, self._sent = next(self._ring, None), False
        if self._computed:
            self._computed.record()

    @property
    def arrived(self) -> bool:
        """Whether what was queued for the next message has been computed."""
        return not self._computed or self._computed.query()

    def advance(self, wait: bool = False) -> None:
        """Go on as far as messages have arrived and the GPU has computed, or, if it shall `wait`, one step at least."""
        while not self.done:
            if self._sent:
                if wait:
                    MPI.Request.Waitall(self._requests)
                elif not MPI.Request.Testall(self._requests):
                    return
                wait = False
                with self._beside.queueing():  # not behind gradients of other buckets that are still to be computed
                    self._compute()
            if wait and self._computed:
                self._computed.synchronize()
            elif not self.arrived:
                return
            self._send()

    def _send(self) -> None:
        self._sent, comm = True, self._comm
        if self._message is None:
            self.done = True
            return
        outgoing, incoming = self._message
        self._requests = [comm.Irecv(incoming, self._left, self._tag), comm.Isend(outgoing, self._right, self._tag)]


def bucket_average(buffer: Tensor, comm: MPI.Intracomm) -> None:
    """Average a flat tensor over the ranks of `comm`, in place, where it lies, as one bucket."""
    beside = Beside(buffer)
    bucket = DirectBucket([], buffer, 0, comm, beside)
    bucket.start()
    while not bucket.done:
        bucket.advance(wait=True)
    beside.join()
