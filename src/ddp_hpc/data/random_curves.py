"""Random numbers in the shape of strain-stress curves, to measure speed only: nothing can be learnt from them.

They stand for the 750,000 curves of 600 points with two targets each, of which a thesis on Horovod trained a network
(P. Orlob, TU Dresden, 2022): a step on them does the same work.
"""

from pathlib import Path

import numpy as np
import torch

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (600,)
TASK = "regression"
OUTPUTS = 2

TRAIN_SAMPLES = "samples"
TEST_SAMPLES = 600


def build(folder: Path, *, samples: PositiveInt = 6000, seed: int = 0) -> Dataset:
    """Return inputs and targets from U[0, 1), 2.4 kB a sample.

    Args:
        folder: not needed.
        samples: how many to train on.
        seed: of the numbers; not negative. The seed of a run decides only their order and the weights.
    """
    draw = np.random.default_rng(seed)
    test, train = (_numbers(draw, count) for count in (TEST_SAMPLES, samples))
    return Dataset(train=train, test=test)


def _numbers(draw: np.random.Generator, count: int) -> Samples:
    inputs, targets = (draw.random((count, width), dtype=np.float32) for width in (SHAPE[0], OUTPUTS))
    return Samples(torch.from_numpy(inputs), torch.from_numpy(targets))
