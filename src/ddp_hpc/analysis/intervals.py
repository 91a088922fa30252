"""How sure a median, mean, area or difference is: from one run, whose steps are correlated, and over several runs.

Runs differ by more than their steps scatter: what a run shows by itself is a lower bound of the doubt. So with several
runs the interval is over the runs, and with one run it says that it knows that run only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, floor, hypot, isnan, log, log10, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

CONFIDENCE = 0.95
FEWEST_STEPS = 50  # below, there are too few blocks to say anything
WITHIN = "1 run: within it only"
COUNTED = "counted"  # begins the basis of a count, which has no interval: it is what it is
FEWEST_FREEDOM = 3  # for Dunnett's limits, whose integral needs a variance that is not too uncertain
ENOUGH = 6  # degrees of freedom: a variance of fewer is a poor estimate, and shares those of others


@dataclass(frozen=True)
class Interval:
    """A middle and its interval at 95 %, in the unit of the values."""

    middle: float
    low: float  # nan where nothing is known
    high: float  # likewise
    basis: str  # from what: `5 runs`, or `1 run: within it only`

    @property
    def known(self) -> bool:
        """Whether there is more than a middle."""
        return not isnan(self.low)

    @property
    def counted(self) -> bool:
        """Whether the middle is a count, or made of counts alone, without an interval."""
        return self.basis.startswith(COUNTED) and not self.low < self.high

    def each(self, change: Callable[[float], float]) -> "Interval":
        """Return the interval of a rising function of the values."""
        return Interval(change(self.middle), change(self.low), change(self.high), self.basis)


def block_length(x: Array) -> int:
    """Return how many neighbours a block bootstrap of `x` has to keep together, from their correlation.

    The rule of Politis and White (Econometric Reviews 23(1), 2004) for blocks of fixed length, as corrected by Patton,
    Politis and White (Econometric Reviews 28(4), 2009): lags count up to twice the first one after which
    correlations are no longer told from 0. At least 1, at most 3 sqrt(n) and n / 3.
    """
    n = len(x)
    lags = _correlations(x, n)
    if lags is None:
        return 1
    quiet = max(5, ceil(sqrt(log10(n))))  # so many insignificant lags in a row end the search
    significant = np.abs(lags[1:]) >= 2 * sqrt(log10(n) / n)
    windows = np.lib.stride_tricks.sliding_window_view(significant, quiet)
    silent = np.flatnonzero(~windows.any(axis=1))
    found = int(silent[0]) if len(silent) else int(np.flatnonzero(significant)[-1]) + 1
    k = np.arange(1, min(2 * max(found, 1), len(lags) - 1) + 1)
    weights = np.clip(2 * (1 - k / (len(k) or 1)), 0, 1)  # flat top: Politis and Romano (1995)
    spread = 2 * float(weights @ (k * lags[k]))
    density = 1 + 2 * float(weights @ lags[k])
    if density <= 0:
        return 1
    best = (1.5 * (spread / density) ** 2) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(ceil(best), 1, max(1, ceil(min(3 * sqrt(n), n / 3)))))


def _correlations(x: Array, n: int) -> Array | None:
    """Return the autocorrelations of `x` from lag 0 on, as many as may count; None if nothing scatters."""
    centred = x - x.mean()
    power = float(centred @ centred)
    if n < 3 or power <= 1e-24 * float(x @ x):
        return None
    most = min(n - 1, ceil(sqrt(n)) + 2 * max(5, ceil(sqrt(log10(n)))))
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    return np.asarray(np.fft.irfft(spectrum, 2 * n)[: most + 1] / power)


def mean_error(x: Array) -> tuple[float, float]:
    """Return the standard error of the mean of correlated values, and its degrees of freedom.

    The moving-block bootstrap, whose variance of a mean is known in closed form, so nothing is drawn: the variance of
    the sums of all blocks of b neighbours over b n (Künsch, Annals of Statistics 17, 1989). Blocks share the mean that
    is taken from them, which leaves 1 - b/n of the variance: put back. As many degrees of freedom as there are blocks
    side by side, less one.
    """
    n, b = len(x), block_length(x)
    total = np.concatenate([[0.0], np.cumsum(x - x.mean())])
    sums = total[b:] - total[:-b]
    variance = float(np.mean(sums**2)) / (b * n * (1 - b / n))
    return sqrt(variance), max(1.0, n / b - 1)


def half_width(error: float, freedom: float) -> float:
    """Return half the width of a 95 % interval, by Student's t."""
    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error


