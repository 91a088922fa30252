"""Gradients summed within a node, in shared memory or by NCCL, then by a ring of the nodes' leaders."""

from typing import Literal, NamedTuple

import torch.distributed as dist
from mpi4py import MPI

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.config.errors import LaunchError
from ddp_hpc.exchange import _torch_distributed
from ddp_hpc.exchange._average import AverageThenStep
from ddp_hpc.exchange._pinned import PinnedPieces
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer
from ddp_hpc.exchange._shared_window import NoRoomError, SharedModel, mean_of, share
from ddp_hpc.exchange.ring import make_inbox, ring_allreduce
from ddp_hpc.exchange.shared_memory import SharedMemory
from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.timers import Timers

SCHEME = "hierarchical all-reduce"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "as `shared_memory` within a node, then a ring of the nodes' leaders"
MOVES_MODEL = "nobody: all read their node's, of which each updates its part"
GPU_DATA_PATH = "direct within a node, host memory between nodes"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "hierarchical"
COST_OPTIONS = ("ranks_per_group",)
UP_TO_WORLD_SIZE = ("ranks_per_group",)


class Groups(NamedTuple):
    """Communicators of this rank, and how many ranks there are in all groups."""

    group: MPI.Intracomm  # of this rank's group, whose rank 0 leads
    leaders: MPI.Intracomm  # of all groups; COMM_NULL on other ranks
    node: MPI.Intracomm  # all ranks of this node
    world_size: int

    def free(self) -> None:
        """Give the communicators back. All ranks must call."""
        for comm in (self.group, self.leaders, self.node):
            if comm != MPI.COMM_NULL:
                comm.Free()


class ThroughSharedMemory:
    """Each rank sums its part of its group's gradients; the leaders sum the groups' sums; each rank updates its part.

    What is divided is the sum over all ranks, by their number, so groups may differ in size. As in `shared_memory`
    there is one model per group, and each rank keeps the optimiser's state of its part only.
    """

    def __init__(self, replica: Replica, groups: Groups, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        group, leaders, node, self._world_size = groups
        self._groups, self._group, self._leaders, self._timers = groups, group, leaders, timers
        self._model = SharedModel(replica, group, node)
        try:
            self._window, (sums,) = share(group, len(replica.weights), replica.weights.dtype, ranks=1, node=node)
        except NoRoomError:
            self._model.close()
            raise
        self._sums = sums.numpy()
        self._inbox = make_inbox(self._sums, leaders.size) if group.rank == 0 else None
        self._work = [
            (part, self._sums[part], make_optimizer(replica.weights[part], sums[part])) for part in self._model.mine
        ]

    def update(self) -> None:
        """Go from fresh gradients to the next weights."""
        timers, group = self._timers, self._group
        timers.arrived()
        group.Barrier()
        for part, total, _ in self._work:
            mean_of(self._model.gradients, part, total, divisor=1)
        group.Barrier()
        if group.rank == 0:
            ring_allreduce(self._sums, self._leaders, inbox=self._inbox)
        group.Barrier()
        timers.mark("exchange_exposed_s")
        for _, total, optimizer in self._work:
            total /= self._world_size
            timers.mark("exchange_exposed_s")
            optimizer.step()
            timers.mark("update_s")
        group.Barrier()  # nobody computes with weights that another still writes
        timers.mark("exchange_exposed_s")

    def close(self) -> None:
        """Move weights and gradients to memory of their own; give the shared memory and communicators back."""
        self._work.clear()
        self._model.close()
        self._window.Free()
        self._groups.free()


def through_library(
    replica: Replica, groups: Groups, timers: Timers, make_optimizer: MakeOptimizer, backend: str
) -> AverageThenStep:
    """Return the exchange in which a library sums a group's gradients on its leader, and leaders sum the groups' sums.

    Every rank keeps a model of its own and updates it. A GPU's sum goes through pinned host memory for the ring.
    """
    gradients, group = replica.gradients, groups.group
    _torch_distributed.start(backend, group, replica.weights.device)
    staged = PinnedPieces(gradients) if group.rank == 0 else None
    inbox = make_inbox(staged.array, groups.leaders.size) if staged else None

    def average() -> None:
        if not gradients.is_cuda:  # there, nothing has waited for it yet
            timers.arrived()
        dist.reduce(gradients, dst=0)
        if staged:
            for piece in staged.in_pieces(Timers()):
                ring_allreduce(piece, groups.leaders, groups.world_size, inbox)
        dist.broadcast(gradients, src=0)

    def close() -> None:
        _torch_distributed.stop(group)
        groups.free()

    return AverageThenStep(replica, timers, make_optimizer, average, close=close)


def check_groups(places: list[tuple[int, int]], ranks_per_group: int) -> None:
    """Refuse groups whose ranks do not share memory; `places`: of each rank, the numbers of its group and its node."""
    for group in {group for group, _ in places}:
        ranks = [rank for rank, (other, _) in enumerate(places) if other == group]
        if (nodes := len({places[rank][1] for rank in ranks})) > 1:
            raise LaunchError(
                f"ranks_per_group={ranks_per_group}: ranks {ranks[0]} to {ranks[-1]} would form a group, but sit on "
                f"{nodes} nodes, and a group shares memory: give a number that divides the ranks of each node "
                "and place neighbouring ranks on one node, or leave it out: then each node is a group"
            )


def make(
    replica: Replica,
    comm: MPI.Intracomm,
    timers: Timers,
    make_optimizer: MakeOptimizer,
    *,
    ranks_per_group: PositiveInt | None = None,
    within: Literal["shared_memory", "gloo", "nccl"] | None = None,
) -> Exchange:
    """Return the exchange; with one group `shared_memory`, or `nccl` on GPUs. All ranks of `comm` must call.

    Args:
        ranks_per_group: so many neighbouring ranks form a group, e.g. those of a socket, the last ones perhaps a
            smaller one; None: all ranks of a node.
        within: how gradients are summed in a group; None: in shared memory on CPUs, by NCCL on GPUs.

    Raises:
        LaunchError: `within` is not for this device; a group does not share memory, or a node has too little of it.
    """
    device = replica.gradients.device.type
    allowed = ("nccl",) if device == "cuda" else ("shared_memory", "gloo")
    how = within or allowed[0]
    if how not in allowed:
        raise LaunchError(f"within={how} on {device}; expected there: {' and '.join(allowed)}")
    node = MPI.Intracomm(comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank))
    node_number = node.bcast(comm.rank)
    group_number = comm.rank // ranks_per_group if ranks_per_group else node_number
    places = comm.allgather((group_number, node_number))
    if ranks_per_group:
        check_groups(places, ranks_per_group)
    if how != "gloo" and len({group for group, _ in places}) == 1:
        node.Free()
        if how == "nccl":
            return _torch_distributed.all_reduce(replica, comm, timers, make_optimizer, how, "full")
        return SharedMemory(replica, comm, timers, make_optimizer)
    group = MPI.Intracomm(comm.Split(group_number, key=comm.rank))
    leaders = MPI.Intracomm(comm.Split(0 if group.rank == 0 else MPI.UNDEFINED, key=comm.rank))
    groups = Groups(group, leaders, node, comm.size)
    if how == "shared_memory":
        return ThroughSharedMemory(replica, groups, timers, make_optimizer)
    return through_library(replica, groups, timers, make_optimizer, how)
