"""Metrics of one's own: functions in the file of a model or dataset, which its `METRICS` names."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec

Metric = Callable[[Tensor, Tensor], Tensor]  # from outputs and targets to a number per sample; the mean counts


def of(spec: RunSpec) -> dict[str, Metric]:
    """Return the functions of the metrics of a run, by name."""
    return {
        metric: getattr(catalog.load(kind, name), metric)
        for kind, name in (("model", spec.model.name), ("dataset", spec.dataset.name))
        for metric in catalog.metrics(kind, name)
    }


def sums(metrics: Mapping[str, Metric], outputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Return the sum over these samples of each metric, in double precision, or raise a ValueError."""
    found = []
    for name, metric in metrics.items():
        values = metric(outputs, targets)
        if not isinstance(values, Tensor) or values.shape != (len(targets),):
            given = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"metric {name} gives {given}, expected: a number per sample, shape ({len(targets)},)")
        found.append(values.to(torch.float64).sum())
    return found
