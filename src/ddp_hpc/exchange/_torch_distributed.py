"""torch.distributed started through MPI, and one allreduce of all gradients with it."""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import TCPStore

from ddp_hpc.config.errors import LaunchError
from ddp_hpc.exchange._average import AverageThenStep
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

CONNECT_S = 60  # in which all ranks must have found rank 0
WIRES = {"full": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


def start(backend: str, comm: MPI.Intracomm, device: torch.device | None = None) -> None:
    """Make the ranks of `comm` the default group of torch.distributed. All must call; `stop` ends it.

    Rank 0 listens on a free port, and tells address and port over MPI: no fixed port, no list of nodes to parse. A
    LaunchError says that this torch has no such backend, or that rank 0 cannot be reached. A GPU, if it is
    given, connects here already: what goes wrong then is told with what to do, not in the first step.
    """
    if not getattr(dist, f"is_{backend}_available")():
        raise LaunchError(f"torch {torch.__version__} was built without {backend}: install a build that has it")
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    one_host = comm.allreduce(node.size, MPI.MIN) == comm.size
    node.Free()
    wait = timedelta(seconds=CONNECT_S)
    door = socket.create_server(("127.0.0.1" if one_host else "", 0)) if comm.rank == 0 else None
    host, port = comm.bcast(("127.0.0.1" if one_host else socket.gethostname(), door and door.getsockname()[1]))
    try:
        # it waits for all ranks: a group that is made before the last has come sometimes never is
        store = TCPStore(
            host, port, comm.size, door is not None, timeout=wait, master_listen_fd=door.detach() if door else None
        )
        with _loopback(one_host and backend == "gloo"):
            dist.init_process_group(
                backend,
                store=store,
                rank=comm.rank,
                world_size=comm.size,
                device_id=device if device is not None and device.type == "cuda" else None,
            )
    except (dist.DistError, RuntimeError) as error:
        raise LaunchError(
            f"rank {comm.rank} on {socket.gethostname()} cannot join {backend} at {host}:{port} within {CONNECT_S} s "
            f"({error}): the name must mean rank 0's host on every node, and no firewall may stand between; "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME choose the network"
        ) from None


def without_error_handling() -> AbstractContextManager[None]:
    """Start a group whose NCCL ends no process by itself: its watchdog would look at work that a CUDA graph holds."""
    return _unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def _loopback(wanted: bool) -> AbstractContextManager[None]:
    """Let gloo use the loopback interface, unless the user has chosen another; a host's name may mean no interface."""
    return _unless_set("GLOO_SOCKET_IFNAME", "lo") if wanted else nullcontext()


@contextmanager
def _unless_set(variable: str, value: str) -> Iterator[None]:
    """Set a variable of the environment meanwhile, unless the user has."""
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]


def stop(comm: MPI.Intracomm) -> None:
    """End what `start` has begun. All ranks must call.

    They wait for each other first: a rank that leaves while another still receives would keep that one for ever.
    """
    comm.Barrier()
    dist.destroy_process_group()


def all_reduce(
    replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer, backend: str, wire: str
) -> AverageThenStep:
    """Return the exchange by one all_reduce of all gradients per step, by a backend of torch.distributed.

    Nothing here makes the host wait for a GPU, so on one it can be part of a CUDA graph; when a rank arrived is not
    known there.
    """
    start(backend, comm, replica.weights.device)
    gradients, kind = replica.gradients, WIRES[wire]
    sent = gradients if kind is None else torch.empty_like(gradients, dtype=kind)

    def average() -> None:
        if not gradients.is_cuda:
            timers.arrived()
        if sent is gradients:
            dist.all_reduce(sent, op=dist.ReduceOp.AVG)
        else:  # divided first: a sum of halves may be infinite where their mean is not
            torch.mul(gradients, 1 / comm.size, out=sent)
            dist.all_reduce(sent)
            gradients.copy_(sent)

    return AverageThenStep(replica, timers, make_optimizer, average, close=lambda: stop(comm))
