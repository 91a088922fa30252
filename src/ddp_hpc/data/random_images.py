"""Random numbers in the shape of CIFAR-10, to measure speed only: nothing can be learnt from them."""

from pathlib import Path

import numpy as np
import torch

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (3, 32, 32)
TASK = "classification"
OUTPUTS = 10

TRAIN_SAMPLES = "samples"
TEST_SAMPLES = 1000


def build(folder: Path, *, samples: PositiveInt = 5000, seed: int = 0) -> Dataset:
    """Return pixels from N(0, 1) and classes, each as likely as any other; 12 kB a sample.

    Args:
        folder: not needed.
        samples: how many to train on.
        seed: of the numbers; not negative. The seed of a run decides only their order and the weights.
    """
    draw = np.random.default_rng(seed)
    test, train = (_numbers(draw, count) for count in (TEST_SAMPLES, samples))
    return Dataset(train=train, test=test)


def _numbers(draw: np.random.Generator, count: int) -> Samples:
    pixels = draw.standard_normal((count, *SHAPE), dtype=np.float32)
    return Samples(torch.from_numpy(pixels), torch.from_numpy(draw.integers(OUTPUTS, size=count)))
