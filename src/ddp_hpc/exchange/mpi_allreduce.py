"""Gradients averaged by MPI's own Allreduce: in one blocking call, in buckets, or compressed."""

from typing import Literal

import numpy as np
import torch
from mpi4py import MPI

from ddp_hpc.config.catalog import Megabytes, Share
from ddp_hpc.exchange._compression import Wire, make_wire
from ddp_hpc.exchange._cuda_aware import Direct
from ddp_hpc.exchange._pinned import PinnedPieces, when_ready
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer
from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.timers import Timers

SCHEME = "all-reduce"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "MPI, between all ranks"
MOVES_MODEL = "nobody: each rank updates its own"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
ON_GPUS = {"gpu_path": ("direct",)}
ONLY_WITH = {
    "bucket_mb": {"compression": ("none",), "gpu_path": ("host",)},
    "kept": {"compression": ("top_k",)},
    "gpu_path": {"compression": ("none",)},
}


def mpi_average(buffer: torch.Tensor, comm: MPI.Intracomm) -> None:
    """Average a flat tensor over the ranks of `comm`, in place, where it lies."""
    comm.Allreduce(MPI.IN_PLACE, buffer)
    buffer /= comm.size


class MpiAllreduce:
    """One Allreduce per step, or one per piece of what is staged from a GPU, then the optimiser."""

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._gradients = PinnedPieces(replica.gradients)
        self._comm, self._timers = comm, timers
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        for piece in self._gradients.in_pieces(self._timers):
            self._comm.Allreduce(MPI.IN_PLACE, piece)
            piece /= self._comm.size
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Nothing is held."""


class InBuckets:
    """One Iallreduce per bucket, all in flight together: one is divided while others are still on their way."""

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        bucket_bytes: float,
    ) -> None:
        whole, length = len(replica.gradients), max(1, int(bucket_bytes / replica.gradients.element_size()))
        bounds = [slice(start, min(start + length, whole)) for start in range(0, whole, length)]
        self._gradients = PinnedPieces(replica.gradients, bounds)
        self._comm, self._timers = comm, timers
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        gradients, buckets = self._gradients, range(len(self._gradients.pieces))
        gradients.begin(self._timers)
        requests = [self._comm.Iallreduce(MPI.IN_PLACE, gradients.ready(number)) for number in buckets]
        for number, request in zip(buckets, requests, strict=True):
            request.Wait()
            gradients.pieces[number] /= self._comm.size
            gradients.give_back(number)
        gradients.join()
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Nothing is held."""


class CompressedAllgather:
    """All ranks gather all messages, and each sums them by rank: every rank gets the same bits."""

    def __init__(
        self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer, wire: Wire
    ) -> None:
        self._gradients, self._wire = replica.gradients, wire
        self._inbox = np.empty((comm.size, wire.bytes_per_message), dtype=np.uint8)
        self._comm, self._timers = comm, timers
        self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        when_ready(self._gradients)
        self._timers.arrived()
        self._comm.Allgather(self._wire.encode(self._gradients), self._inbox)
        self._gradients.zero_()
        for message in self._inbox:
            self._wire.add_to(self._gradients, message)
        self._gradients /= self._comm.size
        self._timers.mark("exchange_exposed_s")
        self._optimizer.step()
        self._timers.mark("update_s")

    def state(self) -> list[torch.Tensor]:
        """Return what compression keeps from step to step."""
        return self._wire.state()

    def close(self) -> None:
        """Nothing is held."""


def make(
    replica: Replica,
    comm: MPI.Intracomm,
    timers: Timers,
    make_optimizer: MakeOptimizer,
    *,
    bucket_mb: Megabytes | None = None,
    compression: Literal["none", "float16", "bfloat16", "top_k"] = "none",
    kept: Share = 0.01,
    gpu_path: Literal["host", "direct"] = "host",
) -> Exchange:
    """Return the exchange; all ranks of `comm` must call.

    Args:
        bucket_mb: None: one blocking Allreduce; else non-blocking ones of so many MB (1e6 bytes) each.
        compression: form of the gradients in a message, see `_compression`. Each rank sends its own to all others, so
            float16 saves bytes against an allreduce on up to 3 ranks, top_k on up to 1/kept or so.
        kept: which part of the gradients top_k sends.
        gpu_path: of the gradients of a GPU: through pinned host memory, or given to MPI as they lie, which must be
            CUDA-aware; that is tried before the training starts.
    """
    if gpu_path == "direct":
        return Direct(replica, comm, timers, make_optimizer, mpi_average)
    if compression == "none":
        if bucket_mb is None:
            return MpiAllreduce(replica, comm, timers, make_optimizer)
        return InBuckets(replica, comm, timers, make_optimizer, 1e6 * bucket_mb)
    return CompressedAllgather(replica, comm, timers, make_optimizer, make_wire(compression, replica.gradients, kept))
