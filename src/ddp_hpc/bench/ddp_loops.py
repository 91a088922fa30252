"""The training loops that a step is compared with: DistributedDataParallel as people write it, without our trainer.

On one rank; `gpu_parts` times them in turns with our own step.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ddp_hpc.data._tasks import Samples

Loop = Callable[[int], None]  # takes so many steps

WARM_UP_STEPS = 11  # that DDP needs before it can be captured, as torch's notes on CUDA graphs say


def usual(
    model: nn.Module,
    samples: Samples,
    batch_size: int,
    device: torch.device,
    loss_of: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss,
) -> Loop:
    """Return the usual loop: a DataLoader on the host that shuffles, pinned batches, DDP, and torch's Adam as it is."""
    on_gpu = device.type == "cuda"
    dataset = TensorDataset(samples.inputs.cpu(), samples.targets.cpu())
    loader = DataLoader(dataset, batch_size, shuffle=True, pin_memory=on_gpu, drop_last=True)
    wrapped = DistributedDataParallel(model.to(device), device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-4)
    batches = _forever(loader)

    def take(steps: int) -> None:
        for _ in range(steps):
            inputs, targets = (part.to(device, non_blocking=True) for part in next(batches))
            optimizer.zero_grad()
            loss = loss_of(wrapped(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return take


def _forever(loader: "DataLoader[Any]") -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def tuned(model: nn.Module, samples: Samples, batch_size: int, device: torch.device) -> Loop:
    """Return the loop tuned by hand: all data on the device, a static graph, gradients as views of DDP's buckets, a
    fused optimiser; on a GPU the whole step is captured in a CUDA graph, as torch's notes say."""
    on_gpu = device.type == "cuda"
    inputs, targets = samples.inputs.to(device), samples.targets.to(device)
    order = torch.randperm(len(inputs), device=device)
    chosen = order[:batch_size].clone()
    stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
    if on_gpu:
        stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream) if on_gpu else nullcontext():
        wrapped = DistributedDataParallel(
            model.to(device), device_ids=[device] if on_gpu else None, static_graph=True, gradient_as_bucket_view=True
        )
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-4, fused=True, capturable=on_gpu)

        def step() -> None:
            optimizer.zero_grad()
            outputs = wrapped(inputs.index_select(0, chosen))
            loss = nn.functional.mse_loss(outputs, targets.index_select(0, chosen))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        for _ in range(WARM_UP_STEPS):
            step()
    if on_gpu:
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
        step = graph.replay
    number = 0

    def take(steps: int) -> None:
        nonlocal number
        for _ in range(steps):
            start = number * batch_size % (len(order) - batch_size)
            chosen.copy_(order[start : start + batch_size])
            step()
            number += 1

    return take
