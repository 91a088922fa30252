"""The floating-point operations of a training step, counted by torch.utils.flop_counter."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

FEW = 2  # samples to count with: normalisation over a batch needs more than one


def per_sample(forward: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter], inputs: Tensor) -> float:
    """Return the operations of forward and backward pass for one sample: a product and a sum are two.

    Matrix products, convolutions and attention are counted, nothing else; they are proportional to the samples. The
    counter imports half of torch the first time, a second or so: call it when nothing is timed. Weights and gradients
    stay as they are; running means of the model may change.

    Args:
        forward: the model.
        parameters: those that are trained.
        inputs: `FEW` samples or more.

    Raises:
        RuntimeError: the model does not take these inputs.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        outputs = forward(inputs)
        # not backward(): exchanges that overlap would be called
        torch.autograd.grad(outputs, list(parameters), torch.ones_like(outputs), allow_unused=True)
    return float(counter.get_total_flops() / len(inputs))
