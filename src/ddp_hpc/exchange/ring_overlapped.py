"""Gradients averaged by a ring per bucket, in reverse order of the layers, while the backward pass goes on."""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, Literal

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config.catalog import Megabytes
from ddp_hpc.exchange._direct_bucket import Beside, DirectBucket
from ddp_hpc.exchange._pinned import PinnedPieces
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.exchange.ring import Step, make_inbox, ring_in_pieces
from ddp_hpc.models._replica import Replica, Span

SCHEME = "ring all-reduce"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "as `ring`, bucket by bucket, beside the backward pass"
MOVES_MODEL = "nobody: each rank updates its own"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = True
CAPTURABLE = False
COST = "ring"
CUDA_AWARE = {"gpu_path": ("direct",)}


class Bucket:
    """Adjoining parameters, the ring that averages them, and how far it is."""

    def __init__(self, spans: list[Span], gradients: PinnedPieces, number: int, comm: MPI.Intracomm) -> None:
        self.parameters = [span.parameter for span in spans]
        self._gradients, self._number, self._comm = gradients, number, comm
        self._right, self._left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._inbox = make_inbox(gradients.pieces[number], comm.size)
        self._ring: Iterator[Step] = iter(())
        self._requests: list[MPI.Request] = []
        self.reset()

    def reset(self) -> None:
        """Be ready for the next backward pass."""
        self.missing = len(self.parameters)  # so many parameters have no gradient yet
        self.started = self.done = False

    def start(self) -> None:
        """Let the gradients of this bucket go round; no rank writes them from now on."""
        self.started = True
        self._gradients.fetch([self._number])
        piece, n = self._gradients.pieces[self._number], self._comm.size
        self._ring = ring_in_pieces(piece, self._comm.rank, n, self._inbox, divisor=n)
        self._requests = []

    @property
    def arrived(self) -> bool:
        """Whether its gradients are where MPI can read them."""
        return self._gradients.is_ready(self._number)

    def advance(self, wait: bool = False) -> None:
        """Go on as far as messages have arrived, or, if it shall `wait`, one step at least."""
        if wait:
            self._gradients.ready(self._number)
        elif not self.arrived:
            return
        comm, tag = self._comm, self._number
        while not self.done and self._complete(wait):
            wait = False
            if step := next(self._ring, None):
                outgoing, incoming = step
                self._requests = [comm.Irecv(incoming, self._left, tag), comm.Isend(outgoing, self._right, tag)]
            else:
                self.done = True
        if self.done:
            self._gradients.give_back(self._number)

    def _complete(self, wait: bool) -> bool:
        if wait:
            MPI.Request.Waitall(self._requests)
        return wait or MPI.Request.Testall(self._requests)


class RingOverlapped:
    """A bucket starts when its last gradient is there; hooks of the later ones drive it, and `update` the rest of it.

    No thread: it would share its core with the backward pass. Messages of a bucket carry its number as their tag, so
    ranks need not start them in the same order, and sums do not depend on it. On a GPU hooks only queue what
    comes before the first message, long before the GPU gets there, and `update` drives all buckets while the GPU
    computes.

    Args:
        bucket_mb: how much goes round together at least, in MB (1e6 bytes), but for the last.
        gpu_path: of the gradients of a GPU: through pinned host memory, or given to MPI as they lie, which must be
            CUDA-aware; that is tried before the training starts.
    """

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        *,
        bucket_mb: Megabytes = 4.0,
        gpu_path: Literal["host", "direct"] = "host",
    ) -> None:
        self._replica, self._timers, gradients = replica, timers, replica.gradients
        filled = in_buckets(replica.spans, 1e6 * bucket_mb, gradients.element_size())
        starts = [spans[-1].start for spans in filled]
        bounds = [slice(start, end) for start, end in zip(starts, [len(gradients), *starts], strict=False)]
        self._gradients: PinnedPieces | Beside
        self._buckets: Sequence[Bucket | DirectBucket]
        if gpu_path == "direct":
            self._gradients = beside = Beside(gradients)
            parts = zip(filled, bounds, strict=True)
            self._buckets = [
                DirectBucket(spans, gradients[part], number, comm, beside) for number, (spans, part) in enumerate(parts)
            ]
        else:
            self._gradients = staged = PinnedPieces(gradients, bounds, one_stream=True)
            self._buckets = [Bucket(spans, staged, number, comm) for number, spans in enumerate(filled)]
        self._flying: list[Bucket | DirectBucket] = []
        self._took_off = 0.0
        self._on_gpu = gradients.is_cuda
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def _hook(self, bucket: Bucket | DirectBucket) -> Any:
        """Return what is to be done when a parameter of `bucket` has got its gradient."""

        def arrived(_: Tensor) -> None:
            if bucket.started:  # what is on its way would be changed
                raise RuntimeError(
                    "exchange ring_overlapped: a parameter got a gradient twice in one backward pass, as with "
                    "torch.utils.checkpoint(use_reentrant=True) of layers that share weights: set use_reentrant=False, "
                    "or take exchange ring"
                )
            bucket.missing -= 1
            if bucket.missing == 0:
                bucket.start()
                self._took_off = self._took_off if self._flying else perf_counter()
                self._flying.append(bucket)
            if not self._on_gpu:  # there, this is a thread of autograd's, which not every MPI lets call it
                self._advance()

        return arrived

    def _advance(self) -> None:
        """Bring all buckets on that are in flight; without waiting."""
        if not self._flying:
            return
        for bucket in self._flying:
            bucket.advance()
        self._flying = [bucket for bucket in self._flying if not bucket.done]
        if not self._flying:
            self._timers.overlapped(perf_counter() - self._took_off)

    def _advance_while_it_computes(self) -> None:
        """Bring the buckets on until the GPU is through with the backward pass."""
        through, waiting = torch.cuda.Event(), True  # type: ignore[no-untyped-call]
        through.record()
        while self._flying and not through.query():  # type: ignore[no-untyped-call]
            if waiting:
                waiting, self._took_off = not self._flying[0].arrived, perf_counter()
            self._advance()
        through.synchronize()

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        if self._on_gpu:
            self._advance_while_it_computes()
        if self._flying:
            self._timers.overlapped(perf_counter() - self._took_off)
        self._timers.arrived()
        for bucket in self._buckets:  # those with a parameter that took no part in this step on this rank
            if not bucket.started:
                bucket.start()
        for bucket in self._buckets:  # in the same order on all ranks, so that none waits for one that waits for it
            while not bucket.done:
                bucket.advance(wait=True)
        for bucket in self._buckets:
            bucket.reset()
        self._flying = []
        self._gradients.join()
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


def in_buckets(spans: list[Span], bucket_bytes: float, bytes_per_element: int) -> list[list[Span]]:
    """Return the spans from the last to the first, as many together as fill `bucket_bytes`, or one that is larger."""
    buckets: list[list[Span]] = [[]]
    for span in reversed(spans):
        bucket = buckets[-1]
        if bucket and (bucket[0].end - bucket[-1].start) * bytes_per_element >= bucket_bytes:
            buckets.append(bucket := [])
        bucket.append(span)
    return buckets


make = RingOverlapped
