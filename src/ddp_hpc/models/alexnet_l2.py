"""The network of `alexnet` with the L2 penalty of its weights in the training loss, as SHM-Learn-Dist has it."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_hpc.config.catalog import Fraction, PositiveFloat
from ddp_hpc.models import alexnet

INPUT_SHAPE = (None, 32, 32)  # colour or grey


class Penalised(nn.Module):
    """A network whose outputs in training have one column more, the penalty of its weights; not in evaluation."""

    def __init__(self, network: nn.Module, penalty: float) -> None:
        super().__init__()
        self.network, self._penalty = network, penalty

    def forward(self, images: Tensor) -> Tensor:
        scores = cast(Tensor, self.network(images))
        if not self.training:
            return scores
        squares = torch.stack([weights.square().sum() for weights in self.network.parameters()])
        return torch.cat([scores, (self._penalty / 2 * squares.sum()).expand(len(scores), 1)], dim=1)


def loss(outputs: Tensor, targets: Tensor, classes: int = 10) -> Tensor:
    """Return the cross-entropy and, in training, the penalty."""
    penalty = outputs[:, classes:].sum() / len(outputs)
    return F.cross_entropy(outputs[:, :classes], targets) + penalty


def build(
    input_shape: tuple[int, ...], outputs: int, *, penalty: PositiveFloat = 0.004, dropout: Fraction = 0.0
) -> nn.Module:
    """Return the network, for ten classes; it trains as `alexnet` with `weight_decay: penalty` and plain SGD.

    Training losses, and so thresholds and areas, hold the penalty; test losses do not.

    Args:
        input_shape: of one image, as of `alexnet`.
        outputs: classes, 10.
        penalty: half of it times the squares of all weights, biases too, is added to the loss. Whether the source has
            the half is not published, nor are its first weights, on which the penalty depends.
        dropout: as of `alexnet`.

    Raises:
        ValueError: images of another shape, or other than 10 classes.
    """
    if outputs != 10:
        raise ValueError(f"model alexnet_l2 takes datasets of 10 classes; given {outputs}")
    return Penalised(alexnet.build(input_shape, outputs, dropout=dropout), penalty)
