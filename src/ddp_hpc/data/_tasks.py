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


def check_samples(name: str, kind: str, outputs: int, dataset: Dataset) -> None:
    """Raise a ValueError if samples of the task `kind` are not what training takes for granted."""
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        inputs, targets = samples.inputs, samples.targets
        of = f"dataset {name}: the {part} samples have"
        if not len(inputs) or len(inputs) != len(targets):
            raise ValueError(
                f"{of} {len(inputs)} inputs and {len(targets)} targets, expected: as many of both, at least 1"
            )
        for what, values in (("inputs", inputs), ("targets", targets)):
            if values.is_floating_point() and not (values.sum().isfinite() or values.isfinite().all()):
                broken = int((~values.isfinite().flatten(1).all(dim=1)).sum()) if values.dim() > 1 else "some"
                raise ValueError(f"{of} {what} that are not finite (in {broken} of {len(values)}), expected: numbers")
        if kind == "regression":
            if not targets.is_floating_point():
                raise ValueError(f"{of} targets of {targets.dtype}, expected for a regression: floats")
            continue
        dims = 1 if kind == "classification" else 2
        if targets.dtype != torch.int64 or targets.dim() != dims:
            raise ValueError(
                f"{of} targets of {targets.dtype} and shape {tuple(targets.shape)}, expected for {kind}: int64 in "
                f"{dims} dimension{'s' * (dims > 1)}"
            )
        least, most = int(targets.min()), int(targets.max())
        if least < 0 or most >= outputs:
            raise ValueError(f"{of} classes {least} to {most}, expected: 0 to {outputs - 1} (its OUTPUTS is {outputs})")


def check_outputs(name: str, kind: str, outputs: int | None, given: Tensor, targets: Tensor) -> None:
    """Raise a ValueError if a model's outputs do not fit the targets: torch would broadcast, and train something else.

    Args:
        name: of the model.
        kind: of the task.
        outputs: of the dataset: classes, or numbers of a regression. None: the model's own loss takes any number.
        given: by the model, for some samples, in evaluation.
        targets: of these samples.
    """
    expected = tuple(targets.shape) if kind == "regression" else (*targets.shape, outputs)
    if isinstance(given, Tensor) and outputs is None and kind != "regression":
        expected = (*targets.shape, *given.shape[-1:])
    if not isinstance(given, Tensor) or not given.is_floating_point() or tuple(given.shape) != expected:
        found = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"model {name} gives {found} for {len(targets)} samples with targets of shape {tuple(targets.shape)}, "
            f"expected for {kind}: floats of shape {expected}"
        )
    if not given.isfinite().all():
        raise ValueError(f"model {name} gives outputs that are not finite before any step, expected: numbers")


def chance(task: Task, kind: str, outputs: int, dataset: Dataset) -> float:
    """Return the test metric of the best constant answer: the mean, or the most frequent class, of the train targets.

    A model that is no better has learnt nothing from its inputs.
    """
    train, test = dataset.train.targets, dataset.test.targets
    if kind == "regression":
        answers = train.mean(dim=0).expand_as(test)
    else:
        most = train.flatten().bincount(minlength=outputs).argmax()
        answers = F.one_hot(most, outputs).to(torch.float32).expand(*test.shape, outputs)
    return float(task.metric_sum(answers, test)) / len(test)


# a dataset's TASK; the metric is the share of correct classes, the mean square error, or the share of correct tokens
TASKS = {
    "classification": Task(F.cross_entropy, "accuracy", lambda out, targets: (out.argmax(dim=1) == targets).sum()),
    "regression": Task(
        F.mse_loss, "error", lambda out, targets: (out - targets).square().reshape(len(out), -1).mean(dim=1).sum()
    ),
    "next_token": Task(  # outputs: samples x context x vocabulary
        lambda out, targets: F.cross_entropy(out.flatten(0, 1), targets.flatten()),
        "accuracy",
        lambda out, targets: (out.argmax(dim=-1) == targets).double().mean(dim=1).sum(),
    ),
}
