"""Samples of a language model: rows of tokens, and for each token the one that follows."""

import numpy as np
import torch
from numpy.typing import NDArray

from ddp_hpc.data._tasks import Samples


def next_tokens(rows: NDArray[np.integer]) -> Samples:
    """Return the tokens of each row but the last as inputs, and of each row but the first as targets; both int64."""
    tokens = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
    return Samples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
