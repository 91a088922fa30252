"""A multilayer perceptron: fully connected layers with ReLU between them."""

from itertools import pairwise
from math import prod

from torch import nn

from ddp_hpc.config.catalog import PositiveInt


def build(input_shape: tuple[int, ...], outputs: int, *, widths: tuple[PositiveInt, ...] = (64, 32)) -> nn.Module:
    """Return a perceptron with hidden layers of the given widths.

    Inputs of any shape are flattened. With 600 inputs, widths 150, 200, 163 and 2 outputs it has 153,441
    parameters, the size of the strain-stress network of a thesis on Horovod (P. Orlob, TU Dresden, 2022).
    """
    sizes = [prod(input_shape), *widths, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
