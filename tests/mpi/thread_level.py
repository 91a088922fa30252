"""A rank that says, instead of training, how many threads may call MPI: `thread_level.py ATTEMPT_DIR`."""

import sys

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402

from ddp_hpc.execution import rank  # noqa: E402
from ddp_hpc.training import trainer  # noqa: E402

LEVELS = {MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_MULTIPLE: "multiple"}


def say(*_, **__):
    raise RuntimeError(f"threads: {LEVELS[MPI.Query_thread()]}")


trainer.Trainer = say
rank.main([sys.argv[1]])
