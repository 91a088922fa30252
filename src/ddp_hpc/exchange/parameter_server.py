"""Rank 0 serves beside computing: it gathers all gradients, averages them, steps, and broadcasts the weights."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config.catalog import Share
from ddp_hpc.exchange._compression import Compression, make_wire
from ddp_hpc.exchange._direct_gather import Direct, DirectGather
from ddp_hpc.exchange._pinned import Pinned, when_ready
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer, Timers
from ddp_hpc.exchange._server import GRADIENTS, Collector, send
from ddp_hpc.models._replica import Replica

SCHEME = "parameter server"
COMPUTES = "all ranks; rank 0 serves too"
MOVES_GRADIENTS = "all ranks to rank 0, which averages"
MOVES_MODEL = "rank 0 to all ranks"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "parameter_server"
COMPRESSES = {"compression": ("float16", "bfloat16", "top_k")}
CUDA_AWARE = {"gpu_path": ("direct",)}
ONLY_WITH = {"kept": {"compression": ("top_k",)}, "gpu_path": {"compression": ("none",)}}


class Gather:
    """Gradients go to rank 0 as they are, in pieces."""

    def __init__(self, gradients: Tensor, comm: MPI.Intracomm) -> None:
        self._gradients, self._comm = Pinned(gradients), comm
        self._collector = Collector(self._gradients.array, comm) if comm.rank == 0 else None
        self.state: Callable[[], list[Tensor]] = list  # nothing is kept

    def send(self) -> None:
        """Send this rank's gradients."""
        self._gradients.pull()
        MPI.Request.Waitall(send(self._gradients.array, self._comm, server=0))

    def mean(self, timers: Timers) -> None:
        """Overwrite rank 0's gradients with the mean of all."""
        assert self._collector is not None, "only rank 0 serves"
        self._collector.listen()
        self._gradients.pull()
        self._collector.mean(timers)
        self._gradients.push()


class CompressedGather:
    """Gradients go to rank 0 in fewer bytes, except its own, which go nowhere."""

    def __init__(self, gradients: Tensor, comm: MPI.Intracomm, compression: Compression, kept: float) -> None:
        self._gradients, self._comm = gradients, comm
        self._wire = make_wire(compression, gradients, kept)
        senders = comm.size - 1 if comm.rank == 0 else 0
        self._room = np.empty((senders, self._wire.bytes_per_message), np.uint8)
        self.state = self._wire.state

    def send(self) -> None:
        """Send this rank's gradients."""
        self._comm.Send(self._wire.encode(self._gradients), 0, GRADIENTS)

    def mean(self, timers: Timers) -> None:
        """Overwrite rank 0's gradients with the mean of all, added in the order of the ranks."""
        arriving = [self._comm.Irecv(row, rank, GRADIENTS) for rank, row in enumerate(self._room, start=1)]
        for request, row in zip(arriving, self._room, strict=True):
            request.Wait()
            timers.mark("exchange_exposed_s", "gather_s")
            self._wire.add_to(self._gradients, row)
            timers.mark("exchange_exposed_s", "average_s")
        self._gradients /= self._comm.size
        timers.mark("exchange_exposed_s", "average_s")


class ParameterServer(Exchange):
    """The scheme of SHM-Learn-Dist (Biswas, 2017), section 6, steps 3 to 6, with the three times that it publishes.

    All goes through rank 0, which takes in (n-1) times the gradients. What it waits for counts as gathering; elsewhere
    gathering is sending, and distributing is to wait for the weights and to receive them.

    Args:
        compression: how gradients are sent, which must have more than two bytes each; weights go out in full.
        kept: which part of the gradients `top_k` sends in a step.
        gpu_path: of what lies on a GPU: through pinned host memory, or given to MPI as it lies, which must be
            CUDA-aware; that is tried before the training starts.
    """

    def __init__(
        self,
        replica: Replica,
        comm: MPI.Intracomm,
        timers: Timers,
        make_optimizer: MakeOptimizer,
        *,
        compression: Literal["none", "float16", "bfloat16", "top_k"] = "none",
        kept: Share = 0.01,
        gpu_path: Literal["host", "direct"] = "host",
    ) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        direct, gradients = gpu_path == "direct", replica.gradients
        self._weights: Pinned | Direct = Direct(replica.weights) if direct else Pinned(replica.weights)
        self._gradients: Gather | DirectGather | CompressedGather
        if compression != "none":
            self._gradients = CompressedGather(gradients, comm, compression, kept)
        else:
            self._gradients = DirectGather(gradients, comm) if direct else Gather(gradients, comm)
        self.state = self._gradients.state
        if comm.rank == 0:
            self._optimizer = make_optimizer(replica.weights, replica.gradients)

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        when_ready(self._replica.gradients)
        self._timers.arrived()
        if self._comm.rank == 0:
            self._gradients.mean(self._timers)
            self._optimizer.step()
            self._timers.mark("update_s")
            self._weights.pull()
        else:
            self._gradients.send()
            self._timers.mark("exchange_exposed_s", "gather_s")
        self._comm.Bcast(self._weights.array)
        if self._comm.rank != 0:
            self._weights.push()
        self._timers.mark("exchange_exposed_s", "distribute_s")


make = ParameterServer
