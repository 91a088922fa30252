"""A model of a step that can be read: work, waiting for the slowest rank, and what the exchange adds.

- Work of a rank: a + b x batch + c x batch x (ranks of its node - 1); the last on CPUs alone, which share memory.
- Waiting: the expected maximum of n draws from a distribution as skewed as ranks scatter. Its width is that of the
  waiting that was measured, so its level is measured, and its growth comes from order statistics.
- Exchange: rounds x latency + bytes / bandwidth (`perfmodel.cost`), within a node and between nodes apart, after what
  it costs on one rank where that was measured. Of one that overlaps the backward pass counts what is left of it
  (`perfmodel.exposed_time`).

All but the overlap is linear in what is sought, so it is fitted by least squares of relative errors, where no number
may be negative. Each run counts as one measurement. Intervals come from a bootstrap: runs are drawn again, with how
runs differ from the model, or where they are too few for that, how their steps scatter, and the model is fitted again.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import combinations
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
from scipy import special

from ddp_hpc import perfmodel
from ddp_hpc.analysis.intervals import CONFIDENCE, Array, Interval, counted_freedom
from ddp_hpc.analysis.prediction.measured import Place, Run

REPLICATES = 1000
MOST_DRAWN = 5.0  # logarithm of a factor: of one degree of freedom, further ones say no more, and overflow
DRAWS = 2000  # points at which a distribution is evaluated
UNKNOWN_SKEWNESS = (1.0, 0.5)  # from normal to exponential
_SKEWNESSES = np.linspace(0, 6, 31)
CLEARLY = 4.0  # times smaller must be the squares that one algorithm misses by, to be taken for the other
SAME = 1e-9  # relative: singular values below are 0
LATENCY, PER_BYTE = 0, 1  # of the link within a node; those between nodes come after them
WITHIN, BETWEEN = 0, 2


@dataclass(frozen=True, kw_only=True)
class ExchangeModel:
    """An exchange as the model needs it."""

    formula: str  # of `perfmodel`
    size: float  # bytes of the gradients
    options: Mapping[str, Any] = field(default_factory=dict)
    overlaps: bool = False
    links: tuple[float, ...] = (nan,) * 4  # latency and 1/bandwidth within a node and between nodes; nan: fitted

    def given(self, where: int, link: perfmodel.Link) -> "ExchangeModel":
        """Return this exchange over a link that is known, `WITHIN` a node or `BETWEEN` nodes."""
        links = [*self.links]
        links[where + LATENCY], links[where + PER_BYTE] = link.latency, 1 / link.bandwidth
        return replace(self, links=tuple(links))

    def factors(self, place: Place) -> Array:
        """Return by what 1 (what it costs on one rank), and latency and 1/bandwidth of both links, are multiplied."""
        cost = perfmodel.cost(self.formula, self.size, place.world_size, hosts=place.nodes, **self.options)
        network, memory = [cost.rounds, cost.path_bytes], [cost.barriers, cost.memory_bytes]
        if place.nodes == 1:
            return np.array([1.0, network[0] + memory[0], network[1] + memory[1], 0.0, 0.0])
        return np.array([1.0, *memory, *network])


@dataclass(frozen=True)
class Step:
    """A step by its parts, in seconds; each a number, or one for each replicate."""

    work_s: Any
    waiting_s: Any
    exchange_s: Any  # what of it is exposed

    @property
    def step_s(self) -> Any:
        """The mean step of the slowest rank."""
        return self.work_s + self.waiting_s + self.exchange_s


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A step that was not measured."""

    middle: Step
    replicates: Step
    basis: str  # from what its intervals are; empty: nothing

    def interval(self, values: Any = None, middle: float | None = None) -> Interval:
        """Return the 95 % interval of the step or, if they are given, of other values of the replicates."""
        values = self.replicates.step_s if values is None else values
        middle = float(self.middle.step_s) if middle is None else middle
        if not self.basis:
            return Interval(middle, nan, nan, "not known: one run of each world size, of too few steps")
        low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Interval(middle, min(float(low), middle), max(float(high), middle), self.basis)


