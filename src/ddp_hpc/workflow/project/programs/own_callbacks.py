"""A trainer that calls back, as Hugging Face's and Lightning's do, and the callback that records its steps."""

import argparse
import random

from mpi4py import MPI

import ddp_hpc


class RecordingCallback:
    """Records the steps of a trainer.

    For Hugging Face derive it from transformers.TrainerCallback, whose calls have these names, and take the loss from
    `on_log`; for Lightning from Callback, and call them on_train_start, on_train_batch_end and on_train_end.
    """

    def on_train_begin(self) -> None:
        """Time zero."""
        self.record = ddp_hpc.recorder().__enter__()

    def on_step_end(self, loss: float, samples: int) -> bool:
        """A step is over; return whether to stop."""
        self.record.step(loss=loss, samples=samples)
        return self.record.should_stop

    def on_train_end(self, error: float) -> None:
        """The training is over."""
        self.record.metric(error=error)
        self.record.__exit__(None, None, None)


class LibraryTrainer:
    """Fits y = 3x by stochastic gradient descent on all ranks: in place of a trainer of a library."""

    def __init__(self, callback: RecordingCallback, rate: float, batch: int, steps: int) -> None:
        self.callback, self.rate, self.batch, self.steps = callback, rate, batch, steps

    def train(self) -> None:
        """Train, and call back."""
        ranks = MPI.COMM_WORLD
        slope, samples = 0.0, random.Random(ranks.rank)
        self.callback.on_train_begin()
        for _ in range(self.steps):
            xs = [samples.uniform(-1, 1) for _ in range(self.batch)]
            errors = [slope * x - 3 * x for x in xs]
            loss = sum(error * error for error in errors) / self.batch  # ** raises where this becomes infinite
            gradient = sum(2 * x * error for x, error in zip(xs, errors, strict=True)) / self.batch
            slope -= self.rate * ranks.allreduce(gradient) / ranks.size
            if self.callback.on_step_end(loss, self.batch):
                break
        self.callback.on_train_end(error=abs(slope - 3))


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=200)
asked = parser.parse_args()
LibraryTrainer(RecordingCallback(), asked.lr, asked.batch, asked.steps).train()
