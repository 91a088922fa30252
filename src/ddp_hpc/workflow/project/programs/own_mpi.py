"""A NumPy script with mpi4py, of which ddp-hpc records the steps. `mpiexec -n 2 python own_mpi.py` runs it too."""

import argparse

import numpy as np
from mpi4py import MPI

import ddp_hpc

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--batch", type=int, default=64, help="samples per rank")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()

comm = MPI.COMM_WORLD
features = 2000
truth = np.random.default_rng(0).normal(size=features)
samples = np.random.default_rng([1, asked.seed])
weights, total = np.zeros(features), np.empty(features)

with ddp_hpc.recorder() as record:
    for _ in range(asked.steps):
        with record.phase("data"):
            x = samples.normal(size=(asked.batch * comm.size, features))[comm.rank :: comm.size]
            y = x @ truth > 0
        with record.phase("compute"):
            likely = 1 / (1 + np.exp(-(x @ weights)))
            loss = -np.log(np.where(y, likely, 1 - likely) + 1e-12).mean()
            gradient = x.T @ (likely - y) / len(x)
        with record.phase("exchange"):
            comm.Allreduce(gradient, total)
        with record.phase("update"):
            weights -= asked.lr * total / comm.size
        record.step(loss=loss, samples=len(x))
    with record.phase("evaluation"):
        x = np.random.default_rng(2).normal(size=(1000, features))
        right = ((x @ weights > 0) == (x @ truth > 0)).mean()
    record.metric(accuracy=right)
