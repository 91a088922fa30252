"""The floating-point operations of a training step, by the formulas of torch.utils.flop_counter."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

FEW = 2  # samples to count with: normalisation over a batch needs more than one


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of what is called while it is entered.

    torch's own FlopCounterMode imports torch's compiler and sympy first, which takes seconds; the formulas do not.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else that compiler is imported, to keep it away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=outputs)
        return outputs


def per_sample(forward: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter], inputs: Tensor) -> float:
    """Return the operations of forward and backward pass for one sample: a product and a sum are two.

    Matrix products, convolutions and, on GPUs, attention are counted, nothing else; they are proportional to the
    samples, of which `inputs` has `FEW` or more. Weights and gradients stay as they are; running means of the model may
    change. A model that does not take these inputs raises RuntimeError.
    """
    with torch.enable_grad(), _Counter() as counter:
        # not backward(): exchanges that overlap would be called
        torch.autograd.grad(forward(inputs).sum(), list(parameters), allow_unused=True)
    return float(counter.operations / len(inputs))
