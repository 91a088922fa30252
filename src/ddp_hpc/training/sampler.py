"""The data sampler: which samples a rank takes in a step."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ddp_hpc.config.spec import RunSpec


class SampleStream:
    """An endless row of sample numbers: epochs, one after the other.

    `epoch` gives the 1-D int64 tensor of the sample numbers of epoch 0, 1, ...; all have the same `length`.
    """

    def __init__(self, epoch: Callable[[int], Tensor], length: int) -> None:
        self._epoch, self._length = epoch, length
        self._number, self._order = 0, epoch(0)

    def take(self, start: int, count: int) -> Tensor:
        """Return the sample numbers at positions start ... start + count - 1; always the same for the same position."""
        pieces = []
        while count:
            number, offset = divmod(start, self._length)
            if number != self._number:
                self._number, self._order = number, self._epoch(number)
            piece = self._order[offset : offset + count]
            pieces.append(piece)
            start, count = start + len(piece), count - len(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in one epoch: the same on every rank and at every world size."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))


class RankSamples:
    """The sample numbers (int64) of one rank's batches: `batch` of them in each `stride` of a stream."""

    def __init__(self, stream: SampleStream, batch: int, stride: int, first: int = 0) -> None:
        self._stream, self._batch, self._stride, self._first = stream, batch, stride, first

    def __call__(self, step: int) -> Tensor:
        """Return those of a step, counted from 0."""
        return self._stream.take(step * self._stride + self._first, self._batch)

    def rows(self, step: int, count: int) -> Tensor:
        """Return those of so many steps from this one on, a row each: taken at once, which is sooner done."""
        length = (count - 1) * self._stride + self._batch
        return self._stream.take(step * self._stride + self._first, length).unfold(0, self._batch, self._stride)


def make_batches(spec: RunSpec, rank: int, samples: int, device: torch.device) -> RankSamples:
    """Return what gives, for each step, the sample numbers of this rank's batch, on `device`.

    global: step k takes the next global batch of the stream of permuted epochs, rank r its r-th part; so every
    world size sees the same global batches. partitioned: rank r cycles its own 1/n of the samples in their order.

    Raises:
        ValueError: partitioned, with fewer samples than ranks.
    """
    batch, n = spec.batch_size, spec.world_size
    if spec.sampling == "global":
        stream = SampleStream(lambda epoch: permutation(samples, spec.seed, epoch).to(device), samples)
        return RankSamples(stream, batch, n * batch, rank * batch)
    first, last = rank * samples // n, (rank + 1) * samples // n
    if first == last:
        raise ValueError(f"sampling: partitioned over {n} ranks needs at least {n} samples, the dataset has {samples}")
    own = torch.arange(first, last, device=device)
    return RankSamples(SampleStream(lambda epoch: own, len(own)), batch, batch)


def weighted_mean(sums: "np.typing.ArrayLike", counts: "np.typing.ArrayLike") -> "np.typing.NDArray[np.float64]":
    """Return the mean over all samples of all ranks, from each rank's sum and number of samples (first axis: ranks).

    A mean of the ranks' means would weigh a short batch too much.
    """
    total = np.sum(np.asarray(sums, dtype=np.float64), axis=0)
    return np.asarray(total / np.sum(np.asarray(counts, dtype=np.float64), axis=0))
