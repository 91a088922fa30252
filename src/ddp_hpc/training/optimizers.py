"""Update rules on flat tensors: one fused pass over the memory, whatever the number of parameters.

The kernels are those of `torch.optim` with `fused=True`, called without its Python around them. Written as separate
tensor operations, SGD with momentum takes 1.5 times as long and Adam 2 to 3 times on a CPU. On a GPU these kernels give
a tensor one block of threads for each `CHUNK` numbers, so that a small flat tensor would be left to two or three of its
hundred multiprocessors: there it is handed over in slices. Each number is computed by itself, so the bits are the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ddp_hpc.exchange._protocol import Wrap

LearningRate = Callable[[int], float]  # of the step, counted from 1

CHUNK = 65_536  # numbers of one block of threads, in ATen's MultiTensorApply.cuh
MOST_TENSORS = {2: 64, 3: 48, 4: 36}  # of one launch there, by the number of lists of tensors
VECTOR = 16  # numbers; slices are multiples, so that a CPU, too, computes whole vectors

# what changes the weights along the gradients as they are now, at a rate; and the tensors that it changes beside them
Rule = tuple[Callable[[float | Tensor], None], Sequence[Tensor]]


class StatefulOptimizer:
    """Takes steps by a rule at the rate of their number: given as a number, or on the device for captured steps.

    Args:
        rule: of some weights and their gradients.
        learning_rate: of the step, counted from 1.
        device: of the weights.
    """

    def __init__(self, rule: Rule, learning_rate: LearningRate, device: torch.device) -> None:
        self._update, self._kept = rule
        self._learning_rate, self._device = learning_rate, device
        self._steps = torch.zeros((), dtype=torch.int64)  # a tensor, so that it is saved and restored like the rest
        self._on_device: Tensor | None = None
        self._filled = math.nan

    def step(self) -> None:
        """Update the weights from the gradients as they are now; once the rate is on the device, `advance` counts."""
        self._update(self._next_rate() if self._on_device is None else self._on_device)

    def rate_to_device(self) -> None:
        """Keep the rate on the device from now on."""
        self._on_device = torch.zeros((), device=self._device)  # float32, as the kernels read it

    def advance(self) -> None:
        """Count a step, and let the device know its rate where it changes."""
        assert self._on_device is not None, "rate_to_device comes first"
        rate = self._next_rate()
        if rate != self._filled:
            self._on_device.fill_(rate)
            self._filled = rate

    def _next_rate(self) -> float:
        self._steps += 1
        return self._learning_rate(int(self._steps))

    def state(self) -> list[Tensor]:
        """Return all that changes from step to step beside the weights, to save and restore in place."""
        return [self._steps, *self._kept]


def slices_of(flat: Tensor, lists: int) -> int:
    """Return in how many slices a kernel that is given so many `lists` of tensors takes this one."""
    return MOST_TENSORS[lists] if flat.is_cuda and len(flat) < MOST_TENSORS[lists] * CHUNK else 1


def cut(flat: Tensor, slices: int) -> list[Tensor]:
    """Return at most so many slices of a flat tensor, as equal as whole vectors allow."""
    length = -(-len(flat) // slices)
    return list(torch.split(flat, max(VECTOR, -(-length // VECTOR) * VECTOR))) if slices > 1 else [flat]


def sgd(weights: Tensor, gradients: Tensor, momentum: float, weight_decay: float, slices: int | None = None) -> Rule:
    """v <- momentum v + (g + weight_decay w); w <- w - rate v, as `torch.optim.SGD` without dampening."""
    slices = slices or slices_of(weights, 3 if momentum else 2)
    velocity = [torch.zeros_like(weights)] if momentum else []
    lists = [cut(flat, slices) for flat in (weights, gradients, *velocity)]

    def update(rate: float | Tensor) -> None:
        torch._fused_sgd_(
            lists[0],
            lists[1],
            lists[2] if momentum else [],
            lr=rate,
            momentum=momentum,
            weight_decay=weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # the velocity starts from zero, which is the same
        )

    return update, velocity


def adam(weights: Tensor, gradients: Tensor, weight_decay: float, slices: int | None = None) -> Rule:
    """Adam with bias correction, as `torch.optim.Adam` (Kingma and Ba, arXiv:1412.6980); weight decay as an L2 term."""
    slices = slices or slices_of(weights, 4)
    steps = torch.zeros((), device=weights.device)  # float32, as the kernel takes it
    mean, mean_square = torch.zeros_like(weights), torch.zeros_like(weights)
    lists = [cut(flat, slices) for flat in (weights, gradients, mean, mean_square)]
    of_each = [steps] * len(lists[0])

    def update(rate: float | Tensor) -> None:
        steps.add_(1)
        torch._fused_adam_(
            lists[0],
            lists[1],
            lists[2],
            lists[3],
            [],
            of_each,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return update, [steps, mean, mean_square]


def _of_torch(optimizer: torch.optim.Optimizer) -> Rule:
    """An optimiser of `torch.optim` whose parameters have gradients, wherever torch keeps them; they become zeros.

    Its state is there from the start, which torch makes in the first step: so it can be saved and restored.
    """

    def update(rate: float | Tensor) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
            if "capturable" in group:  # else torch refuses to record it, though a fused one can be recorded
                group["capturable"] = isinstance(rate, Tensor)
        optimizer.step()

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.zero_()  # not by `zero_grad`, whose parameters differ between torch and Horovod
    update(0.0)
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    for tensor in kept:
        tensor.zero_()
    return update, kept


@dataclass
class Maker:
    """Makes optimisers, all by one rule, and remembers them."""

    rule: str  # `sgd` or `adam`
    learning_rate: LearningRate
    momentum: float = 0.0  # 0 keeps no state
    weight_decay: float = 0.0  # factor of the L2 term
    made: list[StatefulOptimizer] = field(default_factory=list)

    def __call__(self, weights: Tensor, gradients: Tensor) -> StatefulOptimizer:
        """Return an optimiser of these weights: all of them, or a slice, with the same slice of the gradients.

        Both are 1-D and contiguous.
        """
        rule = (
            adam(weights, gradients, self.weight_decay)
            if self.rule == "adam"
            else sgd(weights, gradients, self.momentum, self.weight_decay)
        )
        return self._remembered(rule, weights.device)

    def of_torch(self, parameters: Sequence[nn.Parameter], fused: bool, wrap: Wrap | None = None) -> StatefulOptimizer:
        """Return the rule as `torch.optim` has it, for parameters that have gradients.

        In one kernel if it is `fused`; `wrap` makes of it the optimiser to use, such as Horovod's.
        """
        optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(parameters, weight_decay=self.weight_decay, fused=fused)
            if self.rule == "adam"
            else torch.optim.SGD(parameters, momentum=self.momentum, weight_decay=self.weight_decay, fused=fused)
        )
        return self._remembered(_of_torch(wrap(optimizer) if wrap else optimizer), parameters[0].device)

    def _remembered(self, rule: Rule, device: torch.device) -> StatefulOptimizer:
        self.made.append(StatefulOptimizer(rule, self.learning_rate, device))
        return self.made[-1]
