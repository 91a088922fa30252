"""Gradients averaged by MPI's own Allreduce: in one blocking call, in buckets, or compressed."""

from typing import Literal

import numpy as np
import torch
from mpi4py import MPI

from ddp_hpc.config.catalog import Megabytes, Share
from ddp_hpc.exchange._average import Average, AverageThenStep, where_they_lie
from ddp_hpc.exchange._compression import Wire, make_wire
from ddp_hpc.exchange._pinned import PinnedPieces, when_ready
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

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
COST = "allreduce"
COMPRESSES = {"compression": ("float16", "bfloat16", "top_k")}
CUDA_AWARE = {"gpu_path": ("direct",)}
ONLY_WITH = {
    "bucket_mb": {"compression": ("none",), "gpu_path": ("host",)},
    "kept": {"compression": ("top_k",)},
    "gpu_path": {"compression": ("none",)},
}


def mpi_average(buffer: torch.Tensor, comm: MPI.Intracomm) -> None:
    """Average a flat tensor over the ranks of `comm`, in place, where it lies."""
    comm.Allreduce(MPI.IN_PLACE, buffer)
    buffer /= comm.size


def in_host_memory(replica: Replica, comm: MPI.Intracomm, timers: Timers) -> Average:
    """Return the average by one Allreduce, or one per piece of what is staged from a GPU."""
    gradients = PinnedPieces(replica.gradients)

    def average() -> None:
        for piece in gradients.in_pieces(timers):
            comm.Allreduce(MPI.IN_PLACE, piece)
            piece /= comm.size

    return average


def in_buckets(replica: Replica, comm: MPI.Intracomm, timers: Timers, bucket_bytes: float) -> Average:
    """Return the average by one Iallreduce per bucket, all in flight together: one is divided while others travel."""
    whole, length = len(replica.gradients), max(1, int(bucket_bytes / replica.gradients.element_size()))
    bounds = [slice(start, min(start + length, whole)) for start in range(0, whole, length)]
    gradients = PinnedPieces(replica.gradients, bounds)

    def average() -> None:
        gradients.begin(timers)
        buckets = range(len(gradients.pieces))
        requests = [comm.Iallreduce(MPI.IN_PLACE, gradients.ready(number)) for number in buckets]
        for number, request in zip(buckets, requests, strict=True):
            request.Wait()
            gradients.pieces[number] /= comm.size
            gradients.give_back(number)
        gradients.join()

    return average


def compressed(replica: Replica, comm: MPI.Intracomm, timers: Timers, wire: Wire) -> Average:
    """Return the average of compressed gradients: all ranks gather all, and sum them by rank to the same bits."""
    gradients, inbox = replica.gradients, np.empty((comm.size, wire.bytes_per_message), dtype=np.uint8)

    def average() -> None:
        when_ready(gradients)
        timers.arrived()
        comm.Allgather(wire.encode(gradients), inbox)
        gradients.zero_()
        for message in inbox:
            wire.add_to(gradients, message)
        gradients.div_(comm.size)

    return average


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
) -> AverageThenStep:
    """Return the exchange; all ranks of `comm` must call.

    Args:
        bucket_mb: None: one blocking Allreduce; else non-blocking ones of so many MB (1e6 bytes) each.
        compression: form of the gradients in a message, see `_compression`. Each rank sends its own to all others, so
            float16 saves bytes against an allreduce on up to 3 ranks, top_k on up to 1/kept or so.
        kept: which part of the gradients top_k sends.
        gpu_path: of the gradients of a GPU: through pinned host memory, or given to MPI as they lie, which must be
            CUDA-aware; that is tried before the training starts.
    """
    if compression != "none":
        wire = make_wire(compression, replica.gradients, kept)
        average = compressed(replica, comm, timers, wire)
        return AverageThenStep(replica, timers, make_optimizer, average, state=wire.state)
    if gpu_path == "direct":
        average = where_they_lie(replica, comm, timers, mpi_average)
    elif bucket_mb is not None:
        average = in_buckets(replica, comm, timers, 1e6 * bucket_mb)
    else:
        average = in_host_memory(replica, comm, timers)
    return AverageThenStep(replica, timers, make_optimizer, average)
