"""A training that stops when it is beaten, and leaves a checkpoint: if it has to go on after all, it does so there."""

from ddp_hpc.training.trainer import Trainer


class Stoppable(Trainer):
    """A trainer that was given a `limit`: the runs with which it competes."""

    def finish(self) -> None:
        """Leave a checkpoint if the training is beaten, before the exchange closes: weights may lie in its memory."""
        if self.exit == "beaten":
            self.checkpoints.save(self.steps, self.components, self.result, self.comm)
        super().finish()
