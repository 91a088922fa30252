"""Update rules on flat tensors: a few in-place passes, whatever the number of parameters."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ddp_hpc.spec import RunSpec

LearningRate = Callable[[int], float]  # of the step, counted from 1


class Optimizer(Protocol):
    """Takes weights one step along their gradients, in place."""

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""

    def state(self) -> list[Tensor]:
        """Return all that changes from step to step beside the weights, to save and restore."""


class Sgd:
    """v <- momentum v + (g + weight_decay w); w <- w - learning_rate v, as `torch.optim.SGD` without dampening.

    Args:
        weights: 1-D, contiguous.
        gradients: like `weights`; may be changed by a step.
        learning_rate: of the step, counted from 1.
        momentum: 0 keeps no state.
        weight_decay: factor of the L2 term.
    """

    def __init__(
        self, weights: Tensor, gradients: Tensor, learning_rate: LearningRate, momentum: float, weight_decay: float
    ) -> None:
        self._weights, self._gradients = weights, gradients
        self._learning_rate, self._momentum, self._weight_decay = learning_rate, momentum, weight_decay
        self._velocity = torch.zeros_like(weights) if momentum else None
        self._steps = torch.zeros((), dtype=torch.int64)  # a tensor, so that it is saved and restored like the rest

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""
        self._steps += 1
        direction = self._gradients
        if self._weight_decay:
            direction.add_(self._weights, alpha=self._weight_decay)
        if self._velocity is not None:
            direction = self._velocity.mul_(self._momentum).add_(direction)
        self._weights.add_(direction, alpha=-self._learning_rate(int(self._steps)))

    def state(self) -> list[Tensor]:
        """Return the velocity, if there is momentum, and the number of steps."""
        return [self._steps] if self._velocity is None else [self._steps, self._velocity]


class Adam:
    """Adam with bias correction, as `torch.optim.Adam` (Kingma and Ba, arXiv:1412.6980); weight decay as an L2 term.

    Args:
        weights, gradients, learning_rate, weight_decay: as of `Sgd`.
        betas: decay of the first and the second moment.
        epsilon: added to the root of the second moment.
    """

    def __init__(
        self,
        weights: Tensor,
        gradients: Tensor,
        learning_rate: LearningRate,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self._weights, self._gradients = weights, gradients
        self._learning_rate, self._weight_decay = learning_rate, weight_decay
        self._betas, self._epsilon = betas, epsilon
        self._mean, self._mean_square = torch.zeros_like(weights), torch.zeros_like(weights)
        self._scratch = torch.empty_like(weights)
        self._steps = torch.zeros((), dtype=torch.int64)

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""
        self._steps += 1
        step, (beta1, beta2) = int(self._steps), self._betas
        gradients = self._gradients
        if self._weight_decay:
            gradients.add_(self._weights, alpha=self._weight_decay)
        self._mean.lerp_(gradients, 1 - beta1)
        self._mean_square.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        root = torch.sqrt(self._mean_square, out=self._scratch)
        root.mul_((1 - beta2**step) ** -0.5).add_(self._epsilon)
        self._weights.addcdiv_(self._mean, root, value=-self._learning_rate(step) / (1 - beta1**step))

    def state(self) -> list[Tensor]:
        """Return both moments and the number of steps."""
        return [self._steps, self._mean, self._mean_square]


def make(spec: RunSpec, weights: Tensor, gradients: Tensor, learning_rate: LearningRate) -> Optimizer:
    """Return the optimiser that the spec names, for these weights (all of them or a slice)."""
    if spec.optimizer == "adam":
        return Adam(weights, gradients, learning_rate, spec.weight_decay)
    return Sgd(weights, gradients, learning_rate, spec.momentum, spec.weight_decay)
