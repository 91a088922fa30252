"""Latency and bandwidth (alpha, beta) from times of whole exchanges."""

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from scipy.optimize import nnls

from ddp_hpc import perfmodel
from ddp_hpc.bench.sweep_results import COPIES, SAME
from ddp_hpc.bench.timing import Row
from ddp_hpc.config import catalog

FEWEST_POINTS = 3  # two numbers are sought, and their errors


def fits(rows: Sequence[Row]) -> list[Row]:
    """Return alpha and beta of each exchange at each number of ranks, from rows of a sweep."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["exchange"] not in COPIES and row["median_s"] is not None:
            groups.setdefault(tuple(row[name] for name in SAME), []).append(row)
    return [
        dict(zip(SAME, key, strict=True))
        | fit([row["bytes"] for row in taken], [row["median_s"] for row in taken], *key[:3])
        for key, taken in groups.items()
        if len(taken) >= FEWEST_POINTS
    ]


def fit(sizes: Sequence[int], times: Sequence[float], world_size: int, exchange: str, options: str = "{}") -> Row:
    """Return `latency_s`, `bandwidth`, their standard errors and how far the fit is from the times.

    The time of an exchange is linear in alpha and 1/beta, with the factors of `perfmodel.cost`: one rank, and what has
    no model there, is one message of the whole buffer; of compressed gradients the bandwidth is an effective one.
    Relative errors are made least (weights 1/t), for the times span six powers of ten; neither number may be negative.
    Standard errors are those of linear least squares.

    Args:
        sizes: in bytes.
        times: of one exchange of each, in s, greater than 0.
        world_size: ranks.
        exchange: a file in exchange/.
        options: of it, as JSON.
    """
    t = np.array(times)
    factors = np.array([_factors(exchange, size, world_size, json.loads(options)) for size in sizes])
    scaled = factors / t[:, None]
    (latency, per_byte), _ = nnls(scaled, np.ones(len(t)))
    relative = scaled @ np.array([latency, per_byte]) - 1
    variance = float(relative @ relative) / max(1, len(t) - 2)
    latency_error, per_byte_error = np.sqrt(np.diag(np.linalg.pinv(scaled.T @ scaled)) * variance)
    return {
        "latency_s": float(latency),
        "latency_error_s": float(latency_error),
        "bandwidth": float(1 / per_byte) if per_byte > 0 else None,
        "bandwidth_error": float(per_byte_error / per_byte**2) if per_byte > 0 else None,
        "relative_spread": sqrt(float(relative @ relative) / len(t)),
        "relative_worst": float(np.abs(relative).max()),
        "points": len(t),
    }


def _factors(exchange: str, size: int, world_size: int, given: Mapping[str, Any]) -> tuple[float, float]:
    """Return by what alpha and 1/beta are multiplied in the time of an exchange."""
    model = catalog.cost_model(exchange, given)
    if world_size == 1 or model is None:
        return 1.0, float(size)
    formula, options = model
    cost = perfmodel.cost(formula, size, world_size, **options)
    return cost.rounds + cost.barriers, cost.path_bytes + cost.memory_bytes
