"""Trainings that are asked to end, or killed, and go on from their checkpoint."""

import time
from contextlib import suppress
from pathlib import Path

import torch

from ddp_hpc.config import spec
from ddp_hpc.execution.noise_scale import NoiseSampler
from ddp_hpc.runs.attempt import CheckpointFolder
from ddp_hpc.system.process import boot_id
from ddp_hpc.training import checkpoint, placement, trainer

BASE = {
    "model": {"name": "mlp", "widths": [16]},
    "dataset": "digits",
    "exchange": "ring",
    "batch_size": 12,
    "learning_rate": 0.1,
    "budget": {"steps": 54},
    "device": "cpu",
    "threads_per_rank": 1,
}
LAUNCH = {"run": "r", "code_hash": "c", "launched_on": boot_id()}


class KilledError(Exception):
    """The rank ends without a chance to save anything."""


def run(comm, folder=None, ask_at=None, kill_at=None, every_s=0.0, owner=(), asked=(), limit=None, **fields):
    """Train on the ranks of `comm`; return the result, the replica, and what was said.

    Args:
        ask_at: (rank, step): that rank is asked to end then.
        asked: not empty: this rank is asked to end from the start.
        limit: what rank 0 knows of runs that have ended; of the others it is None.
        kill_at: the step at which all ranks are killed; result and replica are then those so far.
    """
    given, launched_ns = spec.load(BASE | {"world_size": comm.size} | fields), time.perf_counter_ns()
    place, asked, said = placement.survey(given, comm), list(asked), []
    kept = checkpoint.Checkpoints(
        folder=CheckpointFolder(folder) if folder else None,
        launch=LAUNCH | {"spec_hash": given.hash, "world_size": comm.size, "launched_ns": launched_ns} | dict(owner),
        every_s=every_s,
        startup={"import_s": 1.0 + comm.rank},
        asked=asked,
        say=said.append,
    )

    def report(step, loss, elapsed_s):
        if ask_at and (comm.rank, step) == (ask_at[0] % comm.size, ask_at[1]):
            asked.append(10)
        if step == kill_at:
            raise KilledError

    training = trainer.Trainer(given, comm, place, Path("unused"), checkpoints=kept, report=report, limit=limit)
    if given.noise_scale_every_steps:
        training.tracer = NoiseSampler(given, comm, training.result, None)
    with suppress(KilledError):
        training.run()
    return training.result, training.components.replica, said


def in_parts(comm, folder, steps, **fields):
    """Train, asked to end on one rank after the other shortly after each of `steps`, and go on; return the last."""
    for rank, step in enumerate(steps):
        result, _, _ = run(comm, folder, ask_at=(rank, step), **fields)
        assert result.interrupted
        assert result.saved
        assert result.steps == step + trainer.AGREE_EVERY_STEPS  # asked after the ranks had agreed
    return run(comm, folder, **fields)


def check_same(comm, one, other):
    """Losses, evaluations, weights and buffers of two trainings are the same on this rank."""
    (result, replica, _), (expected, weights, _) = one, other
    assert result.history().losses.tobytes() == expected.history().losses.tobytes()
    assert result.evaluations == expected.evaluations
    assert torch.equal(replica.weights, weights.weights)
    assert all(map(torch.equal, replica.buffers(), weights.buffers()))
