"""One rank of a sweep over message sizes: `python -m ddp_hpc.bench.sweep FOLDER`, started by the launcher of runs.

It reads FOLDER/asked.json and rank 0 adds a line per sample to FOLDER/samples.jsonl, so that what was measured before
something went wrong is kept. An exchange for which the node has too little shared memory is left out from then on.

A sample is the mean of some exchanges of a flat buffer after one another, as `update()` does them with an optimiser
that does nothing, by the clock of the slowest rank. An exchange that goes on beside the backward pass cannot be called
without one: there a step is timed whose backward pass only writes its gradients, less the same step of a replica that
exchanges nothing, in the same round. Each round takes every exchange once, in another order, made anew: one is in
memory at a time, and where its buffers lie is drawn anew too.

With `work_s` a rank sleeps so long before each exchange, as if a device computed: steps are timed, nothing is copied.
On GPUs the device has done all of a sample when its clock stops, and a memory copy is one within the GPU.

What an exchange leaves to the optimiser is not in its time: where ranks share one model, as in shared_memory, the mean
goes to all ranks as the optimiser writes the model and the next forward pass reads it. Whole steps are compared by a
study, config/studies/exchange_speed.yaml.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor, nn

from ddp_hpc.bench.launch import as_rank, tell
from ddp_hpc.bench.sweep_results import COPIES, COPY_ALONE, in_words
from ddp_hpc.config import spec as specs
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.exchange._protocol import Wrap
from ddp_hpc.exchange._shared_window import NoRoomError
from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling import provenance
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.system.files import read_json, write_json
from ddp_hpc.system.terminal import counted
from ddp_hpc.training import placement

PART_BYTES = 4 << 20  # of a parameter at most, so that a large buffer can go in buckets
MOST_REPEATS = 1000
WARM_UPS = 5
ITEM_BYTES = 4  # float32
CPU = torch.device("cpu")


class Idle:
    """An optimiser that does nothing, and makes such optimisers; but what wraps an optimiser gets one of torch's."""

    def step(self) -> None:
        pass

    def __call__(self, weights: Tensor, gradients: Tensor) -> "Idle":
        return self

    def of_torch(self, parameters: Sequence[nn.Parameter], fused: bool, wrap: Wrap | None = None) -> "Idle":
        if wrap:
            wrap(torch.optim.SGD(parameters))
        return self


class _Write(torch.autograd.Function):
    """A loss whose backward pass does nothing but give each parameter its gradient."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *ignored: Tensor) -> Any:
        return None, *ctx.gradients


class Buffers(nn.Module):
    """A model of so many numbers, in parameters of at most `PART_BYTES`; its gradient is 1 everywhere."""

    def __init__(self, length: int, device: torch.device) -> None:
        super().__init__()
        part = PART_BYTES // ITEM_BYTES
        lengths = [min(part, length - start) for start in range(0, length, part)]
        self.parts = nn.ParameterList(torch.zeros(one) for one in lengths)
        self._ones = [torch.ones((), device=device).expand(one) for one in lengths]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return 0, at no cost; `inputs` are not looked at."""
        loss: Tensor = _Write.apply(self._ones, *self.parts)  # type: ignore[no-untyped-call]
        return loss


