"""Fashion-MNIST: 70,000 grey images of clothes in 10 classes, from the published IDX files.

Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, arXiv:1708.07747 (2017).
"""

from pathlib import Path

import torch
from torch.nn.functional import pad

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.data import _idx
from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (1, 32, 32)
TASK = "classification"
OUTPUTS = 10
TRAIN_SAMPLES = 60_000
TEST_SAMPLES = 10_000

URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # of the folder; what comes is checked
INSTALL = "apt install dataset-fashion-mnist"  # on Debian and Ubuntu
PLACE = "/usr/share/datasets/fashion-mnist"  # where that package has them
FILES = {  # and the SHA-256 of their content, unpacked: the files of MNIST have the same names
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

PIXELS, MARGIN = 28, 2  # of a published image along each side; black pixels that are put around it
MEAN, DEVIATION = 0.2860, 0.3530  # of the pixels of the training images, as shares of 255


def build(
    folder: Path, *, train_samples: PositiveInt | None = None, test_samples: PositiveInt | None = None
) -> Dataset:
    """Return the images with a margin that makes them 32x32, so that networks for CIFAR-10 take them.

    Their published pixels have mean 0 and standard deviation 1; the margin is as black as their background.

    Args:
        folder: holds the four files, unpacked.
        train_samples: take only the first so many training images; None: all 60,000.
        test_samples: take only the first so many test images; None: all 10,000.

    Raises:
        FileNotFoundError: nothing was fetched; says how to.
        ValueError: a file is not in the published format, or there are fewer images.
    """
    return Dataset(
        train=_read(folder, "train", "train_samples", train_samples),
        test=_read(folder, "t10k", "test_samples", test_samples),
    )


def _read(folder: Path, part: str, option: str, wanted: int | None) -> Samples:
    files = [folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"]
    missing = next((file for file in files if not file.is_file()), None)
    if missing:
        raise FileNotFoundError(
            f"{missing} is missing; get the data with `ddp-hpc data fashion_mnist` (it looks where `{INSTALL}` puts "
            "them, else where they were published), or, from files that you have, with "
            "`ddp-hpc data fashion_mnist --from FOLDER`"
        )
    images, classes = map(_idx.read, files)
    if images.shape != (len(classes), PIXELS, PIXELS) or classes.ndim != 1 or not len(classes):
        raise ValueError(
            f"{files[0]} is of the shape {images.shape}, {files[1].name} of {classes.shape}: "
            f"they are not images of {PIXELS}x{PIXELS} pixels with a class each"
        )
    if classes.max() >= OUTPUTS:
        raise ValueError(f"{files[1]} has a class {classes.max()}, expected: 0 to {OUTPUTS - 1}")
    if wanted is not None and wanted > len(classes):
        raise ValueError(f"dataset fashion_mnist: {option}={wanted}, expected: 1 to {len(classes)}")
    pixels = pad(torch.tensor(images[:wanted]).unsqueeze(1).float(), (MARGIN,) * 4)
    return Samples(pixels.div_(255).sub_(MEAN).div_(DEVIATION), torch.tensor(classes[:wanted]).long())