class Model:
    """The model of a step, fitted to some runs."""

    def __init__(self, runs: Sequence[Run], exchange: ExchangeModel, shares_memory: bool, seed: int = 0) -> None:
        self.runs, self.shares_memory = list(runs), shares_memory
        self.exchange = exchange = as_it_went(exchange, self.runs)
        self.asked = exchange  # what is predicted: the one that was measured, unless `instead` says otherwise
        self._several = [at for at, run in enumerate(self.runs) if run.place.world_size > 1]
        self._exchanging = [at for at, run in enumerate(self.runs) if not isnan(run.exchange_s)]
        self._alone = any(self.runs[at].place.world_size == 1 for at in self._exchanging)
        self._given = np.array([nan if self._alone else 0.0, *exchange.links])
        self._random = np.random.default_rng(seed)

    def instead(self, other: ExchangeModel) -> "Model":
        """Return this model, as fitted, for steps with another exchange over the same links."""
        changed = copy(self)
        changed.asked = other
        return changed

    def _work_factors(self, place: Place) -> Array:
        sharing = place.batch_size * (place.ranks_per_node - 1) if self.shares_memory else 0.0
        return np.array([1.0, place.batch_size, sharing])

    @cached_property
    def _work_rows(self) -> Array:
        return np.array([self._work_factors(run.place) for run in self.runs])

    @cached_property
    def _exchange_rows(self) -> Array:
        rows = [self.exchange.factors(self.runs[at].place) for at in self._exchanging]
        return np.array(rows).reshape(-1, len(self._given))

    @property
    def tells_work(self) -> "Tells":
        """Which works these runs tell."""
        return Tells(self._work_rows, self._work_factors)

    @property
    def tells_exchange(self) -> "Tells":
        """Which exchanges these runs tell, beside the links that are given."""
        unknown = np.isnan(self._given)
        return Tells(self._exchange_rows[:, unknown], lambda place: self.asked.factors(place)[unknown])

    @cached_property
    def _measured(self) -> Array:
        """The parts of each run, shape (runs, 4): work, exchange, of that exposed, waiting."""
        return np.array([(run.work_s, run.exchange_s, run.exposed_s, run.wait_s) for run in self.runs])

    @cached_property
    def _skewness(self) -> tuple[float, float]:
        """How skewed ranks scatter, and how sure that is, over all runs that tell."""
        known = [(run.skewness, run.skewness_error) for run in self.runs if not isnan(run.skewness_error)]
        if not known:
            return UNKNOWN_SKEWNESS
        values, errors = np.array(known).T
        between = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return float(values.mean()), max(between, float(np.sqrt((errors**2).mean()))) / sqrt(len(values))

    def predict(self, place: Place) -> Prediction:
        """Return how long a step takes there."""
        middle = self._step(place, self._middle)
        return Prediction(middle=middle, replicates=self._step(place, self._replicates), basis=self.basis)

    @cached_property
    def _middle(self) -> "Fitted":
        return self._fit(self._measured[None], np.array([self._skewness[0]]))

    @cached_property
    def _replicates(self) -> "Fitted":
        drawn = self._measured * np.exp(self._deviations)
        skewness, error = self._skewness
        return self._fit(drawn, skewness + error * self._random.normal(size=REPLICATES))

    def _fit(self, measured: Array, skewness: Array) -> "Fitted":
        """Return the fits to some measurements, shape (fits, runs, 4), with the weights of what was measured."""
        exchanging, weights = self._exchanging, self._measured[self._exchanging, 1]
        known, unknown = np.nan_to_num(self._given), np.isnan(self._given)
        exchange = np.tile(known, (len(measured), 1))
        if unknown.any():
            rest = measured[:, exchanging, 1] - self._exchange_rows @ known
            exchange[:, unknown] = positive_fit(self._exchange_rows[:, unknown], rest, weights)
        work = positive_fit(self._work_rows, measured[:, :, 0], self._measured[:, 0])
        return self._fitted(work, exchange, skewness, measured)

    def _fitted(self, work: Array, exchange: Array, skewness: Array, measured: Array) -> "Fitted":
        several, lateness = self._several, np.zeros(len(measured))
        if several:
            latest = np.array([expected_latest(self.runs[at].place.world_size, skewness) for at in several]).T
            lateness = (measured[:, several, 3] / (measured[:, several, 0] * latest)).mean(axis=1)
        overlap = np.zeros((len(measured), 2))
        if self.exchange.overlaps and several:
            overlap = np.array([overlap_of(*one[several, :3].T) for one in measured])
        return Fitted(work, exchange, lateness, skewness, overlap)

    @cached_property
    def _deviations(self) -> Array:
        """By how much each part of each run is drawn longer, as logarithms, shape (replicates, runs, 4).

        The parts of a run differ from the model together: a slow node is slow in all. Student's t, as the deviations
        are known from few runs.
        """
        relative, freedom = self._residuals
        scale = np.sqrt(np.sum(relative**2, axis=0) / np.maximum(freedom, 1))
        alike = relative.T @ relative
        lengths = np.sqrt(np.diag(alike))
        alike = alike / np.where(np.outer(lengths, lengths) > 0, np.outer(lengths, lengths), 1) + 1e-9 * np.eye(3)
        root = np.linalg.cholesky(alike)
        normal = self._random.normal(size=(REPLICATES, len(self.runs), 3)) @ root.T
        within = self._within
        widths = np.where(freedom[None] > 0, np.maximum(scale[None], within), within)
        degrees = np.where(freedom > 0, np.maximum(freedom, 1), 1e6)
        student = np.sqrt(degrees / self._random.chisquare(degrees, size=(REPLICATES, 3)))
        drawn: Array = np.clip(normal * widths * student[:, None, :], -MOST_DRAWN, MOST_DRAWN)
        return drawn[:, :, [0, 1, 1, 2]]  # what is exposed differs as the exchange does

    @cached_property
    def _within(self) -> Array:
        """How sure the parts of each run are by its steps, relative, shape (runs, 3); 0 where that is not known."""
        return np.asarray(np.nan_to_num(np.array([run.errors for run in self.runs])))

    @cached_property
    def _residuals(self) -> tuple[Array, Array]:
        """Relative deviations of runs from the model, shape (runs, 3): work, exchange, waiting; and their freedom."""
        found, fitted = np.zeros((len(self.runs), 3)), self._middle
        work = self._work_rows @ fitted.work[0]
        found[:, 0] = self._measured[:, 0] / work - 1
        freedom = [len(self.runs) - self.tells_work.rank]
        exchange = self._exchange_rows @ fitted.exchange[0]
        positive = exchange > 0
        found[np.array(self._exchanging, dtype=int)[positive], 1] = (
            self._measured[self._exchanging, 1][positive] / exchange[positive] - 1
        )
        freedom.append(len(self._exchanging) - self.tells_exchange.rank)
        for at in self._several:
            latest = expected_latest(self.runs[at].place.world_size, fitted.skewness)[0]
            waiting = fitted.lateness[0] * latest * self._measured[at, 0]
            found[at, 2] = self._measured[at, 3] / waiting - 1 if waiting > 0 else 0.0
        freedom.append(max(0, len(self._several) - 1))
        return found, np.array(freedom)

    def _step(self, place: Place, fitted: "Fitted") -> Step:
        work = fitted.work @ self._work_factors(place)
        several = place.world_size > 1
        waiting = np.zeros_like(work)
        if several:
            waiting = work * fitted.lateness * expected_latest(place.world_size, fitted.skewness)
        exchange = fitted.exchange @ self.asked.factors(place) if several else np.zeros_like(work)
        if self.asked.overlaps:
            share, floor = fitted.overlap.T
            exchange = np.array(list(map(perfmodel.exposed_time, exchange, share * work, floor * exchange)))
        if len(work) == 1:
            return Step(float(work[0]), float(waiting[0]), float(exchange[0]))
        return Step(work, waiting, exchange)

    def whole_exchange(self, place: Place) -> float:
        """Return how long an exchange takes there with what overlaps, over the work."""
        middle = self._middle
        return float(middle.exchange[0] @ self.asked.factors(place) / (middle.work[0] @ self._work_factors(place)))

    @property
    def longest_hidden(self) -> float:
        """The longest exchange of any run, over its work."""
        return float(np.max(self._measured[self._several, 1] / self._measured[self._several, 0], initial=0.0))

    @property
    def always_hidden(self) -> bool:
        """Whether no run shows how much of an exchange fits beside the work: each was hidden but for its last part."""
        share, floor = self._middle.overlap[0]
        work, exchange = self._measured[self._several, 0], self._measured[self._several, 1]
        return bool(np.all(exchange - share * work <= floor * exchange * (1 + SAME)))

    @property
    def basis(self) -> str:
        """From what the intervals are."""
        _, freedom = self._residuals
        if (freedom[:2] > 0).all():
            return f"{len(self.runs)} runs, {counted_freedom(int(freedom[:2].min()))}"
        return "steps within the runs only" if (self._within[:, 0] > 0).all() else ""


