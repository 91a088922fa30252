"""A residual network: of 6n + 2 layers for small images, as for CIFAR-10, or of 50, 101 or 152 as for ImageNet."""

from collections.abc import Sequence
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

INPUT_SHAPE = (None, None, None)  # channels, height, width

BOTTLENECKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # blocks of each stage


class Pad(nn.Module):
    """The shortcut without parameters (option A): every `stride`-th pixel, and zeros for the channels that are new."""

    def __init__(self, stride: int, channels: int) -> None:
        super().__init__()
        self._stride, self._channels = stride, channels

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._channels))


class Block(nn.Module):
    """A ReLU of the sum of what some layers make of their inputs, and of the inputs, or of their shortcut."""

    def __init__(self, layers: Sequence[nn.Module], shortcut: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(cast(Tensor, self.layers(x)) + cast(Tensor, self.shortcut(x)))


def convolution(before: int, after: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the size of the image, but for its stride, and its batch normalisation."""
    return [nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(after)]


def plain_block(before: int, width: int, stride: int) -> Block:
    """Return two convolutions of 3x3, with a shortcut that has no parameters."""
    layers = [*convolution(before, width, 3, stride), nn.ReLU(), *convolution(width, width, 3)]
    return Block(layers, nn.Identity() if before == width else Pad(stride, width - before))


def bottleneck(before: int, width: int, stride: int) -> Block:
    """Return convolutions of 1x1, 3x3 and 1x1, the last with four times the channels; shortcuts are projections."""
    after = 4 * width
    layers = [*convolution(before, width, 1, stride), nn.ReLU(), *convolution(width, width, 3), nn.ReLU()]
    layers += convolution(width, after, 1)
    same = before == after and stride == 1
    return Block(layers, nn.Identity() if same else nn.Sequential(*convolution(before, after, 1, stride)))


def build(
    input_shape: tuple[int, ...], outputs: int, *, layers: Literal[20, 32, 44, 56, 110, 50, 101, 152] = 20
) -> nn.Module:
    """Return the network; with 20 layers and 10 classes it has 269,722 parameters, with 101 and 1,000 44,549,160.

    Up to 44, and with 56 and 110, they are plain blocks of 16, 32 and 64 channels; with 50, 101 and 152, bottlenecks of
    64 to 512, behind a convolution of 7x7 and a pooling, each of which halves the image.

    Each rank normalises by its own batch, and keeps its own running means, as torch's DistributedDataParallel does but
    for one thing: that sends rank 0's running means to all before each step, here rank 0's are what is
    evaluated. So the losses depend on `world_size`, though not on the exact exchange. They are not exchanged.

    Args:
        input_shape: of one image: channels, height, width.
        outputs: classes.
        layers: with weights, counted as the source does: shortcuts do not count.

    Raises:
        ValueError: samples are no images.

    Source: K. He et al., Deep Residual Learning for Image Recognition (2015), section 4.2 and table 1.
    """
    if len(input_shape) != 3:
        raise ValueError(f"model resnet takes images of shape (channels, height, width); given {input_shape}")
    channels = input_shape[0]
    stages: Sequence[int] = BOTTLENECKS.get(layers, ((layers - 2) // 6,) * 3)
    if layers in BOTTLENECKS:
        net = [*convolution(channels, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        make, factor, before, width = bottleneck, 4, 64, 64
    else:
        net = [*convolution(channels, 16, 3), nn.ReLU()]
        make, factor, before, width = plain_block, 1, 16, 16
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            net.append(make(before, width << stage, 2 if stage and not block else 1))
            before = factor * width << stage
    model = nn.Sequential(*net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model
