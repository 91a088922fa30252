"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998).
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (64,)
TASK = "classification"
OUTPUTS = 10
TRAIN_SAMPLES = 1437

TEST_SAMPLES = 360  # a fifth, always the same


def build(folder: Path, *, train_samples: PositiveInt = 1437) -> Dataset:
    """Return the digits: pixels scaled to [0, 1], a fixed random split into 1,437 to train and 360 to test.

    Args:
        folder: not needed; the file comes with scikit-learn.
        train_samples: take only the first so many of the training samples.

    Raises:
        ValueError: more training samples than there are.
    """
    package = find_spec("sklearn")  # its file is read without importing it, which would take longer than the training
    if package is None or package.origin is None:
        raise ModuleNotFoundError("dataset digits lies in scikit-learn, which is missing: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(table))
    pixels, digits = shuffled[:, :-1] / 16, shuffled[:, -1].long()
    available = len(pixels) - TEST_SAMPLES
    if train_samples > available:
        raise ValueError(f"dataset digits: train_samples={train_samples}, expected: 1 to {available}")
    chosen = slice(TEST_SAMPLES, TEST_SAMPLES + train_samples)
    return Dataset(
        train=Samples(pixels[chosen], digits[chosen]), test=Samples(pixels[:TEST_SAMPLES], digits[:TEST_SAMPLES])
    )
