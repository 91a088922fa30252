"""The comparisons of two result sets: each metric of each point that both have, with the runs of both sides."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, expm1
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import key_of, rows_of, show, varying
from ddp_hpc.analysis.intervals import Arm
from ddp_hpc.config.comparability import agreeing
from ddp_hpc.config.spec import SPEC_COLUMNS

Row = dict[str, Any]
Key = tuple[Any, ...]

TIMES = ("step_s", "samples_per_s", "exchange_exposed_s")  # differ by factors: compared as logarithms
QUALITIES = ("final_loss", "test_metric")  # the seed decides them: compared in pairs of equal seeds
POINT = agreeing({"seed"})
USED = [*SPEC_COLUMNS, "run", "status", "oversubscribed", "placement_verified", "test_metric_name", *TIMES, *QUALITIES]


@dataclass(frozen=True)
class Question:
    """A metric of a point."""

    point: str  # in words
    spec: Mapping[str, Any]  # of the point, without the seed
    metric: str  # a column of the run record
    rows_a: list[Row]  # the runs that have it, of set A
    rows_b: list[Row]  # of set B
    # A and B, or one of the differences of pairs of equal seeds: of logarithms for a metric of `TIMES`, else relative
    # to the mean of A. None where it cannot be judged.
    arms: tuple[Arm, ...] = ()
    reason: str = ""  # why it cannot be judged

    @property
    def family(self) -> tuple[str, int]:
        """Questions of one family may learn from one another how runs scatter."""
        return self.metric, len(self.arms)

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value is the better one."""
        if self.metric == "test_metric":
            return bool(self.rows_a[0].get("test_metric_name") == "accuracy")
        return self.metric == "samples_per_s"

    def percent(self, difference: float) -> float:
        """Return a difference of arms as a change of B against A in percent."""
        return 100 * (expm1(difference) if self.metric in TIMES else difference)

    @property
    def means(self) -> tuple[float, float]:
        """The means of A and B: geometric of times and rates."""
        a, b = (np.array([float(row[self.metric]) for row in rows]) for rows in (self.rows_a, self.rows_b))
        if self.metric in TIMES:
            return exp(float(np.log(a).mean())), exp(float(np.log(b).mean()))
        return float(a.mean()), float(b.mean())

    @property
    def share_of_step(self) -> float:
        """How much of a step of A this metric is; 1 where it is no part of one."""
        steps = [float(row["step_s"]) for row in self.rows_a if known(row.get("step_s"))]
        return self.means[0] / float(np.median(steps)) if self.metric == "exchange_exposed_s" and steps else 1.0


def points(runs: pd.DataFrame) -> dict[Key, list[Row]]:
    """Return the runs of each point: they differ in their seed alone."""
    found: dict[Key, list[Row]] = {}
    for row in rows_of(runs[[name for name in USED if name in runs]]):
        found.setdefault(key_of(row, POINT), []).append(row)
    return found


def in_words(rows: list[Row]) -> Callable[[Row], str]:
    """Return what names a point by the fields that vary over `rows`."""
    names = [name for name in varying(pd.DataFrame(rows)) if name != "seed"]

    def of(row: Row) -> str:
        return ", ".join(f"{name} {show(row[name])}" for name in names) or "the only point"

    return of


def ask(point: str, key: Key, all_a: list[Row], all_b: list[Row]) -> Iterator[Question]:
    """Yield the questions of a point: those metrics that have a value on both sides."""
    spec = dict(zip(POINT, key, strict=True))
    for metric in (*TIMES, *QUALITIES):
        rows_a, rows_b = (
            [row for row in rows if row["status"] == "ok" and known(row.get(metric))] for rows in (all_a, all_b)
        )
        if not rows_a or not rows_b:
            continue
        if metric not in TIMES:
            yield Question(point, spec, metric, *_of_seeds(metric, rows_a, rows_b))
        elif reason := _no_times(rows_a) or _no_times(rows_b):
            yield Question(point, spec, metric, rows_a, rows_b, reason=reason)
        elif all(row[metric] > 0 for row in (*rows_a, *rows_b)):  # else the exchange of one rank
            arms = (Arm.of(np.log([float(row[metric]) for row in rows])) for rows in (rows_a, rows_b))
            yield Question(point, spec, metric, rows_a, rows_b, tuple(arms))


def _of_seeds(metric: str, rows_a: list[Row], rows_b: list[Row]) -> tuple[list[Row], list[Row], tuple[Arm, ...]]:
    """Return the runs that have a pair of equal seed and the differences of these pairs as one arm.

    Where there are no such pairs: all runs, and an arm for each side.
    """
    scale = float(np.mean([abs(row[metric]) for row in rows_a])) or 1.0
    a, b = ({row["seed"]: row for row in rows} for rows in (rows_a, rows_b))
    both = [seed for seed in a if seed in b]
    if len(both) > 1 or (both and len(a) == len(b) == 1):
        paired_a, paired_b = [a[seed] for seed in both], [b[seed] for seed in both]
        pairs = zip(paired_a, paired_b, strict=True)
        return paired_a, paired_b, (Arm.of(np.array([(new[metric] - old[metric]) / scale for old, new in pairs])),)
    arms = (Arm.of(np.array([row[metric] / scale for row in rows])) for rows in (rows_a, rows_b))
    return rows_a, rows_b, tuple(arms)


def known(value: Any) -> bool:
    """Return whether there is a finite value."""
    return bool(pd.notna(value) and np.isfinite(float(value)))


def _no_times(rows: list[Row]) -> str:
    """Return why the times of these runs cannot be compared; empty if they can."""
    if any(pd.notna(row.get("oversubscribed")) and row["oversubscribed"] for row in rows):
        return "oversubscribed: its times mean nothing"
    if any(pd.notna(row.get("placement_verified")) and not row["placement_verified"] for row in rows):
        return "not placed as it was asked: its times are those of another placement"
    return ""
