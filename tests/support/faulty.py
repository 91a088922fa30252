"""A model that fails as it is told to, and what is needed to train with it for real."""

import json
import time

from sandbox import Sandbox

from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.state import state_of

FAULTY = '''"""A model that fails as it is told to, at its eighth step, on one rank."""

import os
import signal
import subprocess
import threading
import time

import torch
from torch import nn

from ddp_hpc.system.process import rank_from_environment
from ddp_hpc.models import mlp


def build(input_shape, outputs, *, fault: str = "none", on_rank: int = 0) -> nn.Module:
    mine = rank_from_environment() == on_rank
    if mine and fault == "before the first step":
        raise RuntimeError("no such file: weights.bin")
    return Faulty(mlp.build(input_shape, outputs), fault if mine else "none")


class Faulty(nn.Module):
    def __init__(self, model, fault):
        super().__init__()
        self.model, self.fault, self.calls = model, fault, 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.calls += self.training
        if self.fault == "slow" and "QUICK" not in os.environ:
            time.sleep(0.05)
        if self.fault == "late":
            time.sleep(0.2)
        if self.training and self.calls == 8:
            if self.fault == "clock set back":  # by an hour, as an administrator does, or a wrong time server
                epoch_s = time.time
                time.time = lambda: epoch_s() - 3600
            if self.fault == "exception":
                raise ValueError("the eighth step is bad")
            if self.fault == "exception beside a thread that lives on":
                threading.Thread(target=time.sleep, args=(600,)).start()
                raise ValueError("the eighth step is bad")
            if self.fault == "exit 0":
                raise SystemExit(0)
            if self.fault == "exit 0 at once":
                os._exit(0)
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "child that lives on":
                subprocess.Popen(["sleep", "300"], start_new_session=True)
            if self.fault == "gpu memory":
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            if self.fault == "hoard":  # 1 GiB, for long enough that Slurm looks
                self.hoarded = torch.ones(2**28)
                time.sleep(8)
            if self.fault == "host memory":
                torch.empty(2**60, dtype=torch.uint8)
        if self.fault == "last update" and self.calls == 43:  # 3 of the warm-up, 40 steps
            self.model[-1].bias.register_hook(lambda gradient: gradient * float("nan"))
        if self.fault == "hidden state":
            return self.model(x) * self.calls
        if self.fault == "buffer put in the place of another":
            self.seen = self.seen + 1
            return self.model(x) * self.seen
        y = self.model(x)
        return y * float("nan") if self.fault == "nan" and self.calls >= 8 else y
'''


def plan_one(project: Sandbox, name: str, fault: str, ranks: int, steps: int = 40, exchange: str = "ring") -> str:
    """Plan a study of one run, unlike those of the other tests, and return the run's name."""
    seed = len(list((project.root / "config" / "studies").glob("*.yaml")))
    project.study(
        name,
        f"base: {{dataset: digits, model: {{name: faulty, fault: {json.dumps(fault)}, on_rank: {ranks - 1}}}, "
        f"exchange: {exchange}, world_size: {ranks}, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1, "
        f"seed: {seed}}}\n"
        f"budget: {{steps: {steps}}}\n",
    )
    return project.plan(name, "--write")[0]["run"]


def train(project: Sandbox, run: str, ranks: int, *more: str, launcher: str | None = None):
    launcher = f"mpiexec -n {ranks}" if launcher is None else launcher
    began = time.monotonic()
    done = project.call("ddp-hpc", "train", run, "--launcher", launcher, *more)
    return done, time.monotonic() - began


def state(project: Sandbox, run: str):
    return state_of(Store(project.root / "results"), run)


def record(project: Sandbox, run: str) -> dict:
    return records.read("run", project.root / "results" / "runs" / run / "run.parquet").to_pylist()[0]


def starts_twice(project: Sandbox) -> str:
    """Return a launcher that starts its command twice, as one that does not belong to the MPI library does."""
    script = project.root / "twice"
    script.write_text('#!/bin/sh\n"$@" & first=$!; "$@"; code=$?; wait $first; exit $code\n')
    script.chmod(0o755)
    return str(script)