def of_median(x: Array) -> Interval:
    """Return the median of the steps of one run and its interval within that run.

    The interval of the share of steps below the median, by `mean_error`, read off the sorted steps (Woodruff, Journal
    of the American Statistical Association 47, 1952): no shape is assumed, and single slow steps do no harm. Steps are
    in order; those that are not finite are left out.
    """
    x = x[np.isfinite(x)]
    middle = float(np.median(x)) if len(x) else nan
    if len(x) < FEWEST_STEPS:
        return Interval(middle, nan, nan, f"fewer than {FEWEST_STEPS} steps")
    below = np.where(x < middle, 1.0, np.where(x > middle, 0.0, 0.5))
    error, freedom = mean_error(below)
    half = min(0.5, half_width(error, freedom))
    low, high = np.quantile(x, [0.5 - half, 0.5 + half])
    return Interval(middle, float(low), float(high), WITHIN)


def of_mean(x: Array) -> Interval:
    """Return the mean of the steps of one run, slow ones included, and its interval within that run."""
    middle = float(np.mean(x)) if len(x) else nan
    if len(x) < FEWEST_STEPS or not np.isfinite(x).all():
        return Interval(middle, nan, nan, f"fewer than {FEWEST_STEPS} steps")
    half = half_width(*mean_error(x))
    return Interval(middle, middle - half, middle + half, WITHIN)


def over_runs(values: Sequence[float], alone: Interval | None = None, noise: "Arm | None" = None) -> Interval:
    """Return the median over runs and its interval.

    Times, rates and their ratios differ by factors, so the interval is Student's of the logarithms, where all values
    are positive; else of the values. It is stretched to the median where one run is far off. Few values take the
    variance of `noise`, of the logarithm of one of them (`Noise.at`), if it is larger than theirs, and its degrees of
    freedom. Of one run (or pair of runs) without that it is as wide, relative to the middle, as `alone`, what is known
    from within that run.
    """
    x = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if not len(x):
        return Interval(nan, nan, nan, "no run")
    middle, logarithmic = float(np.median(x)), bool((x > 0).all())
    own = Arm.of(np.log(x) if logarithmic else x)
    shared = noise if noise and logarithmic and noise.variance > 0 and own.freedom < ENOUGH else None
    if len(x) == 1 and not shared:
        alone = alone or Interval(middle, nan, nan, "1 run")
        scale = middle / alone.middle if alone.middle else nan
        return Interval(middle, alone.low * scale, alone.high * scale, alone.basis)
    basis = f"{len(x)} run{'s' * (len(x) > 1)}"
    if shared and shared.freedom > own.freedom:
        own = Arm(own.mean, own.runs, float(np.fmax(own.variance, shared.variance)), shared.freedom)
        basis += f", {counted_freedom(own.freedom)} from what does equal work"
    elif own.freedom == 1:
        basis += f", {counted_freedom(1)}"
    half = half_width(sqrt(own.variance / own.runs), own.freedom)
    low, high = own.mean - half, own.mean + half
    if logarithmic:
        low, high = np.exp([low, high])
    return Interval(middle, min(float(low), middle), max(float(high), middle), basis)


def counted_freedom(freedom: float) -> str:
    """Return degrees of freedom for reading."""
    return f"{freedom:.3g} degree{'s' * (freedom != 1)} of freedom"


def of_ratio(above: Interval, below: Interval) -> Interval:
    """Return the ratio of two independent positive middles; their relative errors add up in squares, as logarithms."""
    middle = above.middle / below.middle
    ends = (above.low, above.high, below.low, below.high)
    if not all(end > 0 for end in ends):
        return Interval(middle, nan, nan, below.basis if above.known else above.basis)
    up = hypot(log(above.high / above.middle), log(below.middle / below.low))
    down = hypot(log(above.middle / above.low), log(below.high / below.middle))
    return Interval(middle, middle * exp(-down), middle * exp(up), above.basis)


@dataclass(frozen=True)
class Arm:
    """The runs of one point on one side: their mean, and the variance of a single run about it."""

    mean: float
    runs: int
    variance: float  # of a single run; nan with one run
    freedom: float  # degrees of freedom of the variance; 0 with one run

    @classmethod
    def of(cls, values: Array) -> "Arm":
        """Return the arm of the values of some runs."""
        n = len(values)
        return cls(float(values.mean()), n, float(values.var(ddof=1)) if n > 1 else nan, n - 1)


def pooled(arms: Iterable[Arm]) -> Arm:
    """Return the variance that arms share, each with the weight of its degrees of freedom; it has no mean."""
    known = [arm for arm in arms if arm.freedom > 0]
    freedom = sum(arm.freedom for arm in known)
    variance = sum(arm.freedom * arm.variance for arm in known) / freedom if freedom else nan
    return Arm(nan, 0, variance, freedom)


