"""A baseline: Horovod's DistributedOptimizer as people use it, where Horovod is installed."""

from importlib import import_module
from typing import Any

import torch
from mpi4py import MPI

from ddp_hpc.config.errors import LaunchError
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "all-reduce"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "Horovod, bucket by bucket, beside the backward pass"
MOVES_MODEL = "nobody: each rank updates its own"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = False  # which gradients travel together depends on when they are ready
OVERLAPS = True
CAPTURABLE = False
COST = "ring"
PACKAGE = "horovod"
THREADS = "multiple"  # a thread of its own calls MPI


class Horovod:
    """Hooks of Horovod send each gradient when the backward pass has computed it; `synchronize` waits for all.

    Whether Horovod is there is seen only now: planning may happen on another machine than training.

    Source: Sergeev and Del Balso, Horovod, arXiv:1802.05799 (2018).
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        try:
            horovod = import_module("horovod.torch")
        except ImportError as error:
            raise LaunchError(
                f"exchange 'horovod' needs the package horovod, built with MPI for torch {torch.__version__} "
                f"({error}): install it (HOROVOD_WITH_MPI=1 HOROVOD_WITH_PYTORCH=1 pip install horovod), or take "
                "torch_ddp, nccl, mpi_allreduce or ring"
            ) from None
        self._timers, self._on_cpu = timers, not replica.weights.is_cuda
        horovod.init(comm)
        named = [(name, weights) for name, weights in replica.model.named_parameters() if weights.requires_grad]
        self._distributed: Any = None

        def distributed(rule: torch.optim.Optimizer) -> torch.optim.Optimizer:
            self._distributed = horovod.DistributedOptimizer(rule, named_parameters=named)
            return self._distributed  # type: ignore[no-any-return]

        self._optimizer = make_optimizer.of_torch([weights for _, weights in named], fused=False, wrap=distributed)
        replica.wrap(replica.model)
        self.close = horovod.shutdown  # ends its thread

    def update(self) -> None:
        """Wait for the mean gradients, then take the optimiser's step."""
        if self._on_cpu:
            self._timers.arrived()
        self._distributed.synchronize()
        self._timers.mark("exchange_exposed_s")
        with self._distributed.skip_synchronize():
            self._optimizer.step()
        self._timers.mark("update_s")


make = Horovod
