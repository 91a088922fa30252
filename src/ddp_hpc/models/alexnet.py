"""A small AlexNet for images of 32x32 pixels: three convolutions, then three fully connected layers."""

from torch import nn

from ddp_hpc.config.catalog import Fraction

INPUT_SHAPE = (None, 32, 32)  # colour or grey


def build(input_shape: tuple[int, ...], outputs: int, *, dropout: Fraction = 0.0) -> nn.Module:
    """Return the network that SHM-Learn-Dist trained on CIFAR-10.

    Convolutions of 5x5 pixels with 32, 32 and 64 channels, ReLU, and overlapping pooling (3x3, every second pixel)
    that halves the image after each; then 64, 32 and `outputs` units.

    Args:
        input_shape: of one image, channels and 32, 32; CIFAR-10 has 3 channels, Fashion-MNIST padded to this size 1.
        outputs: classes.
        dropout: share of the units set to 0 before each hidden fully connected layer; each rank draws its own.

    Raises:
        ValueError: images of another shape.

    Source: Biswas, SHM-Learn (2017), bi-weekly report 7; the layers' sizes are published, padding and pooling are not.
    """
    channels, *size = input_shape
    if size != [32, 32]:
        raise ValueError(f"model alexnet takes images of shape (channels, 32, 32); given {input_shape}")
    layers: list[nn.Module] = []
    for before, after in ((channels, 32), (32, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    layers.append(nn.Flatten())
    for before, after in ((64 * 4 * 4, 64), (64, 32)):
        layers += [nn.Dropout(dropout), nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, outputs))
