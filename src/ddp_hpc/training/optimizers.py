"""Update rules on flat tensors: one fused pass over the memory, whatever the number of parameters.

The kernels are those of `torch.optim` with `fused=True`, called without its Python around them. Written as separate
tensor operations, SGD with momentum takes 1.5 times as long and Adam 2 to 3 times.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.exchange._protocol import Optimizer
from ddp_hpc.training.lr_schedule import learning_rate_rule

LearningRate = Callable[[int], float]  # of the step, counted from 1


class Rate:
    """The learning rate of the step to take, as a number; or on the device, where a captured step reads it.

    Args:
        rule: of the step, counted from 1.
        device: of the weights.
    """

    def __init__(self, rule: LearningRate, device: torch.device) -> None:
        self._rule, self._device = rule, device
        self.steps = torch.zeros((), dtype=torch.int64)  # a tensor, so that it is saved and restored like the rest
        self._on_device: Tensor | None = None
        self._filled = math.nan

    def next(self) -> float | Tensor:
        """Count a step, and return its rate; once it is on the device, `advance` counts."""
        if self._on_device is not None:
            return self._on_device
        self.steps += 1
        return self._rule(int(self.steps))

    def to_device(self) -> None:
        """Keep the rate on the device from now on."""
        self._on_device = torch.zeros((), device=self._device)  # float32, as the kernels read it

    def advance(self) -> None:
        """Count a step, and let the device know its rate where it changes."""
        assert self._on_device is not None, "to_device comes first"
        self.steps += 1
        rate = self._rule(int(self.steps))
        if rate != self._filled:
            self._on_device.fill_(rate)
            self._filled = rate


class Sgd:
    """v <- momentum v + (g + weight_decay w); w <- w - learning_rate v, as `torch.optim.SGD` without dampening.

    Args:
        weights: 1-D, contiguous.
        gradients: like `weights`.
        learning_rate: of the step, counted from 1.
        momentum: 0 keeps no state.
        weight_decay: factor of the L2 term.
    """

    def __init__(
        self, weights: Tensor, gradients: Tensor, learning_rate: LearningRate, momentum: float, weight_decay: float
    ) -> None:
        self._weights, self._gradients = weights, gradients
        self._momentum, self._weight_decay = momentum, weight_decay
        self._velocity = torch.zeros_like(weights) if momentum else None
        self.rate = Rate(learning_rate, weights.device)

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""
        torch._fused_sgd_(
            [self._weights],
            [self._gradients],
            [] if self._velocity is None else [self._velocity],
            lr=self.rate.next(),
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # the velocity starts from zero, which is the same
        )

    def state(self) -> list[Tensor]:
        """Return the velocity, if there is momentum, and the number of steps."""
        return [self.rate.steps] if self._velocity is None else [self.rate.steps, self._velocity]


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
        self._weight_decay = weight_decay
        self._betas, self._epsilon = betas, epsilon
        self._mean, self._mean_square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.rate = Rate(learning_rate, weights.device)
        self._device_steps = torch.zeros((), device=weights.device)  # float32, as the kernel takes it

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""
        self._device_steps += 1
        torch._fused_adam_(
            [self._weights],
            [self._gradients],
            [self._mean],
            [self._mean_square],
            [],
            [self._device_steps],
            lr=self.rate.next(),
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> list[Tensor]:
        """Return both moments and the number of steps, which the kernel wants on the device."""
        return [self.rate.steps, self._device_steps, self._mean, self._mean_square]


class OfTorch:
    """An optimiser of `torch.optim`, for gradients wherever torch keeps them.

    Its state is there from the start, which torch makes in the first step: so it can be saved and restored.

    Args:
        optimizer: its parameters have gradients now; they are overwritten with zeros.
        learning_rate: of the step, counted from 1.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, learning_rate: LearningRate) -> None:
        self._optimizer = optimizer
        self.rate = Rate(learning_rate, optimizer.param_groups[0]["params"][0].device)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.zero_()  # not by `zero_grad`, whose parameters differ between torch and Horovod
        self._set_rate(0.0)
        optimizer.step()
        for tensor in self._tensors():
            tensor.zero_()

    def _set_rate(self, rate: float | Tensor) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _tensors(self) -> list[Tensor]:
        states = self._optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""
        self._set_rate(self.rate.next())
        self._optimizer.step()

    def state(self) -> list[Tensor]:
        """Return what torch keeps of each parameter, and the number of steps."""
        return [self.rate.steps, *self._tensors()]


StatefulOptimizer = Sgd | Adam | OfTorch


@dataclass
class Maker:
    """Makes optimisers, all by one rule, and remembers them."""

    rule: str  # `sgd` or `adam`
    learning_rate: LearningRate  # of the step, counted from 1
    momentum: float = 0.0  # as of `Sgd`
    weight_decay: float = 0.0  # as of `Sgd`
    made: list[StatefulOptimizer] = field(default_factory=list)

    def __call__(self, weights: Tensor, gradients: Tensor) -> Optimizer:
        """Return an optimiser of these weights: all of them, or a slice, with the same slice of the gradients."""
        self.made.append(
            Adam(weights, gradients, self.learning_rate, self.weight_decay)
            if self.rule == "adam"
            else Sgd(weights, gradients, self.learning_rate, self.momentum, self.weight_decay)
        )
        return self.made[-1]

    def of_torch(
        self,
        parameters: Sequence[nn.Parameter],
        fused: bool,
        wrap: Callable[[torch.optim.Optimizer], torch.optim.Optimizer] | None = None,
    ) -> Optimizer:
        """Return the rule as `torch.optim` has it, for parameters that have gradients.

        Args:
            parameters: have gradients.
            fused: in one kernel.
            wrap: makes of it the optimiser to use, such as Horovod's.
        """
        rule: torch.optim.Optimizer = (
            torch.optim.Adam(parameters, weight_decay=self.weight_decay, fused=fused)
            if self.rule == "adam"
            else torch.optim.SGD(parameters, momentum=self.momentum, weight_decay=self.weight_decay, fused=fused)
        )
        self.made.append(OfTorch(wrap(rule) if wrap else rule, self.learning_rate))
        return self.made[-1]


def maker(spec: RunSpec) -> Maker:
    """Return what makes the optimisers that the spec names."""
    return Maker(spec.optimizer, learning_rate_rule(spec), spec.momentum, spec.weight_decay)
