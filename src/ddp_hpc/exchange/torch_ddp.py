"""A baseline: DistributedDataParallel of torch as people use it, over NCCL on GPUs and Gloo on CPUs."""

import gc
from contextlib import nullcontext

from mpi4py import MPI
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddp_hpc.config.catalog import Megabytes
from ddp_hpc.exchange import _torch_distributed as group
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "all-reduce"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "DistributedDataParallel, bucket by bucket, beside the backward pass"
MOVES_MODEL = "nobody: each rank updates its own"
GPU_DATA_PATH = "direct"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = True
CAPTURABLE = False
CAPTURED = {"captured": (True,)}
ONLY_WITH = {"captured": {"tuned": (True,), "find_unused_parameters": (False,)}}
WARM_UP_STEPS = 11
COST = "ring"
GRADIENT_PATH = "device memory, by NCCL"
WAITS_IN_BACKWARD = True
ONE_GPU_EACH = True


class TorchDdp:
    """DDP wraps the model and exchanges in the backward pass, bucket by bucket; a `torch.optim` optimiser steps.

    Args:
        tuned: as its documentation advises for models that never change: static graph, gradients as views of the
            buckets, a fused optimiser.
        captured: the whole step is one CUDA graph, as torch's notes on CUDA graphs have it: DDP is made, and takes 11
            steps (it times the first ten), in the stream that is then captured, without c10d's own handling of errors.
            On GPUs only. Phases of a step are not told apart, for a graph cannot be cut within a backward pass.
        find_unused_parameters: some parameters may have no gradient in some step on some rank.
        bucket_mb: MB (1e6 bytes) of a bucket; None: torch's own, 25 MiB, the first 1 MiB.

    Source: Li et al., PyTorch Distributed, VLDB 13(12), 2020;
    https://docs.pytorch.org/docs/stable/notes/cuda.html#usage-with-distributeddataparallel
    """

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        *,
        tuned: bool = False,
        captured: bool = False,
        find_unused_parameters: bool = False,
        bucket_mb: Megabytes | None = None,
    ) -> None:
        device = replica.weights.device
        with group.without_error_handling() if captured else nullcontext():
            group.start("nccl" if device.type == "cuda" else "gloo", comm, device)
        self._replica, self._comm, self._timers = replica, comm, timers
        # the clock's own hook: what follows the last of them in the backward pass is waiting for the exchange
        self._hooks = [
            span.parameter.register_post_accumulate_grad_hook(self._computed)  # type: ignore[no-untyped-call]
            for span in replica.spans
        ]
        self._on_cpu = device.type == "cpu"
        self._optimizer = make_optimizer.of_torch([span.parameter for span in replica.spans], fused=tuned)
        module = DistributedDataParallel(
            replica.model,
            device_ids=None if self._on_cpu else [device],
            bucket_cap_mb=None if bucket_mb is None else bucket_mb * 1e6 / 2**20,  # which is in MiB
            find_unused_parameters=find_unused_parameters,
            static_graph=tuned,
            gradient_as_bucket_view=tuned,
        )
        replica.wrap(module)

    def _computed(self, parameter: Tensor) -> None:
        self._timers.mark("backward_s")
        if self._on_cpu:
            self._timers.arrived()

    def update(self) -> None:
        """Take the optimiser's step: the backward pass has left the mean gradients."""
        self._optimizer.step()
        self._timers.mark("update_s")

    def close(self) -> None:
        """Leave the group."""
        for hook in self._hooks:
            hook.remove()
        # DDP goes before the group: if its reducer held the group last, it would end the group's threads with Python's
        # lock in its hand, for which they wait
        self._replica.wrap(self._replica.model)
        gc.collect()
        group.stop(self._comm)


make = TorchDdp
