"""Datasets and tasks: the loss that is trained and the metric that is reported."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Inputs and their targets; the first axis of both counts the samples.

    Inputs are floats, or tokens: int64, samples x context. Targets are class numbers, int64, 1-D; for a regression
    floats, samples x outputs; for tokens the next of each, like the inputs.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


def next_tokens(rows: NDArray[np.integer]) -> Samples:
    """Return the tokens of each row but the last as inputs, and of each row but the first as targets; both int64."""
    tokens = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
    return Samples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


@dataclass(frozen=True)
class Task:
    """How outputs are judged.

    `loss` is the mean over the samples and is trained, unless the model's file has a function `loss` of its own.
    `metric_sum` is the sum over the samples, so that parts of a test set can be added.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    metric: str
    metric_sum: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Dataset:
    """What is trained on, and what is tested on."""

    train: Samples
    test: Samples
    task: Task | None = None  # None: that of the TASK of its file; else how these samples are judged

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.inputs.shape[1:])


# a dataset's TASK; the metric is the share of correct classes, the mean square error, or the share of correct tokens
TASKS = {
    "classification": Task(F.cross_entropy, "accuracy", lambda out, targets: (out.argmax(dim=1) == targets).sum()),
    "regression": Task(F.mse_loss, "error", lambda out, targets: (out - targets).square().flatten(1).mean(dim=1).sum()),
    "next_token": Task(  # outputs: samples x context x vocabulary
        lambda out, targets: F.cross_entropy(out.flatten(0, 1), targets.flatten()),
        "accuracy",
        lambda out, targets: (out.argmax(dim=-1) == targets).double().mean(dim=1).sum(),
    ),
}
