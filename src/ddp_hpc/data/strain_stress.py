"""Strain-stress curves of aluminium, loaded and unloaded: find proof stress and hardening exponent; or your own curves.

Each curve has 200 points of strain, stress and a flag (1 while loading). Made ones obey the law of Ramberg and Osgood
(`_ramberg_osgood.py`), with noise on the stress; a thesis on Horovod had 1,000,000 of such, whose law and parameters
are not public (P. Orlob, TU Dresden, 2022). The targets are standardised, so predicting their means gives a loss of 1.
The metric is the share of curves of which both parameters are found to within 5 %.
"""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.config.catalog import Fraction, NotNegativeInt, PositiveInt
from ddp_hpc.data import _own_curves, _ramberg_osgood
from ddp_hpc.data._cached_arrays import Arrays, arrays
from ddp_hpc.data._tasks import TASKS, Dataset, Samples, Task

SHAPE = (200, 3)
TASK = "regression"
OUTPUTS = 2
ONLY_WITH = {"seed": {"path": (None,)}, "noise": {"path": (None,)}}

SAMPLES = 32_000  # by default
CLOSE = 0.05  # relative error of a parameter that counts as found
CHUNK = 4096  # curves made at a time, each time from a generator of its own
# what the inputs are less, and what they are then divided by, so that they are of the order of 1
MIDDLE = (0.02, 250.0, 0.5)
UNIT = (0.015, 100.0, 0.5)


def build(
    folder: Path,
    *,
    samples: PositiveInt | None = None,
    seed: NotNegativeInt = 0,
    noise: Fraction = 0.005,
    path: str | None = None,
) -> Dataset:
    """Return the curves: the first three quarters to train, the others to test.

    More than 256 MB of them (106,000 curves) are written to a folder once, 2.4 kB a curve, and mapped into memory by
    all ranks and runs that use them. The first curves are the same in any number of them.

    Args:
        folder: where to.
        samples: how many, to train and to test together; None: 32,000, or all of your own.
        seed: of the curves. The seed of a run decides only their order and the weights.
        noise: standard deviation of the stress, as a share of each curve's proof stress.
        path: of a file of your own curves, absolute or from the project's folder, where trainings run. They should
            stand in random order, and are read into memory. See `_own_curves.FORMAT`. Inputs and targets are
            standardised by means and deviations over those to train on.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds something else, or there are fewer than 4 curves.
        OSError: the curves cannot be written.
    """
    count = samples or SAMPLES
    if count < _own_curves.FEWEST:
        raise ValueError(f"dataset strain_stress: samples={count}, expected: at least {_own_curves.FEWEST}")
    if path is not None:
        return _own(Path(path).expanduser(), samples)
    code = hashlib.sha256(Path(__file__).read_bytes() + Path(_ramberg_osgood.__file__).read_bytes()).hexdigest()
    made = arrays(
        folder / f"{count}-seed{seed}-noise{noise!r}-{code[:16]}",
        {"inputs": (count, *SHAPE), "targets": (count, OUTPUTS)},
        lambda: _chunks(count, seed, noise),
    )
    return _dataset(made["inputs"], made["targets"], _ramberg_osgood.MEAN, _ramberg_osgood.DEVIATION)


def _chunks(count: int, seed: int, noise: float) -> Iterator[Arrays]:
    for number, first in enumerate(range(0, count, CHUNK)):
        curves = _ramberg_osgood.draw(CHUNK, (seed, number), noise)
        inputs = np.stack([curves.strain, curves.stress, curves.loading], axis=2)
        targets = (curves.parameters - _ramberg_osgood.MEAN) / _ramberg_osgood.DEVIATION
        kept = min(CHUNK, count - first)
        yield {
            "inputs": ((inputs[:kept] - MIDDLE) / UNIT).astype(np.float32),
            "targets": targets[:kept].astype(np.float32),
        }


def _own(path: Path, samples: int | None) -> Dataset:
    inputs, parameters = _own_curves.read(path, samples)
    train = slice(0, trained(len(inputs)))
    middle, unit = (getattr(inputs[train], name)(axis=(0, 1), dtype=np.float64) for name in ("mean", "std"))
    mean, deviation = parameters[train].mean(axis=0), parameters[train].std(axis=0)
    if not (deviation > 0).all():
        raise ValueError(f"{path}: a parameter is the same in all curves to train on: there is nothing to be learnt")
    unit = np.where(unit > 0, unit, 1)
    inputs = ((inputs - middle) / unit).astype(np.float32)
    targets = ((parameters - mean) / deviation).astype(np.float32)
    return _dataset(inputs, targets, tuple(mean), tuple(deviation))


def trained(samples: int) -> int:
    """Return how many of the curves are trained on."""
    return samples * 3 // 4


def _dataset(
    inputs: NDArray[np.float32], targets: NDArray[np.float32], mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Dataset:
    x, y, end = torch.from_numpy(inputs), torch.from_numpy(targets), trained(len(inputs))
    found = partial(close, mean=mean, deviation=deviation)
    return Dataset(
        train=Samples(x[:end], y[:end]),
        test=Samples(x[end:], y[end:]),
        task=Task(TASKS[TASK].loss, "accuracy", found),
    )


def close(outputs: Tensor, targets: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Return of how many curves all parameters, no longer standardised, are within 5 % of the true ones."""
    true = targets * targets.new_tensor(deviation) + targets.new_tensor(mean)
    off = (outputs - targets).abs() * targets.new_tensor(deviation)
    return (off <= CLOSE * true.abs()).all(dim=1).sum()
