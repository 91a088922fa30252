"""Result sets that no machine has measured: step times that are correlated within a run, and runs that differ."""

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from ddp_hpc.analysis.compare.result_sets import ResultSet
from ddp_hpc.analysis.compare.significance import USED

SPEC = {
    "model": "mlp", "model_options": "{}", "dataset": "digits", "dataset_options": "{}", "exchange": "ring",
    "exchange_options": "{}", "batch_size": 16, "learning_rate": 0.1, "budget": "200 steps",
}  # fmt: skip
STEPS, CORRELATION, WITHIN = 200, 0.7, 0.08  # a step's noise forgets by 0.7 a step, its standard deviation is 8 %


def step_times(rng: np.random.Generator, medians: np.ndarray) -> np.ndarray:
    """Return times of steps of a first-order autoregression about the given medians, in the last axis."""
    shocks = rng.normal(size=(*medians.shape, STEPS + 50)) * np.sqrt(1 - CORRELATION**2)
    noise = lfilter([1], [1, -CORRELATION], shocks, axis=-1)[..., 50:]
    slow = 1 + 4 * (rng.random(noise.shape) < 0.01)  # a disturbance now and then
    return medians[..., None] * np.exp(WITHIN * noise) * slow


def runs(rng: np.random.Generator, points: int, repeats: int, noise: float, factors: dict[int, float]) -> ResultSet:
    """Return a set of runs whose median steps scatter by `noise` from run to run, some points slower by a factor.

    Points differ in their ranks, their time per step, and by up to a factor of two in how much their runs scatter.
    """
    scatter = noise * np.linspace(0.7, 1.4, points)[:, None]
    truth = 0.002 * (1 + np.arange(points))[:, None] * np.exp(scatter * rng.normal(size=(points, repeats)))
    truth *= np.array([factors.get(point, 1.0) for point in range(points)])[:, None]
    times = step_times(rng, truth)
    index = [(point, repeat) for point in range(points) for repeat in range(repeats)]
    flat = times.reshape(len(index), STEPS)
    columns = dict.fromkeys(USED) | SPEC
    frame = pd.DataFrame(
        columns
        | {
            "run": [f"run-{point}-{repeat}" for point, repeat in index],
            "world_size": [1 + point for point, _ in index],
            "seed": [repeat for _, repeat in index],
            "status": "ok",
            "step_s": np.median(flat, axis=1),
            "samples_per_s": 16 * STEPS / flat.sum(axis=1),
        }
    )
    return ResultSet("synthetic", frame)