@dataclass(frozen=True)
class Fitted:
    """What was fitted, each with one row, or one for each replicate."""

    work: Array
    exchange: Array
    lateness: Array  # the standard deviation of ranks about one another over the work, as their waiting has it
    skewness: Array  # of that scatter
    overlap: Array  # the work beside which an exchange is hidden, and the exchange that never is, both as shares


@dataclass(frozen=True)
class Tells:
    """Whether measurements tell a quantity that is linear in what is sought: it is in the span of their factors."""

    rows: Array
    factors: Any  # of a place

    def after(self, places: Sequence[Place]) -> "Tells":
        """Return what could be told if these places had been measured, too."""
        return Tells(np.vstack([self.rows, *(self.factors(place) for place in places)]), self.factors)

    def __call__(self, place: Place) -> bool:
        """Return whether it can be told of this place."""
        wanted = self.factors(place)
        if not np.any(wanted):
            return True
        if not len(self.rows):
            return False
        both = _scaled(np.vstack([self.rows, wanted]))
        return bool(np.linalg.matrix_rank(both, SAME) == np.linalg.matrix_rank(both[:-1], SAME))

    @property
    def rank(self) -> int:
        """How many numbers they tell."""
        return int(np.linalg.matrix_rank(_scaled(self.rows), SAME)) if self.rows.size else 0


