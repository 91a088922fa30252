"""CIFAR-10: 60,000 colour images of 32x32 pixels in 10 classes, from the published binary-version archive.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (3, 32, 32)
TASK = "classification"
OUTPUTS = 10
TRAIN_SAMPLES = 50_000
TEST_SAMPLES = 10_000

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE = "cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"

INSIDE = "cifar-10-batches-bin"  # the archive's only folder
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
FILES = {  # and the SHA-256 of each: a folder of them will do, too
    "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
RECORD_BYTES = 1 + 3 * 32 * 32  # class, then the red, green and blue plane

# mean and standard deviation of each channel over the training images, as shares of 255
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)


def build(
    folder: Path, *, train_samples: PositiveInt | None = None, test_samples: PositiveInt | None = None
) -> Dataset:
    """Return the images, each channel with mean 0 and standard deviation 1.

    Args:
        folder: holds the unpacked archive.
        train_samples: take only the first so many training images; None: all 50,000.
        test_samples: take only the first so many test images; None: all 10,000.

    Raises:
        FileNotFoundError: nothing was fetched; says how to.
        ValueError: a file is not in the published format, or there are fewer images.
    """
    return Dataset(
        train=_read(folder, TRAIN_FILES, "train_samples", train_samples),
        test=_read(folder, TEST_FILES, "test_samples", test_samples),
    )


def _read(folder: Path, names: Sequence[str], option: str, wanted: int | None) -> Samples:
    records = np.concatenate([_records(folder / INSIDE / name) for name in names])
    if wanted is not None and wanted > len(records):
        raise ValueError(f"dataset cifar10: {option}={wanted}, expected: 1 to {len(records)}")
    records = records[:wanted]
    images = torch.from_numpy(records[:, 1:]).reshape(-1, *SHAPE).float()
    mean, deviation = (torch.tensor(channels).reshape(3, 1, 1) * 255 for channels in (MEAN, DEVIATION))
    return Samples(images.sub_(mean).div_(deviation), torch.from_numpy(records[:, 0]).long())


def _records(file: Path) -> np.typing.NDArray[np.uint8]:
    try:
        content = np.fromfile(file, dtype=np.uint8)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{file} is missing; get the data with `ddp-hpc data cifar10`, or, from what you have, with `ddp-hpc data "
            f"cifar10 --from PATH`, the path of {ARCHIVE} or of a folder with its files"
        ) from None
    if len(content) == 0 or len(content) % RECORD_BYTES:
        raise ValueError(f"{file} has {len(content)} bytes, no multiple of {RECORD_BYTES}: fetch the data again")
    records = content.reshape(-1, RECORD_BYTES)
    if records[:, 0].max() >= OUTPUTS:
        highest = records[:, 0].max()
        raise ValueError(f"{file} has a class {highest}, expected: 0 to {OUTPUTS - 1}; fetch the data again")
    return records
