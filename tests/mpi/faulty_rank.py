"""A rank that fails in a chosen way: `faulty_rank.py ATTEMPT_DIR HOW WHICH_RANK`, under mpiexec."""

import os
import sys
import threading
import time

import mpi4py

from ddp_hpc.execution import rank

attempt, how, which = sys.argv[1], sys.argv[2], int(sys.argv[3])


def fail():
    if how == "raise":
        raise RuntimeError("the disk is on fire")
    if how == "exit":
        sys.exit(0)
    if how == "vanish":
        os._exit(0)
    if how == "thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
    if how == "gpu memory":
        import torch

        raise torch.cuda.OutOfMemoryError("CUDA out of memory: as a device would say it")


mpi4py.rc.initialize = mpi4py.rc.finalize = False  # as rank.main does; it comes too late here
from ddp_hpc.training.trainer import Trainer  # noqa: E402


def faulty(run):
    def wrapped(self):
        def sometimes(step, loss, elapsed_s):
            if self.comm.rank == which and step == 20:
                fail()

        self.report = sometimes
        return run(self)

    return wrapped


Trainer.run = faulty(Trainer.run)
rank.main([attempt])