def _scaled(rows: Array) -> Array:
    """Return rows whose columns have a largest value of 1: bytes and rounds are alike then."""
    return rows / _largest(rows)


def _largest(rows: Array) -> Array:
    largest = np.abs(rows).max(axis=0, initial=0.0)
    return np.asarray(np.where(largest > 0, largest, 1.0))


def as_it_went(exchange: ExchangeModel, runs: Sequence[Run]) -> ExchangeModel:
    """Return an exchange with the algorithm by which its allreduce went: Rabenseifner's, unless runs speak for a ring.

    For large buffers Open MPI (since 4.1) and MPICH take the former, whatever the ranks; other libraries take a ring,
    which sends less where they are no power of two. On powers of two both send the same, and nothing tells them apart.
    """
    told = [run for run in runs if run.place.world_size > 1 and not isnan(run.exchange_s)]
    if exchange.formula != "allreduce" or not any(run.place.world_size & (run.place.world_size - 1) for run in told):
        return exchange
    values, misses = np.array([run.exchange_s for run in told]), []
    others = [exchange, replace(exchange, formula="ring")]
    for one in others:
        rows = np.array([one.factors(run.place)[1:] for run in told])
        numbers = positive_fit(rows, values[None], values)[0]
        misses.append(float((((rows @ numbers) / values - 1) ** 2).sum()))
    return others[CLEARLY * misses[1] < misses[0]]


def positive_fit(rows: Array, values: Array, weights: Array) -> Array:
    """Return the numbers, none negative, whose products with `rows` are nearest to the values, relative to the weights.

    The fit whose negative numbers are 0 is one of the fits by fewer numbers: all are tried, there are few.

    Args:
        rows: shape (measurements, numbers).
        values: shape (fits, measurements).
        weights: shape (measurements,).
    """
    best, least = np.zeros((len(values), rows.shape[1])), np.full(len(values), np.inf)
    scaled, wanted = _scaled(rows) / weights[:, None], values / weights
    used = np.flatnonzero(np.abs(rows).max(axis=0, initial=0.0))
    for count in range(len(used) + 1):
        for some in map(list, combinations(used, count)):
            numbers = wanted @ np.linalg.pinv(scaled[:, some], SAME).T
            left = ((numbers @ scaled[:, some].T - wanted) ** 2).sum(axis=1)
            better = (numbers >= 0).all(axis=1) & (left < least * (1 - SAME))
            least[better] = left[better]
            best[better] = 0.0
            best[np.ix_(better, some)] = numbers[better]
    return best / _largest(rows)


def expected_latest(n: int, skewness: Array) -> Array:
    """Return the expected largest of n draws from Pearson's type III (a gamma, shifted) with mean 0 and variance 1.

    Its skewness is the only shape that it has: 0 is the normal, 2 the exponential distribution.
    """
    return np.asarray(np.interp(skewness, _SKEWNESSES, _expected_largest(n)))


@cache
def _expected_largest(n: int) -> Array:
    chances = ((np.arange(DRAWS) + 0.5) / DRAWS) ** (1 / n)
    shapes = 4 / _SKEWNESSES[1:, None] ** 2
    of_gamma = (special.gammaincinv(shapes, chances) - shapes) / np.sqrt(shapes)
    return np.array([special.ndtri(chances).mean(), *of_gamma.mean(axis=1)])


def overlap_of(work: Array, exchange: Array, exposed: Array) -> tuple[float, float]:
    """Return beside which share of the work an exchange is hidden, and which share of it never is.

    The pair of candidates, what each run by itself would say, with the least squares of errors over the exchange.
    """
    shares = np.unique([0.0, *np.maximum(0.0, (exchange - exposed) / work)])
    floors = np.unique([0.0, *np.clip(exposed / exchange, 0.0, 1.0)])
    left = exchange - shares[:, None, None] * work
    model = np.maximum(left, floors[None, :, None] * exchange)
    errors = (((model - exposed) / exchange) ** 2).sum(axis=2)
    one, other = np.unravel_index(int(errors.argmin()), errors.shape)
    return float(shares[one]), float(floors[other])