def replica_of(size: int, device: torch.device = CPU) -> Replica:
    """Return a replica whose flat tensors have just `size` bytes: without what aligns the end of the last parameter."""
    replica = Replica(Buffers(size // ITEM_BYTES, device), device, torch.float32)
    exact = slice(0, size // ITEM_BYTES)
    replica.weights, replica.gradients = replica.weights[exact], replica.gradients[exact]
    replica.gradients.fill_(1)
    return replica


def backward_pass(replica: Replica) -> None:
    """Take a step without exchange: clear the gradients, and let the backward pass write them."""
    loss = replica.forward(replica.weights)
    replica.zero_gradients()
    loss.backward()  # type: ignore[no-untyped-call]


class Timed(NamedTuple):
    """How a sample is taken: by which ranks, on what, about how long, and after what sleep before each exchange."""

    comm: MPI.Intracomm
    device: torch.device
    least_s: float = 0.0
    work_s: float = 0.0


def sample(step: Callable[[], object], how: Timed) -> tuple[float, int]:
    """Return the seconds of one `step`, on the slowest rank, and of how many that is the mean. All ranks must call.

    So many steps are timed that they take about `least_s`, at most `MOST_REPEATS`, and some are taken before.
    """
    step()
    first_s = slowest_s(step, how)
    repeats = max(1, min(MOST_REPEATS, round(how.least_s / max(first_s, 1e-9))))
    for _ in range(min(WARM_UPS, repeats - 1)):
        step()

    def some() -> None:
        for _ in range(repeats):
            step()

    return slowest_s(some, how) / repeats, repeats


def slowest_s(work: Callable[[], object], how: Timed) -> float:
    """Return the seconds of some work, to its end on the device, on the slowest rank. All ranks must call."""
    wait_for(how.device)
    how.comm.Barrier()
    began = time.perf_counter()
    work()
    wait_for(how.device)
    slowest: float = how.comm.allreduce(time.perf_counter() - began, MPI.MAX)
    return slowest


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_exchange(spec: RunSpec, size: int, how: Timed) -> dict[str, Any]:
    """Return a sample of an exchange, or of steps that sleep `how.work_s` before it. All ranks must call.

    Raises:
        NoRoomError: the node has too little shared memory, on all ranks.
        RuntimeError: the exchange failed.
    """
    name, backward_s = spec.exchange.name, None
    module = import_module(f"ddp_hpc.exchange.{name}")
    try:
        if module.OVERLAPS:
            alone = replica_of(size, how.device)
            backward_s, _ = sample(lambda: backward_pass(alone), how)
        replica = replica_of(size, how.device)
        with closing(module.make(replica, how.comm, Timers(), Idle(), **spec.exchange.options)) as exchange:

            def with_backward_pass() -> None:
                backward_pass(replica)
                exchange.update()

            def after_work() -> None:
                time.sleep(how.work_s)
                exchange.update()

            step = with_backward_pass if module.OVERLAPS else after_work if how.work_s else exchange.update
            seconds, repeats = sample(step, how)
    except NoRoomError:
        raise
    except Exception as error:
        raise RuntimeError(f"exchange {name} with {size} bytes: {error}") from error
    times = {"seconds": seconds - (backward_s or 0.0), "backward_s": backward_s, "repeats": repeats}
    return {"exchange": name, "exchange_options": spec.exchange.options_json} | times


def time_copy(what: str, size: int, how: Timed) -> dict[str, Any]:
    """Return a sample of copying `size` bytes: on rank 0 while the others wait, or on all ranks at once."""
    if how.device == CPU:
        there, here = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        copy: Callable[[], object] = lambda: np.copyto(here, there)
    else:
        source = torch.ones(size, dtype=torch.uint8, device=how.device)
        target = torch.zeros_like(source)
        copy = lambda: target.copy_(source)
    if what == COPY_ALONE:
        mine = sample(copy, how._replace(comm=MPI.COMM_SELF)) if how.comm.rank == 0 else None
        seconds, repeats = how.comm.bcast(mine)
    else:
        seconds, repeats = sample(copy, how)
    return {"exchange": what, "exchange_options": "{}", "seconds": seconds, "backward_s": None, "repeats": repeats}


def main(folder: Path) -> None:
    """Measure all that FOLDER/asked.json asks for."""
    comm, asked = MPI.COMM_WORLD, read_json(folder / "asked.json")
    ranks = counted(comm.size, "rank")
    torch.set_num_threads(1)
    exchanges = [specs.load(one) for one in asked["specs"]]
    place = placement.survey(exchanges[0], comm)
    placement.choose_slice(os.environ, place.local_rank)
    device = placement.choose_device(exchanges[0], place, comm)
    for spec in exchanges:
        placement.check_exchange(spec, place, device)
    where = {"cores": place.cores, "hosts": place.hosts, "oversubscribed": place.oversubscribed}
    if comm.rank == 0:
        software = provenance.software(MPI.Get_library_version())
        about = {name: provenance.of_rank(device)[name] for name in ("cpu", "gpu")}
        here = about | {"host": place.host, "environment": provenance.environment()}
        write_json(folder / "provenance.json", {"software": software, "source": provenance.source(), **here, **where})
    how = Timed(comm, device, asked["least_s"], asked.get("work_s", 0.0))
    items: list[RunSpec | str] = [*exchanges, *(() if how.work_s else COPIES)]
    with (folder / "samples.jsonl").open("a") as file:
        for size, turn in product(asked["sizes"], range(asked["rounds"])):
            if comm.rank == 0:
                place_of = f"size {asked['sizes'].index(size) + 1} of {len(asked['sizes'])}"
                tell(f"{ranks}: {in_words(size)}, {place_of}, round {turn + 1} of {asked['rounds']}")
            shift = turn * len(items) // asked["rounds"]
            for item in items[shift:] + items[:shift]:
                try:
                    taken = time_copy(item, size, how) if isinstance(item, str) else time_exchange(item, size, how)
                except NoRoomError as error:
                    items.remove(item)
                    if comm.rank == 0 and not isinstance(item, str):
                        tell(f"{ranks}: without {item.exchange} from {size} B on: {error}")
                    continue
                if comm.rank == 0:
                    taken |= {"world_size": comm.size, "bytes": size, "round": turn}
                    print(json.dumps(taken | where), file=file, flush=True)
    comm.Barrier()


if __name__ == "__main__":
    as_rank(main)
