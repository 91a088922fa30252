"""Gradients averaged by NCCL, one all_reduce: the library of NVIDIA GPUs."""

from typing import Literal

from mpi4py import MPI

from ddp_hpc.exchange._average import AverageThenStep
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.exchange._torch_distributed import all_reduce
from ddp_hpc.models._replica import Replica

SCHEME = "all-reduce"
COMPUTES = "all ranks, on GPUs"
MOVES_GRADIENTS = "NCCL, between all GPUs"
MOVES_MODEL = "nobody: each rank updates its own"
GPU_DATA_PATH = "direct"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = True
COST = "ring"
COMPRESSES = {"wire": ("float16", "bfloat16")}
GRADIENT_PATH = "device memory, by NCCL"
DEVICES = ("cuda",)
ONE_GPU_EACH = True


def make(
    replica: Replica,
    comm: MPI.Intracomm,
    timers: Timers,
    make_optimizer: MakeOptimizer,
    *,
    wire: Literal["full", "float16", "bfloat16"] = "full",
) -> AverageThenStep:
    """Return the exchange; all ranks of `comm` must call.

    Args:
        wire: how gradients travel, and are added: as they are, or divided by the ranks and rounded to 16 bits; float16
            has none beyond 65504.
    """
    return all_reduce(replica, comm, timers, make_optimizer, "nccl", wire)
