"""A plain PyTorch DDP script, whose steps ddp-hpc records. `torchrun --nproc-per-node 2 own_ddp.py` runs it too."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddp_hpc


def arguments() -> argparse.Namespace:
    """Return the settings that the study gives on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train a small network on y = sin(x1) + x2^2."""
    asked = arguments()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")  # reads RANK, WORLD_SIZE, MASTER_ADDR, ...
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(asked.seed)  # all ranks draw the same weights, and the same global batches
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    network = nn.Sequential(nn.Linear(2, asked.width), nn.Tanh(), nn.Linear(asked.width, 1))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=asked.lr)
    samples = torch.Generator().manual_seed(asked.seed + 1)

    with ddp_hpc.recorder() as record:  # around the loop: time zero is here
        checkpoint = record.folder / "model.pt" if record.folder else None
        if checkpoint and checkpoint.exists():  # an earlier attempt was asked to end
            saved = torch.load(checkpoint, map_location=device)
            model.module.load_state_dict(saved["model"])
            record.resumed(saved["step"])
        for step in range(asked.steps):
            everyone = 4 * torch.rand(asked.batch * ranks, 2, generator=samples) - 2
            if step < record.steps:
                continue  # drawn, so that later batches are the same
            x = everyone[rank::ranks].to(device)
            y = x[:, :1].sin() + x[:, 1:] ** 2
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # DDP averages gradients in here, so exchange and computing are not told apart
            optimizer.step()
            record.step(loss=loss.item(), samples=len(x))
            stop = torch.tensor(record.should_stop, dtype=torch.uint8, device=device)
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)  # all ranks leave after the same step
            if stop:
                if rank == 0 and checkpoint:
                    torch.save({"model": model.module.state_dict(), "step": record.steps}, checkpoint)
                break
    dist.destroy_process_group()


main()
