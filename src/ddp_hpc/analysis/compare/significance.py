"""Significance tests: which points of two result sets differ by more than the noise, and in which direction.

What is compared is each metric of each point that both sets have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, expm1, log1p
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import (
    CROWDED,
    higher_is_better,
    key_of,
    rows_of,
    show,
    varying,
)
from ddp_hpc.analysis.compare.result_sets import ResultSet
from ddp_hpc.analysis.intervals import Arm, Contrast, contrast, of_median, of_ratio
from ddp_hpc.analysis.variance_model import ALPHA, Prior, holm, prior, repeats_needed
from ddp_hpc.config.comparability import agreeing
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.runs.eligibility import NO_NUMBER, without_number
from ddp_hpc.runs.statuses import FAILED

Row = dict[str, Any]
Key = tuple[Any, ...]

WORSE, BETTER, SMALL, ALIKE, OPEN = "worse", "better", "differs, but little", "no difference seen", "not judged"
BROKEN = ("diverged", "oom_gpu", *sorted(FAILED))
NO_REPEATS = "no repeats: how one run differs from the next is not known"
TIMES = ("step_s", "samples_per_s", "exchange_exposed_s")  # differ by factors: compared as logarithms
QUALITIES = ("final_loss", "test_metric")  # the seed decides them: compared in pairs of equal seeds
POINT = agreeing({"seed"})
SHARES = ("core_wait_share", "others_core_share", "throttled_by_quota_share")
USED = [
    *SPEC_COLUMNS,
    *("run", "status", "oversubscribed", "placement_verified", "test_metric_name", "own_metrics"),
    *SHARES,
    *TIMES,
    *QUALITIES,
]


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
            return higher_is_better(self.rows_a[0])
        return self.metric == "samples_per_s"

    def percent(self, difference: float) -> float:
        """Return a difference of arms as a change of B against A in percent."""
        return 100 * (expm1(difference) if self.metric in TIMES else difference)

    @property
    def means(self) -> tuple[float, float]:
        """The means of A and B: geometric of times and rates."""
        a, b = (np.array([float(row[self.metric]) for row in rows]) for rows in (self.rows_a, self.rows_b))
        if self.metric in TIMES:
            with np.errstate(divide="ignore"):  # the exchange of one rank takes 0
                return exp(float(np.log(a).mean())), exp(float(np.log(b).mean()))
        return float(a.mean()), float(b.mean())

    @property
    def share_of_step(self) -> float:
        """How much of a step of A this metric is; 1 where it is no part of one."""
        steps = [float(row["step_s"]) for row in self.rows_a if _known(row.get("step_s"))]
        return self.means[0] / float(np.median(steps)) if self.metric == "exchange_exposed_s" and steps else 1.0


@dataclass(frozen=True)
class Finding:
    """One metric of one point in both sets.

    `a` and `b` are means over the repeats (geometric of times and rates); `change_percent` is of `b` against `a`, with
    its own 95 % interval; `p` is adjusted for all comparisons of the sets; `repeats_needed` is how many repeats in
    each set would show the change that was asked for, None where it is not known or more than 1,000.
    """

    point: str
    metric: str
    verdict: str
    reason: str | None = None
    a: float | None = None
    b: float | None = None
    change_percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    p: float | None = None
    runs_a: int = 0
    runs_b: int = 0
    repeats_needed: int | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """All findings, and the points that only one of the sets has."""

    findings: tuple[Finding, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    points: int

    def those(self, *verdicts: str) -> list[Finding]:
        """Return the findings with one of these verdicts."""
        return [finding for finding in self.findings if finding.verdict in verdicts]

    @property
    def not_judged(self) -> list[str]:
        """Return the metrics that could be judged at no point."""
        judged = {finding.metric for finding in self.findings if finding.verdict != OPEN}
        return [name for name in dict.fromkeys(one.metric for one in self.findings) if name not in judged]


def judge(a: ResultSet, b: ResultSet, tolerance: float = 0.01, change: float = 0.05) -> Judgement:
    """Compare all points that both sets have.

    Points match by their spec without the seed. Times and rates are compared by the logarithms of each run's value;
    how much the runs of a point scatter is taken from its repeats and from those of the set's other points
    (`variance_model.prior`), apart for A and B. Losses and test metrics are compared in pairs of equal seeds. All
    comparisons together give a false alarm in at most 5 % of cases (`variance_model.holm`). That a point's runs break
    in B only is worse: A is what was, B what is. A relative difference below `tolerance` is no matter, however sure; of
    exchange_exposed_s, relative to the step. `change` is the one that `repeats_needed` is planned for.
    """
    points_a, points_b = _points(a.runs), _points(b.runs)
    shared = [key for key in points_a if key in points_b]
    firsts = {key: rows[0] for key, rows in (points_b | points_a).items()}
    fields = [field for field in varying(pd.DataFrame(list(firsts.values()))) if field != "seed"]
    name = {
        key: ", ".join(f"{field} {show(row[field])}" for field in fields) or "the only point"
        for key, row in firsts.items()
    }
    broken = [_broken(name[key], dict(zip(POINT, key, strict=True)), points_a[key], points_b[key]) for key in shared]
    questions = [one for key in shared for one in _ask(name[key], key, points_a[key], points_b[key])]
    findings = [*(one for one in broken if one), *_answers(questions, a, b, tolerance, change)]
    order = {name[key]: place for place, key in enumerate(shared)}
    return Judgement(
        tuple(sorted(findings, key=lambda finding: order[finding.point])),
        tuple(name[key] for key in points_a if key not in points_b),
        tuple(name[key] for key in points_b if key not in points_a),
        len(shared),
    )


def _points(runs: pd.DataFrame) -> dict[Key, list[Row]]:
    """Return the runs of each point: they differ in their seed alone."""
    found: dict[Key, list[Row]] = {}
    for row in rows_of(runs[[name for name in USED if name in runs]]):
        found.setdefault(key_of(row, POINT), []).append(row)
    return found


def _ask(point: str, key: Key, all_a: list[Row], all_b: list[Row]) -> Iterator[Question]:
    """Yield the questions of a point: those metrics that have a value on both sides."""
    spec = dict(zip(POINT, key, strict=True))
    for metric in (*TIMES, *QUALITIES):
        rows_a, rows_b = (
            [row for row in rows if row["status"] == "ok" and _known(row.get(metric))] for rows in (all_a, all_b)
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


def _known(value: Any) -> bool:
    return bool(pd.notna(value) and np.isfinite(float(value)))


def _no_times(rows: list[Row]) -> str:
    """Return why the times of these runs cannot be compared; empty if they can."""
    if any(pd.notna(row.get("oversubscribed")) and row["oversubscribed"] for row in rows):
        return "oversubscribed: its times mean nothing"
    if any(pd.notna(row.get("placement_verified")) and not row["placement_verified"] for row in rows):
        return "not placed as it was asked: its times are those of another placement"
    if any(_above(row, "core_wait_share") and _above(row, "others_core_share") for row in rows):
        return f"disturbed: threads waited for cores that others used, in over {CROWDED:.0%} of a training"
    if any(_above(row, "throttled_by_quota_share") for row in rows):
        return f"disturbed: a quota of CPU time was used up in over {CROWDED:.0%} of its periods"
    return ""


def _above(row: Row, share: str) -> bool:
    return bool(pd.notna(row.get(share)) and row[share] > CROWDED)


def _broken(point: str, spec: Mapping[str, Any], rows_a: list[Row], rows_b: list[Row]) -> Finding | None:
    """Return that runs end badly on one side more than on the other; runs that are missing are not counted."""
    shares, words = [], []
    for side, rows in (("A", rows_a), ("B", rows_b)):
        ended = [
            NO_NUMBER if without_number(row) else row["status"] for row in rows if row["status"] in ("ok", *BROKEN)
        ]
        bad = [status for status in ended if status != "ok"]
        if not ended:
            return None
        shares.append(len(bad) / len(ended))
        if bad:
            statuses = ", ".join(dict.fromkeys(status.replace("_", " ") for status in bad))
            words.append(f"{len(bad)} of {len(ended)} runs of {side} {statuses}")
    if shares[0] == shares[1]:
        return None
    verdict = WORSE if shares[1] > shares[0] else BETTER
    return Finding(point, "status", verdict, "; ".join(words), runs_a=len(rows_a), runs_b=len(rows_b), spec=spec)


def _answers(
    questions: Sequence[Question], a: ResultSet, b: ResultSet, tolerance: float, change: float
) -> list[Finding]:
    families = _families(questions)
    moderated = [_moderated(one, families) for one in questions]
    told = [place for place, arms in enumerate(moderated) if arms]
    contrasts = [contrast(moderated[place]) for place in told]
    adjusted = holm([_p(questions[place], found) for place, found in zip(told, contrasts, strict=True)])
    findings = {}
    for place, found, p in zip(told, contrasts, adjusted, strict=True):
        one = questions[place]
        wanted = log1p(change) if one.metric in TIMES else change
        needed = repeats_needed(moderated[place], families[one.family], wanted, len(told))
        findings[place] = _judged(one, found, p, needed, tolerance)
    return [findings.get(place) or _not_judged(one, a, b) for place, one in enumerate(questions)]


def _families(questions: Sequence[Question]) -> dict[tuple[str, int], list[Prior]]:
    """Return for each family of questions what its points say together of how runs scatter, by arm."""
    arms: dict[tuple[str, int], list[tuple[Arm, ...]]] = {}
    for one in questions:
        arms.setdefault(one.family, []).append(one.arms)
    return {family: [prior(side) for side in zip(*those, strict=True)] for family, those in arms.items()}


def _moderated(one: Question, families: Mapping[tuple[str, int], list[Prior]]) -> tuple[Arm, ...]:
    """Return the arms with what their set knows of their scatter; none where nothing is known of it."""
    arms = tuple(known.moderated(arm) for known, arm in zip(families[one.family], one.arms, strict=True))
    return arms if all(arm.freedom > 0 and np.isfinite(arm.variance) for arm in arms) else ()


def _p(one: Question, found: Contrast) -> float:
    """Return how likely such a difference is by chance; where pairs do not scatter at all, only their signs count."""
    if found.error == 0 and found.difference != 0 and len(one.arms) == 1:
        return float(2.0 ** (1 - one.arms[0].runs))
    return found.p


def _judged(one: Question, found: Contrast, p: float, needed: int | None, tolerance: float) -> Finding:
    change, half = found.difference, found.half_width
    verdict = ALIKE
    if p < ALPHA:
        little = abs(one.percent(change)) / 100 * one.share_of_step < tolerance
        verdict = SMALL if little else BETTER if (change > 0) == one.more_is_better else WORSE
    ends = {"low_percent": one.percent(change - half), "high_percent": one.percent(change + half)}
    return _finding(one, verdict, change_percent=one.percent(change), **ends, p=p, repeats_needed=needed)


def _not_judged(one: Question, a: ResultSet, b: ResultSet) -> Finding:
    """Return what can be said without repeats: the difference, and how sure it is within these two runs."""
    if one.reason:
        return _finding(one, OPEN, reason=one.reason)
    change = one.arms[-1].mean - (one.arms[0].mean if len(one.arms) == 2 else 0.0)
    if change == 0 and one.metric not in TIMES:
        return _finding(one, ALIKE, reason="equal", change_percent=0.0)
    ends: dict[str, float] = {}
    reason = NO_REPEATS
    times = [side.step_times(rows[0]["run"]) for side, rows in ((a, one.rows_a), (b, one.rows_b))]
    if one.metric == "step_s" and times[0] is not None and times[1] is not None:
        ratio = of_ratio(of_median(times[1]), of_median(times[0]))
        if ratio.known:
            ends = {"low_percent": 100 * (ratio.low - 1), "high_percent": 100 * (ratio.high - 1)}
            reason += "; the interval is within these runs only"
    return _finding(one, OPEN, reason=reason, change_percent=one.percent(change), **ends)


def _finding(one: Question, verdict: str, **fields: Any) -> Finding:
    a, b = one.means
    fields |= {"runs_a": len(one.rows_a), "runs_b": len(one.rows_b), "spec": one.spec}
    return Finding(one.point, one.metric, verdict, a=a, b=b, **fields)
