"""The variance between runs of one point, and the change that it lets a number of repeats detect."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt

import numpy as np
from scipy import special

from ddp_hpc.analysis.intervals import Arm

ALPHA = 0.05  # chance of any false alarm over all comparisons of two result sets
POWER = 0.9
CAUTION = 0.65  # how sure it is that the scatter is not larger than the one that repeats are planned with
MOST_REPEATS = 1000
TOO_UNLIKE = 2.0  # degrees of freedom: a prior of so few has no mean, its points have nothing in common
NO_SCATTER = 1e-5  # times the common variance: less than that is a coincidence, e.g. of rounded values


@dataclass(frozen=True)
class Prior:
    """What the points of a set say together of how runs scatter."""

    variance: float  # of a single run, typical of the set
    freedom: float  # how many degrees of freedom it is worth for each point: the more, the more alike the points are
    total: float  # degrees of freedom of all points together
    points: int  # how many have repeats

    def moderated(self, arm: Arm) -> Arm:
        """Return an arm with its own variance and that of the set averaged by their degrees of freedom."""
        if not self.points:
            return arm
        if self.freedom == inf:
            return Arm(arm.mean, arm.runs, self.variance, self.total)
        own = arm.freedom * arm.variance if arm.freedom else 0.0
        freedom = self.freedom + arm.freedom
        variance = (self.freedom * self.variance + own) / freedom if freedom else nan
        return Arm(arm.mean, arm.runs, variance, min(freedom, self.total))

    @classmethod
    def shared(cls, noise: Arm) -> "Prior":
        """Return that all points scatter alike, as `noise` does."""
        return cls(noise.variance, inf, noise.freedom, 1)

    def of_both(self, first: Arm, second: Arm, freedom: float) -> float:
        """Return the degrees of freedom of a difference of two moderated arms, `freedom` if they shared nothing."""
        if not self.points or self.freedom == inf:
            return self.total if self.points else freedom
        return min(freedom, self.total, first.freedom + second.freedom - self.freedom)


def prior(arms: Sequence[Arm]) -> Prior:
    """Return what the scatter of all points of a set says of that of each.

    The variances of few repeats are poor estimates. Points of one set are measured in the same way on the same machine,
    so their relative variances are alike; how alike, the variances themselves tell: an empirical Bayes estimate of an
    inverse chi-squared distribution (Smyth, Statistical Applications in Genetics and Molecular Biology 3(1), 2004).
    How much they differ is taken one standard error larger than it looks, and their level not below their mean, so
    that false alarms stay rare where points are less alike than they happen to look. Points that are too unlike share
    nothing, and a single point has no prior.
    """
    known = [arm for arm in arms if arm.freedom > 0]
    total = float(sum(arm.freedom for arm in known))
    if len(known) < 2:
        return Prior(nan, 0.0, total, 0)
    freedom = np.array([arm.freedom for arm in known], dtype=np.float64)
    variances = np.array([arm.variance for arm in known])
    common = float(freedom @ variances / total)
    if common == 0:
        return Prior(0.0, inf, total, len(known))
    logs = np.log(np.maximum(variances, NO_SCATTER * common))
    logs = logs - special.digamma(freedom / 2) + np.log(freedom / 2)
    chance = float(np.mean(special.polygamma(1, freedom / 2)))
    peaked = float(np.mean(special.polygamma(3, freedom / 2))) / chance**2
    found = float(np.var(logs, ddof=1))
    doubt = max(found, chance) * sqrt(2 / (len(known) - 1) + peaked / len(known))  # standard error of a variance
    worth = 2 * _inverse_trigamma(max(0.0, found - chance) + doubt)
    if worth <= TOO_UNLIKE:
        return Prior(nan, 0.0, total, 0)
    typical = float(np.exp(logs.mean() + special.digamma(worth / 2) - np.log(worth / 2)))
    return Prior(max(typical, common), worth, total, len(known))


def _inverse_trigamma(value: float) -> float:
    if value < 1e-6:
        return 1 / value
    if value > 1e7:
        return 1 / sqrt(value)
    from scipy import optimize  # takes a quarter of a second, and few tables need it

    return float(optimize.brentq(lambda x: float(special.polygamma(1, x)) - value, 1e-4, 1e7))


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being so many: below a level, the chance of any false alarm is below that level.

    Holm (Scandinavian Journal of Statistics 6, 1979); it needs no independence of the comparisons.
    """
    order = np.argsort(p, kind="stable")
    stepped = np.array(p)[order] * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(stepped))
    return [float(value) for value in adjusted]


def repeats_needed(arms: Sequence[Arm], priors: Sequence[Prior], difference: float, comparisons: int) -> int | None:
    """Return how many repeats on each side find a difference in nine of ten cases; None for more than 1,000.

    It is in the unit of the arms, which are moderated by their priors, and has to stand out among so many comparisons
    (a level of 5 % over their number, Holm's first step). Planned with the upper 65 % limit of the variances, because
    with the variance that a few repeats happen to show half of all plans would be too small (Browne, Statistics in
    Medicine 14, 1995).
    """
    limits = [arm.variance * arm.freedom / float(special.chdtri(arm.freedom, CAUTION)) for arm in arms]

    def found(n: int) -> bool:
        parts = [limit / n for limit in limits]
        error = sqrt(sum(parts))
        if error == 0:
            return True
        # of a variance from n repeats of each point and what the points share
        worth = [min(one.freedom + n - 1, max(1, one.points) * (n - 1)) for one in priors]
        freedom = sum(parts) ** 2 / sum(part**2 / one for part, one in zip(parts, worth, strict=True))
        threshold = float(special.stdtrit(freedom, 1 - ALPHA / comparisons / 2))
        missed = float(special.nctdtr(freedom, abs(difference) / error, threshold))
        if not np.isfinite(missed):  # beyond what it can compute: as sure as can be, on either side
            return abs(difference) / error > threshold
        return 1 - missed >= POWER

    numbers = range(2, MOST_REPEATS + 1)
    place = bisect_left(numbers, True, key=found)
    return numbers[place] if place < len(numbers) else None
