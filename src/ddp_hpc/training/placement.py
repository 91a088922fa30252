"""Placement of the ranks of a run: nodes, cores, threads and GPUs."""

import itertools
import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ddp_hpc.config import catalog
from ddp_hpc.config.errors import LaunchError
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.system import cgroups

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """This rank's place among the ranks, and what its node offers."""

    rank: int
    world_size: int
    host: str
    local_rank: int  # among the ranks of this node
    hosts: int  # nodes in use
    blocks: tuple[int, ...]  # how many consecutive ranks sit on one node, then on the next
    core_set: tuple[int, ...]  # logical CPUs that this rank may use
    threads: int  # CPU threads of this rank
    cores: int  # usable on the busiest node
    oversubscribed: bool  # more ranks x threads than cores on some node
    verified: bool | None  # whether the ranks sit as the spec asks; None: it does not, or it cannot be told

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks read the same monotonic clock."""
        return self.hosts == 1


def survey(spec: RunSpec, comm: MPI.Intracomm, asked: Mapping[str, Any] | None = None) -> Placement:
    """Return where this rank sits. All ranks must call. Imports no torch, so that OMP_NUM_THREADS can follow from it.

    The cluster was `asked` for nodes, ranks_per_node and cores_per_rank, as `resources.Request` has it; None: for none.

    Raises:
        LaunchError: MPI started another number of ranks than the spec has, or on another number of nodes than asked.
    """
    if comm.size != spec.world_size:
        raise LaunchError(
            f"expected {spec.world_size} ranks, MPI reports {comm.size} (launcher or MPI build mismatch): start with "
            f"`-n {spec.world_size}` and with the launcher that belongs to {MPI.Get_library_version().split(',')[0]}"
        )
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    own = frozenset(os.sched_getaffinity(0))
    cores = cgroups.within(cgroups.cores(), len(frozenset.union(*node.allgather(own))))
    share = min(len(own), cores // node.size, asked["cores_per_rank"] if asked else cores)
    threads = spec.threads_per_rank or max(1, share)
    wanted = node.allreduce(threads)
    busiest = max(comm.allgather((wanted / cores, cores)))
    nodes = comm.allgather(node.bcast(comm.rank))  # by rank: the first rank of its node
    hosts, blocks = len(set(nodes)), tuple(len(list(ranks)) for _, ranks in itertools.groupby(nodes))
    if asked and hosts != asked["nodes"]:
        named = ", ".join(sorted(set(comm.allgather(socket.gethostname()))))
        raise LaunchError(
            f"asked for {asked['nodes']} nodes, but the {comm.size} ranks sit on {hosts} ({named}): the launcher did "
            "not take the nodes of the job; set `launcher` in the machine file to srun with the --mpi that belongs to "
            "your MPI library"
        )
    placement = Placement(
        rank=comm.rank,
        world_size=comm.size,
        host=socket.gethostname(),
        local_rank=node.rank,
        hosts=hosts,
        blocks=blocks,
        core_set=tuple(sorted(own)),
        threads=threads,
        cores=busiest[1],
        oversubscribed=busiest[0] > 1,
        verified=_verified(spec, hosts, blocks, asked["ranks_per_node"] if asked else None),
    )
    node.Free()
    return placement


def _verified(spec: RunSpec, hosts: int, blocks: tuple[int, ...], full: int | None) -> bool | None:
    """Return whether ranks sit as `placement` asks: consecutive ones together, and as many on each node.

    `full` ranks fill a node; None: unknown, so that only ranks on one node are known to be packed.
    """
    if spec.placement is None:
        return None
    if spec.placement == "spread":
        return len(blocks) == hosts and set(blocks) == {spec.ranks_per_node}
    if full is None:
        return True if hosts == 1 else None
    return len(blocks) == hosts and set(blocks[:-1]) <= {full} and blocks[-1] <= full


def choose_slice(environment: MutableMapping[str, str], local_rank: int) -> None:
    """Leave this rank its own of the MIG slices that CUDA may use: a process sees no more than one, the first.

    Call it before torch is imported.
    """
    visible = environment.get(VISIBLE, "").split(",")
    if all(name.strip().startswith("MIG-") for name in visible):
        environment[VISIBLE] = visible[local_rank % len(visible)].strip()


def choose_device(spec: RunSpec, placement: Placement, comm: MPI.Intracomm) -> "torch.device":
    """Return this rank's device and make it current: a GPU where there are GPUs, chosen by local rank, else the CPU.

    Raises:
        LaunchError: a GPU was asked for and there is none; only some ranks have one; two ranks got the same one, and
            the spec or its exchange does not allow that.
    """
    import torch

    found = torch.cuda.device_count() if spec.device != "cpu" and torch.cuda.is_available() else 0
    if spec.device == "cuda" and not found:
        raise LaunchError(
            f"device: cuda, but torch sees no GPU on {placement.host} ({VISIBLE}="
            f"{os.environ.get(VISIBLE, 'unset')}, torch {torch.__version__}): "
            "ask the scheduler for one GPU per rank, or leave `device` out"
        )
    device = torch.device("cuda", placement.local_rank % found) if found else torch.device("cpu")
    name = str(torch.cuda.get_device_properties(device).uuid) if found else None
    if name and (own := os.environ.get(VISIBLE, "")).startswith("MIG-"):
        name = own  # torch may show the UUID of the whole GPU
    check_gpus(comm.allgather((placement.host, name)), spec)
    if found:
        torch.cuda.set_device(device)
    return device


def check_exchange(spec: RunSpec, placement: Placement, device: "torch.device") -> None:
    """Refuse an exchange that cannot work on these hosts or this device, as its file's ONE_NODE and DEVICES say.

    Raises:
        LaunchError: naming the exchanges that can.
    """
    name = spec.exchange.name
    if catalog.constants("exchange", name).get("ONE_NODE") and placement.hosts > 1:
        able = _exchanges_without("ONE_NODE", "MAX_WORLD_SIZE")
        raise LaunchError(
            f"exchange {name!r} works within one node, its ranks share memory; the {placement.world_size} ranks sit on "
            f"{placement.hosts} hosts: start them on one, or take one of {', '.join(able)}"
        )
    devices = catalog.devices(name, spec.exchange.options)
    if device.type not in devices:
        able = [other for other in _exchanges_without() if device.type in catalog.devices(other)]
        raise LaunchError(
            f"exchange {str(spec.exchange)!r} works on {' and '.join(devices)}, and this run is on {device.type}: "
            f"expected here: {', '.join(able)}"
        )


def _exchanges_without(*flags: str) -> list[str]:
    constants = {name: catalog.constants("exchange", name) for name in catalog.readable("exchange")}
    return [name for name, found in constants.items() if not any(found.get(flag) for flag in flags)]


def check_gpus(places: list[tuple[str, str | None]], spec: RunSpec) -> None:
    """Refuse a list of (host, GPU UUID) by rank in which only some ranks have a GPU, or one stands twice.

    Before the exchange starts, because NCCL says of the latter no more than `invalid usage`.
    """
    without = [rank for rank, (_, gpu) in enumerate(places) if gpu is None]
    if without and len(without) < len(places):
        raise LaunchError(
            f"ranks {without} of {len(places)} see no GPU, the others do: give every rank one GPU, or set `device: cpu`"
        )
    owner: dict[tuple[str, str], int] = {}
    for rank, (host, gpu) in enumerate(places):
        if gpu is None or (first := owner.setdefault((host, gpu), rank)) == rank:
            continue
        shared = f"ranks {first} and {rank} share GPU {gpu} on {host}"
        if not spec.share_gpu:
            raise LaunchError(
                f"{shared}: each rank needs a GPU of its own; start fewer ranks per node, make all GPUs of the node "
                f"visible to its ranks (MIG slices: by name, in {VISIBLE}), or allow it with `share_gpu: true`"
            )
        if catalog.constants("exchange", spec.exchange.name).get("ONE_GPU_EACH"):
            others = _exchanges_without("ONE_GPU_EACH", "MAX_WORLD_SIZE")
            able = [name for name in others if "cuda" in catalog.devices(name)]
            raise LaunchError(
                f"{shared}, which exchange {spec.exchange.name!r} cannot: NCCL takes one rank per GPU; "
                f"expected here, by MPI: {', '.join(able)}"
            )
