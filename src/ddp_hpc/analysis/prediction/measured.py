"""What the model of a step needs of each run: the means of its parts, and how its ranks scatter."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np

from ddp_hpc.analysis.intervals import FEWEST_STEPS, Array, mean_error

UNKNOWN = (nan, nan, nan)
BLOCKS = 20  # of steps, for the error of a skewness


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a step is taken: by how many ranks on how many nodes, each with how large a batch."""

    world_size: int
    batch_size: float  # of one rank
    nodes: int = 1

    @property
    def ranks_per_node(self) -> float:
        """The ranks that share a node."""
        return self.world_size / self.nodes


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, by the means over its steps in seconds: work + wait + exposed is the step of the slowest rank."""

    place: Place
    work_s: float  # of a mean rank: the step without the exchange
    wait_s: float = 0.0  # of a mean rank, until the slowest has arrived
    exchange_s: float = nan  # from then on, with what overlaps the backward pass; nan: none took place
    exposed_s: float = 0.0  # of that, what nothing is computed beside
    skewness: float = nan  # of how ranks scatter in a step; nan: two ranks do not tell
    skewness_error: float = nan
    errors: tuple[float, float, float] = UNKNOWN  # relative, of work, exchange, wait, from how the steps scatter

    @property
    def step_s(self) -> float:
        """The mean step."""
        return self.work_s + self.wait_s + self.exposed_s


def reduced(place: Place, steps: Mapping[str, Array], mean_step_s: float, overlaps: bool) -> Run | str:
    """Return a run, from columns of its steps record of the shape (steps, ranks), or why it says nothing.

    The rank that arrives last does not wait: what it has of the exchange is the exchange. So where waiting was not
    measured, it is what the others have more. What the phases do not explain of `mean_step_s` is work.
    """
    exposed = steps["exchange_exposed_s"]
    if not np.isfinite(exposed).any():
        return "the exposed exchange was not recorded"
    own = steps["step_s"] - exposed
    move = steps["move_s"]
    last = np.nanmean(move, axis=1) if np.isfinite(move).all() else exposed.min(axis=1)
    of_all = last
    if overlaps:
        if not np.isfinite(steps["exchange_busy_s"]).all():
            return "only the exposed part of the exchange was recorded; what overlaps the backward pass is needed, too"
        of_all = steps["exchange_busy_s"].min(axis=1)
    ranks, exposed_s = place.world_size, float(last.mean())
    waits = exposed.mean(axis=1) - last
    wait_s = max(0.0, float(waits.mean())) if ranks > 1 else 0.0
    skewness, error = skewness_of(own)
    return Run(
        place=place,
        work_s=mean_step_s - wait_s - exposed_s,
        wait_s=wait_s,
        exchange_s=float(of_all.mean()),
        exposed_s=exposed_s,
        skewness=skewness,
        skewness_error=error,
        errors=(relative_error(own.mean(axis=1)), relative_error(of_all), relative_error(waits)),
    )


def skewness_of(work: Array) -> tuple[float, float]:
    """Return the skewness of a rank's work about what all ranks of a step have in common, and its standard error.

    Deviations from the mean over n ranks are less skewed than the ranks are, those of two ranks not at all: their third
    cumulant is (n-1)(n-2)/n^2 times as large, their variance (n-1)/n times. The error is that of steps that are
    independent: blocks of them are left out in turn (jackknife).
    """
    steps, n = work.shape
    blocks = min(steps, BLOCKS)
    if n < 3 or blocks < 2:
        return nan, nan
    apart = work - work.mean(axis=1, keepdims=True)
    powers = [np.array([(part**power).sum() for part in np.array_split(apart, blocks)]) for power in (2, 3)]
    counts = np.array([part.size for part in np.array_split(apart, blocks)])

    def skewness(squares: Array, cubes: Array, values: Array) -> Array:
        variance = squares / values * n / (n - 1)
        return np.asarray(cubes / values * n**2 / ((n - 1) * (n - 2)) / variance**1.5)

    if powers[0].sum() <= 0:
        return nan, nan
    whole = skewness(powers[0].sum(), powers[1].sum(), counts.sum())
    without = skewness(*(total.sum() - total for total in (*powers, counts)))
    return float(whole), float(np.sqrt((blocks - 1) / blocks * ((without - without.mean()) ** 2).sum()))


def relative_error(x: Array) -> float:
    """Return the relative standard error of the mean of correlated values; nan where they are too few to tell."""
    mean = float(x.mean())
    if len(x) < FEWEST_STEPS or mean <= 0:
        return nan
    return mean_error(x)[0] / mean
