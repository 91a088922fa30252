"""The gradient noise scale, and how many steps another batch needs.

McCandlish, Kaplan, Amodei et al., An Empirical Model of Large-Batch Training, arXiv:1812.06162: a step with a batch of
B samples comes as far as 1 / (1 + B_noise / B) of one with the true gradient G, where B_noise = tr(Sigma) / |G|^2 and
Sigma is the covariance of the gradients of single samples. So the way to a loss takes S_min (1 + B_noise / B) steps, if
the learning rate is tuned for each batch.
"""

from dataclasses import dataclass
from functools import cached_property
from math import exp, isfinite, log, nan, sqrt

import numpy as np
from scipy import optimize, special

from ddp_hpc.analysis.intervals import CONFIDENCE, Array, Interval

MOST_SEGMENTS = 8  # of the way to a goal, in each of which the noise scale is taken to be constant
FEWEST_IN_SEGMENT = 5  # samples
FEWEST_SAMPLES = 10
DRAWS = 2000
FARTHEST = 8  # times the largest, or a part of the smallest measured batch


@dataclass(frozen=True)
class Norms:
    """Squared norms of gradients at the sampled steps of a run; arrays of the shape (samples,)."""

    step: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    part: Array  # of a part of the batch, mean over the parts
    whole: Array  # of the mean of the parts
    parts: int
    samples: int  # of a part

    @property
    def batch(self) -> int:
        """The samples of all parts."""
        return self.parts * self.samples

    def until(self, step: float) -> "Norms":
        """Return the samples up to a step, included."""
        there = self.step <= step
        return Norms(self.step[there], self.part[there], self.whole[there], self.parts, self.samples)

    @property
    def signal(self) -> Array:
        """Unbiased estimates of |G|^2; single ones may be negative."""
        return np.asarray((self.batch * self.whole - self.samples * self.part) / (self.batch - self.samples))

    @property
    def noise(self) -> Array:
        """Unbiased estimates of tr(Sigma)."""
        return np.asarray((self.part - self.whole) / (1 / self.samples - 1 / self.batch))

    def noise_scale(self) -> Interval:
        """Return B_simple = tr(Sigma) / |G|^2, the ratio of the means over the samples, and its interval.

        Fieller's interval of a ratio (Journal of the Royal Statistical Society B 16(2), 1954). Batches of different
        steps are drawn apart, and what changes slowly on the way is no noise: variances are those of successive
        differences (von Neumann, Annals of Mathematical Statistics 12, 1941), with 2/3 of the degrees of freedom.
        """
        n, g, s = len(self.step), self.signal, self.noise
        if n < FEWEST_SAMPLES or not np.isfinite([*g, *s]).all():
            return Interval(nan, nan, nan, f"fewer than {FEWEST_SAMPLES} samples")
        t = float(special.stdtrit(2 * (n - 1) / 3, (1 + CONFIDENCE) / 2))
        steps = np.diff([s, g], axis=1)
        (vs, cov), (_, vg) = t**2 * (steps @ steps.T) / (2 * (n - 1)) / n
        mean_s, mean_g = float(s.mean()), float(g.mean())
        a, b, c = mean_g**2 - vg, mean_s * mean_g - cov, mean_s**2 - vs
        if a <= 0 or mean_g <= 0:
            return Interval(nan, nan, nan, "the gradient cannot be told from its noise: sample more steps")
        root = sqrt(max(0.0, b**2 - a * c))
        return Interval(mean_s / mean_g, max(0.0, (b - root) / a), (b + root) / a, f"{n} samples of 1 run")

    def along_the_way(self, batch: int) -> float:
        """Return B_noise of all steps of a run with this global batch together; nan where that cannot be told.

        The steps count by how far they come: with f = 1 / (1 + B_noise / batch), taken from the means over segments of
        the way, S steps are S_min = S mean(f) with the true gradient, so B_noise = batch (1 / mean(f) - 1).
        """
        if len(self.step) < FEWEST_SAMPLES or not np.isfinite(self.part).all():
            return nan
        count = min(MOST_SEGMENTS, len(self.step) // FEWEST_IN_SEGMENT)
        pieces = zip(np.array_split(self.signal, count), np.array_split(self.noise, count), strict=True)
        shares = []
        for signal, noise in pieces:
            g, s = max(0.0, float(signal.mean())), max(0.0, float(noise.mean()))
            shares.append(g / (g + s / batch) if g + s > 0 else 0.0)
        share = float(np.mean(shares))
        return batch * (1 / share - 1) if share > 0 else nan


@dataclass(frozen=True)
class StepsThere:
    """How far it was with one global batch: the steps of its runs, and the noise scales that these have shown."""

    batch: int
    steps: tuple[float, ...]
    noise_scales: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepsModel:
    """S_min (1 + B_noise / B), with B_noise from the gradients, and S_min from the steps that runs have taken."""

    ways: tuple[StepsThere, ...]

    @cached_property
    def noise_scales(self) -> Array:
        """What the runs have shown."""
        return np.array([one for way in self.ways for one in way.noise_scales if isfinite(one) and one > 0])

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """The global batches and the steps that they took: the median over the runs of each."""
        steps = [float(np.median(one.steps)) for one in self.ways]
        return np.array([float(one.batch) for one in self.ways]), np.array(steps)

    @property
    def known(self) -> bool:
        """Whether there is anything to fit."""
        return len(self.noise_scales) > 0 and len(self.points[0]) > 0

    @cached_property
    def noise_scale(self) -> float:
        """B_noise: the median over the runs."""
        return float(np.median(self.noise_scales))

    def least_steps(self, noise_scale: float | None = None) -> float:
        """Return S_min, by least squares of relative errors, at the model's noise scale or at another one."""
        batch, steps = self.points
        return exp(float(np.mean(np.log(steps / (1 + (noise_scale or self.noise_scale) / batch)))))

    @cached_property
    def drawn(self) -> tuple[Array, Array]:
        """S_min and B_noise as another batch might have them: as far off as the measured ones, by Student's t.

        What a batch is off is not only noise: its best learning rate lies between those that were tried. So batches
        count, not runs.
        """
        rng, (batch, steps), scales = np.random.default_rng(0), self.points, np.log(self.noise_scales)
        off = np.log(steps) - np.log(self.steps(batch))
        n, m = len(off), len(scales)
        error = float(np.std(off, ddof=1)) * sqrt(1 + 1 / n) if n > 1 else nan
        error_of_scale = float(np.std(scales, ddof=1)) / sqrt(m) if m > 1 else nan
        noise = self.noise_scale * np.exp(error_of_scale * rng.standard_t(max(1, m - 1), DRAWS))
        least = np.array([self.least_steps(one) for one in noise])
        return least * np.exp(error * rng.standard_t(max(1, n - 1), DRAWS)), noise

    def steps(self, batch: "Array | float") -> Array:
        """Return the steps at other global batches."""
        return np.asarray(self.least_steps() * (1 + self.noise_scale / np.asarray(batch)))

    def interval(self, batch: float) -> Interval:
        """Return the steps at a global batch and their 95 % interval."""
        least, noise = self.drawn
        return self._between(float(self.steps(batch)), least * (1 + noise / batch), f"{len(self.ways)} batches")

    def critical_batch(self) -> Interval:
        """Return B_noise: the batch that takes twice the fewest steps, and twice the fewest samples."""
        return self._between(self.noise_scale, self.drawn[1], f"{len(self.noise_scales)} runs")

    def _between(self, middle: float, values: Array, basis: str) -> Interval:
        if not np.isfinite(values).all():
            return Interval(middle, nan, nan, basis)
        low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Interval(middle, min(middle, float(low)), max(middle, float(high)), basis)

    @cached_property
    def held_out(self) -> tuple[int, float] | None:
        """The largest measured batch, and how far it is off in percent if it is predicted from the others; or None."""
        largest = max((way.batch for way in self.ways), default=0)
        others = StepsModel(tuple(way for way in self.ways if way.batch != largest))
        if not others.known:
            return None
        measured = float(np.median(next(way.steps for way in self.ways if way.batch == largest)))
        return largest, 100 * (float(others.steps(largest)) / measured - 1)

    @cached_property
    def noise_scale_of_steps(self) -> float:
        """B_noise as the steps alone would have it, without gradients; nan from one batch, or where it has no end."""
        batch, steps = self.points
        if len({*batch}) < 2:
            return nan

        def spread(exponent: float) -> float:
            return float(np.var(np.log(steps) - np.log1p(exp(exponent) / batch)))

        ends = log(batch.min() / 100), log(100 * batch.max())
        found = optimize.minimize_scalar(spread, bounds=ends, method="bounded")
        inside = ends[0] + 0.1 < found.x < ends[1] - 0.1
        return exp(found.x) if inside else nan
