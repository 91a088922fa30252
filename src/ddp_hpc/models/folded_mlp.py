"""The perceptron of `mlp` with each bias folded into its layer's weights, so that a layer is one matrix product."""

from itertools import pairwise
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.models._shift_kernels import shift_left, shift_right


class Product(Function):
    """[1|relu(A)] times [b|W]', and its gradients, without new memory for the ones.

    What comes from the layer before lies in memory with room for the ones: behind the matrix with `shifts`, in front of
    each row with `strides`. A ReLU and the ones are written in place, which nobody else looks at: not for other use.
    """

    @staticmethod
    def forward(ctx: Any, before: Tensor, folded: Tensor, shifts: bool, hidden: bool) -> Tensor:
        rows, cols = before.shape
        if not hidden:  # of the data: one copy, behind the ones
            wide = before.new_ones(rows, cols + 1)
            wide[:, 1:] = before
        else:
            relu = before.detach().relu_()
            start = relu.storage_offset()
            if shifts:
                wide = shift_right(relu.as_strided((rows * (cols + 1),), (1,), start), rows, cols)
            else:
                wide = relu.as_strided((rows, cols + 1), (cols + 1, 1), start - 1)
        ctx.save_for_backward(wide, folded)
        ctx.shifts, ctx.hidden = shifts, hidden
        outputs = len(folded)
        room = before.new_empty(rows * (outputs + 1))
        if shifts:
            after = room[: rows * outputs].view(rows, outputs)
        else:
            room.view(rows, outputs + 1)[:, 0] = 1
            after = room.view(rows, outputs + 1)[:, 1:]
        return torch.mm(wide, folded.T, out=after)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        wide, folded = ctx.saved_tensors
        of_weights = gradient.T @ wide
        if not ctx.needs_input_grad[0]:
            return None, of_weights, None, None
        outputs, cols = len(folded), folded.shape[1] - 1
        # weights may lie where other ranks read them: the bias is moved out of a copy, and never in again
        weights = shift_left(folded.detach().clone().flatten(), outputs, cols) if ctx.shifts else folded.detach()[:, 1:]
        of_inputs = gradient @ weights
        if ctx.hidden:
            of_inputs = torch.ops.aten.threshold_backward(of_inputs, wide[:, 1:], 0)
        return of_inputs, of_weights, None, None


class FoldedLinear(nn.Module):
    """A fully connected layer whose weights are outputs x (1 + inputs), the bias first, and the ReLU before it."""

    def __init__(self, inputs: int, outputs: int, way: str, hidden: bool) -> None:
        super().__init__()
        drawn = nn.Linear(inputs, outputs)  # from the same numbers as in `mlp`
        self.folded = nn.Parameter(torch.cat([drawn.bias.detach()[:, None], drawn.weight.detach()], dim=1))
        self._way, self._hidden = way, hidden

    def forward(self, before: Tensor) -> Tensor:
        if self._way == "cat":
            inputs = F.relu(before) if self._hidden else before
            return torch.cat([inputs.new_ones(len(inputs), 1), inputs], dim=1) @ self.folded.T
        found: Tensor = Product.apply(before, self.folded, self._way == "shifts", self._hidden)  # type: ignore[no-untyped-call]
        return found


def build(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    widths: tuple[PositiveInt, ...] = (64, 32),
    way: Literal["cat", "shifts", "strides"] = "cat",
) -> nn.Module:
    """Return a perceptron that computes what `mlp` computes, from the same weights at the start, up to rounding.

    Its parameters are as many, but for each layer one matrix.

    Args:
        input_shape: of a sample; it is flattened.
        outputs: of the last layer.
        widths: of the hidden layers.
        way: how the ones come in front of a layer's inputs, and the bias out of the weights for the gradient of the
            inputs. `cat`: copied into new memory. `shifts`: in place, by the moves of the source, ShiftRight and
            ShiftLeft, the latter in a copy of the weights. `strides`: not at all: layers write behind ones that are
            there, and matrix products take weights that lie behind a bias. `compile` takes `cat` alone.

    Source: S. Biswas, SHM-Learn-Dist (2017), section 4.
    """
    sizes = [prod(input_shape), *widths, outputs]
    layers = [FoldedLinear(*ends, way, hidden=place > 0) for place, ends in enumerate(pairwise(sizes))]
    return nn.Sequential(nn.Flatten(), *layers)
