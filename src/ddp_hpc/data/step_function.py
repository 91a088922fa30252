"""A step: numbers x from U[0, 1), with the target 1 where x >= 0.5, else 0.

Source: Biswas, SHM-Learn-Dist (2017), section 3, uses 400 of them.
"""

from pathlib import Path

import numpy as np
import torch

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (1,)
TASK = "regression"
OUTPUTS = 1

TRAIN_SAMPLES = "samples"
TEST_SAMPLES = 1000


def build(folder: Path, *, samples: PositiveInt = 400, seed: int | None = 0) -> Dataset:
    """Return the points.

    Args:
        folder: not needed.
        samples: how many to train on.
        seed: of the points; not negative. None: the seed of the run, so that repeats have points of their own; else
            that decides only their order and the weights.
    """
    draw = np.random.default_rng(torch.initial_seed() if seed is None else seed)
    test, train = (_points(draw, count) for count in (TEST_SAMPLES, samples))
    return Dataset(train=train, test=test)


def _points(draw: np.random.Generator, count: int) -> Samples:
    x = torch.from_numpy(draw.random((count, 1)))
    return Samples(x, (x >= 0.5).to(x.dtype))
