"""A single sigmoid neuron with one input: the smallest model whose gradient noise can be watched."""

from typing import Literal

import torch
from torch import Tensor, nn

INPUT_SHAPE = (1,)


class Neuron(nn.Module):
    """sigmoid(w x), or sigmoid(w x + b)."""

    def __init__(self, bias: bool, published: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1))
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None
        self.published = published

    def forward(self, x: Tensor) -> Tensor:
        """Return samples x 1, in (0, 1), for samples x 1; in training, for the published loss, with x beside it."""
        z = x * self.weight
        y = torch.sigmoid(z if self.bias is None else z + self.bias)
        return torch.cat([y, x], dim=1) if self.published and self.training else y


def build(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    bias: bool = False,
    loss: Literal["absolute", "published"] = "absolute",
) -> nn.Module:
    """Return the neuron: weight from U[0, 1), bias (if any) 0.

    Without a bias it cannot step at 0.5, so its loss has a high floor.

    Args:
        input_shape, outputs: of a dataset whose samples are single numbers with a single target.
        bias: whether it has one; the published neuron has none.
        loss: of training steps. absolute: the mean of |output - target|. published: what the source's script records,
            which has x itself in the place of the output where the target is 0. Weights descend the absolute error
            either way, as they do in that script, and a test set's loss is always the absolute error.

    Raises:
        ValueError: samples are not single numbers with a single target.

    Source: Biswas, SHM-Learn-Dist (2017), section 3, and data_parallel_demo.py in its repository SHM-Learn.
    """
    if input_shape != INPUT_SHAPE or outputs != 1:
        raise ValueError(f"model neuron takes samples of shape (1,) with 1 output; given {input_shape} with {outputs}")
    return Neuron(bias, loss == "published")


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error or, where x stands beside the outputs, the published loss with its gradient."""
    error = (outputs[:, :1] - targets).abs()
    if outputs.shape[1] > 1:
        recorded = torch.where(targets == 0, outputs[:, 1:], error)
        error = error + (recorded - error).detach()
    return error.mean()