@dataclass(frozen=True)
class Noise:
    """How what should be equal differs from run to run: variances, pooled by kind and over all."""

    kinds: Mapping[Any, Arm]
    whole: Arm

    @classmethod
    def of(cls, cells: Iterable[tuple[Any, Sequence[float]]]) -> "Noise":
        """Return the noise of logarithms within cells, each a kind and positive values, equal but for noise."""
        return cls.within((kind, np.log(np.array(values, dtype=np.float64))) for kind, values in cells)

    @classmethod
    def within(cls, cells: Iterable[tuple[Any, Array]]) -> "Noise":
        """Return the noise within cells, each a kind and values that would be equal without noise."""
        kinds: dict[Any, list[Arm]] = {}
        for kind, values in cells:
            kinds.setdefault(kind, []).append(Arm.of(values))
        found = {kind: pooled(arms) for kind, arms in kinds.items()}
        return cls(found, pooled(found.values()))

    def at(self, kind: Any) -> Arm:
        """Return the noise of a kind; of one with few degrees of freedom that of all, if it is not the smaller one."""
        own = self.kinds.get(kind, Arm(nan, 0, nan, 0))
        if own.freedom >= ENOUGH:
            return own
        return Arm(nan, 0, float(np.fmax(own.variance, self.whole.variance)), self.whole.freedom)


def least_apart(others: int, freedom: float, looks: int = 1, alike: bool = True) -> float:
    """Return by how many standard errors of a difference a mean must exceed the least one not to be the least in truth.

    The true least is among all that exceed it by less with a probability of 95 %, however many `others` there are
    (Gupta, Technometrics 7(2), 1965). The error has so many degrees of `freedom`. Where all means are of equally many
    runs with a common variance (`alike`), the limits are the one-sided ones of Dunnett and of Hsu's comparisons with
    the best. Else each is Student's, at Šidák's level for so many, which holds however differently they scatter. Who
    `looks` several times, and gives up what is apart, misses it no more often in all of them together (Bonferroni).
    """
    chance, freedom = (1 - CONFIDENCE) / looks, floor(10 * freedom) / 10  # few limits are computed then
    if alike and freedom >= FEWEST_FREEDOM:
        return _dunnett(others, freedom, chance)
    return float(special.stdtrit(freedom, (1 - chance) ** (1 / others)))


@cache
def _dunnett(others: int, freedom: float, chance: float) -> float:
    from scipy import optimize  # takes a quarter of a second, and few tables need it

    z, at_z = np.polynomial.hermite_e.hermegauss(64)
    at_z = at_z / at_z.sum()
    chances = (np.arange(400) + 0.5) / 400
    scales = np.sqrt(special.chdtri(freedom, 1 - chances) / freedom)  # of the estimated deviation to the true one

    def missed(limit: float) -> float:
        below = special.ndtr(z[:, None] + sqrt(2) * limit * scales[None, :]) ** others
        return float(at_z @ below.mean(axis=1)) - (1 - chance)

    one, all_of_them = (chance / count for count in (1, others))
    return float(
        optimize.brentq(
            missed, 0.9 * special.stdtrit(freedom, 1 - one), 1.1 * special.stdtrit(freedom, 1 - all_of_them)
        )
    )


@dataclass(frozen=True)
class Contrast:
    """The difference of two arms, or the mean of paired differences."""

    difference: float  # in the unit of the arms, e.g. of logarithms
    error: float  # its standard error
    freedom: float  # of the error, as Welch and Satterthwaite have it

    @property
    def p(self) -> float:
        """The chance of a difference as large where there is none, by Student's t on both sides."""
        if self.error == 0:
            return 1.0 if self.difference == 0 else 0.0
        return float(2 * special.stdtr(self.freedom, -abs(self.difference) / self.error))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of this difference, taken by itself."""
        return half_width(self.error, self.freedom)


def contrast(arms: Sequence[Arm]) -> Contrast:
    """Return the second arm less the first, or a single arm of paired differences as it is.

    The arms need not scatter alike: Welch (Biometrika 34, 1947).
    """
    parts = [arm.variance / arm.runs for arm in arms]
    variance = sum(parts)
    spread = sum(part**2 / arm.freedom for part, arm in zip(parts, arms, strict=True))
    difference = arms[-1].mean - (arms[0].mean if len(arms) == 2 else 0.0)
    return Contrast(difference, sqrt(variance), variance**2 / spread if spread else float(arms[0].freedom))
