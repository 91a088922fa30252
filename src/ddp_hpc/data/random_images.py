"""Random numbers in the shape of images and classes, to measure speed only: nothing can be learnt from them."""

from pathlib import Path

import numpy as np
import torch

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (3, None, None)
TASK = "classification"
OUTPUTS = 1000

TRAIN_SAMPLES = "samples"
TEST_SAMPLES = 64


def build(folder: Path, *, samples: PositiveInt = 2048, size: PositiveInt = 224, seed: int = 0) -> Dataset:
    """Return colour images of U[0, 1) with one of 1,000 classes each, as large as usual of ImageNet: 602 kB a sample.

    Args:
        folder: not needed.
        samples: how many to train on.
        size: height and width, in pixels.
        seed: of the numbers; not negative. The seed of a run decides only their order and the weights.
    """
    draw = np.random.default_rng(seed)
    test, train = (_images(draw, count, size) for count in (TEST_SAMPLES, samples))
    return Dataset(train=train, test=test)


def _images(draw: np.random.Generator, count: int, size: int) -> Samples:
    images = draw.random((count, 3, size, size), dtype=np.float32)
    return Samples(torch.from_numpy(images), torch.from_numpy(draw.integers(0, OUTPUTS, count)))
