"""The learning rate: its scaling with the global batch, and its warmup."""

import math
from collections.abc import Callable

from ddp_hpc.config.spec import RunSpec


def scaled_learning_rate(spec: RunSpec) -> float:
    """Return the full learning rate: times 1, k or sqrt(k), k = global batch / base batch.

    Source: linear, Goyal et al., arXiv:1706.02677 (2017); sqrt, Krizhevsky, arXiv:1404.5997 (2014).
    """
    if spec.base_batch_size is None:
        return spec.learning_rate
    k = spec.global_batch_size / spec.base_batch_size
    return spec.learning_rate * (k if spec.learning_rate_scaling == "linear" else math.sqrt(k))


def learning_rate_rule(spec: RunSpec) -> Callable[[int], float]:
    """Return the learning rate as a function of the step, counted from 1.

    During warmup it rises linearly, reaching the full rate at step `learning_rate_warm_up_steps`.
    """
    full, rise = scaled_learning_rate(spec), spec.learning_rate_warm_up_steps
    return lambda step: full * step / rise if step < rise else full
