"""Four ways of a layer with a bias, forward and backward; all give the same.

A layer of weights W, outputs x inputs, maps rows of inputs A to A W' + b. Four ways:

- `addmm`: as torch does it, the bias beside the weights.
- `shifts`: as SHM-Learn-Dist did it. Ones are moved in front of the inputs, which the layer before has left there
  without; one product with [b|W]. The gradient of the inputs needs W alone: the bias is moved out, and in again.
- `cat`: the same product, the ones and the inputs copied into new memory by torch.cat.
- `strides`: nothing is moved, for matrix products take matrices with a leading dimension: the layer before writes
  behind a column of ones that stays, and W is read where it lies, behind the bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_hpc.bench import shifts as realign


@dataclass(frozen=True)
class Shape:
    """Of a layer: rows (samples), inputs and outputs."""

    rows: int
    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.inputs}x{self.outputs}"


class Layer:
    """What the ways have in common: inputs, weights with the bias in front, and the gradient of the outputs."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(0)

        def numbers(*size: int) -> Tensor:
            return torch.randn(*size, generator=draw).to(device, dtype)

        self.shape = shape
        self.inputs = numbers(shape.rows, shape.inputs)
        self.gradient = numbers(shape.rows, shape.outputs)
        self.folded = numbers(shape.outputs, shape.inputs + 1)
        self.bias, self.weights = self.folded[:, 0].clone(), self.folded[:, 1:].clone()
        self.ones = self.inputs.new_ones(shape.rows, 1)
        self.buffer = self.inputs.new_ones(shape.rows * (shape.inputs + 1))
        self.wide = self.buffer.view(shape.rows, shape.inputs + 1)
        self.memory = self.folded.clone().flatten()  # of [b|W], where `shifts` moves the bias out and in


Gradients = tuple[Tensor, Tensor, Tensor]  # of inputs, weights and bias


class Addmm:
    """The bias beside the weights."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def arrive(self) -> None:
        """The layer before leaves its outputs: nothing has to be done."""

    def forward(self) -> Tensor:
        """Return the outputs."""
        return torch.addmm(self._layer.bias, self._layer.inputs, self._layer.weights.T)

    def backward(self) -> Gradients:
        """Return the gradients."""
        one = self._layer
        return one.gradient @ one.weights, one.gradient.T @ one.inputs, one.gradient.sum(0)


class Shifts:
    """Ones are moved in front of the inputs; the bias is moved out of the weights and in again."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._folded = layer.memory.view_as(layer.folded)

    def arrive(self) -> None:
        """The layer before leaves its outputs at the beginning of the buffer."""
        self._layer.buffer[: self._layer.inputs.numel()].copy_(self._layer.inputs.flatten())

    def forward(self) -> Tensor:
        """Return the outputs."""
        shape = self._layer.shape
        return realign.shift_right(self._layer.buffer, shape.rows, shape.inputs) @ self._folded.T

    def backward(self) -> Gradients:
        """Return the gradients."""
        one, shape = self._layer, self._layer.shape
        both = one.gradient.T @ one.wide
        bias = self._folded[:, 0].clone()
        of_inputs = one.gradient @ realign.shift_left(one.memory, shape.outputs, shape.inputs)
        realign.shift_right(one.memory, shape.outputs, shape.inputs)[:, 0] = bias
        return of_inputs, both[:, 1:], both[:, 0]


class Cat:
    """Ones and inputs are copied side by side."""

    def __init__(self, layer: Layer) -> None:
        self._layer, self._both = layer, layer.wide

    def arrive(self) -> None:
        """The layer before leaves its outputs: nothing has to be done."""

    def forward(self) -> Tensor:
        """Return the outputs."""
        self._both = torch.cat([self._layer.ones, self._layer.inputs], 1)
        return self._both @ self._layer.folded.T

    def backward(self) -> Gradients:
        """Return the gradients."""
        one, both = self._layer, self._layer.gradient.T @ self._both
        return one.gradient @ one.folded[:, 1:].contiguous(), both[:, 1:], both[:, 0]


class Strides:
    """Nothing is moved: rows of inputs and of weights are one number further apart than they are long."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def arrive(self) -> None:
        """The layer before leaves its outputs behind the column of ones, which stays."""
        self._layer.buffer.fill_(1)
        self._layer.wide[:, 1:].copy_(self._layer.inputs)

    def forward(self) -> Tensor:
        """Return the outputs."""
        return self._layer.wide @ self._layer.folded.T

    def backward(self) -> Gradients:
        """Return the gradients."""
        one, both = self._layer, self._layer.gradient.T @ self._layer.wide
        return one.gradient @ one.folded[:, 1:], both[:, 1:], both[:, 0]


WAYS: Mapping[str, type[Addmm | Shifts | Cat | Strides]] = {
    "addmm": Addmm,
    "shifts": Shifts,
    "cat": Cat,
    "strides": Strides,
}
