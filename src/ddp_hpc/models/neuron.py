"""A single sigmoid neuron with one input: the smallest model whose gradient noise can be watched."""

import torch
from torch import Tensor, nn

INPUT_SHAPE = (1,)


class Neuron(nn.Module):
    """sigmoid(w x), or sigmoid(w x + b)."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1))
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return samples x 1, in (0, 1), for samples x 1."""
        z = x * self.weight
        return torch.sigmoid(z if self.bias is None else z + self.bias)


def build(input_shape: tuple[int, ...], outputs: int, *, bias: bool = False) -> nn.Module:
    """Return the neuron: weight from U[0, 1), bias (if any) 0.

    Without a bias it cannot step at 0.5, so its loss has a high floor.

    Raises:
        ValueError: samples are not single numbers with a single target.

    Source: Biswas, SHM-Learn-Dist (2017), section 3.
    """
    if input_shape != INPUT_SHAPE or outputs != 1:
        raise ValueError(f"model neuron takes samples of shape (1,) with 1 output; given {input_shape} with {outputs}")
    return Neuron(bias)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error, which the published neuron descends."""
    return (outputs - targets).abs().mean()
