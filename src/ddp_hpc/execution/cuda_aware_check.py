"""Whether MPI moves the memory of GPUs: tried by ranks started as those of the run, before these start.

A library says at most how it was built (`MPIX_Query_cuda_support`), and one that cannot ends its process by a
segmentation fault. So it is tried in processes that may die,
`python -m ddp_hpc.execution.cuda_aware_check` under an MPI launcher.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_hpc.system import commands

TIMEOUT_S = 120.0
NUMBERS = (7, 1 << 20)  # of float32: a message that is sent at once, and one for which the receiver is asked first
DEAD = {134: "SIGABRT", 135: "SIGBUS", 139: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS", -11: "SIGSEGV"}


def refusal(launcher: Sequence[str], environment: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Return why GPU memory cannot be given to MPI here; None if ranks have sent it to each other, and it was right.

    They are started by the command `launcher`, which is empty for one rank, in its environment.
    """
    said = commands.run([*launcher, sys.executable, "-m", __name__], timeout_s, environment)
    try:
        found = json.loads(said.out.strip().splitlines()[-1])["refused"]
    except (ValueError, IndexError, KeyError, TypeError):
        found = f"ranks that tried it did not come through: {DEAD.get(said.code or 0, said.last_words)}"
    return found and (
        f"gpu_path: direct gives GPU memory to MPI, which does not work here: {found}; expected: gpu_path: host, or a "
        "CUDA-aware MPI (`ddp-hpc doctor` says which one is loaded, and what it says of itself)"
    )


def _try() -> None:
    """Average known numbers in every way that uses the direct path; rank 0 prints what was wrong. All must call."""
    from mpi4py import MPI

    from ddp_hpc.training.placement import choose_slice

    comm = MPI.COMM_WORLD
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    choose_slice(os.environ, node.rank)
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    without = [rank for rank, count in enumerate(comm.allgather(found)) if not count]
    refused = f"ranks {without} of {comm.size} see no GPU" if without else None
    if not without:
        device = torch.device("cuda", node.rank % found)
        torch.cuda.set_device(device)
        wrong = comm.allgather(wrong_averages(comm, device))
        refused = next((f"rank {rank}: {words}" for rank, words in enumerate(wrong) if words), None)
    if comm.rank == 0:
        print(json.dumps({"refused": refused}), flush=True)


def wrong_averages(comm: Any, device: Any) -> str | None:
    """Return which average over the ranks of `comm` of tensors on `device` is wrong; None if all are right.

    All ranks must call, and each takes part in all of them, whatever it finds.
    """
    import torch

    from ddp_hpc.exchange._direct_bucket import bucket_average
    from ddp_hpc.exchange._direct_gather import gathered_average
    from ddp_hpc.exchange.mpi_allreduce import mpi_average
    from ddp_hpc.exchange.ring import ring_average

    wrong = None
    for average in (ring_average, mpi_average, bucket_average, gathered_average):
        for length in NUMBERS:
            numbers = torch.arange(length, dtype=torch.float32, device=device) % 1000
            mine = numbers + comm.rank**2
            average(mine, comm)
            expected = numbers + sum(rank**2 for rank in range(comm.size)) / comm.size
            if not torch.allclose(mine, expected):
                got, right = (numbers[:3].tolist() for numbers in (mine, expected))
                wrong = f"{average.__name__} of {length} numbers gave {got}..., not {right}..."
    return wrong


if __name__ == "__main__":
    _try()
