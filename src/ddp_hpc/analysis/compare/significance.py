"""Significance tests: which points of two result sets differ by more than the noise, and in which direction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log1p
from typing import Any

import numpy as np

from ddp_hpc.analysis.compare.pairs_to_test import POINT, TIMES, Question, Row, ask, in_words, points
from ddp_hpc.analysis.compare.result_sets import ResultSet
from ddp_hpc.analysis.compare.variance_model import ALPHA, Prior, holm, prior, repeats_needed
from ddp_hpc.analysis.intervals import Arm, Contrast, contrast, of_median, of_ratio
from ddp_hpc.runs.statuses import FAILED

WORSE, BETTER, SMALL, ALIKE, OPEN = "worse", "better", "differs, but little", "no difference seen", "not judged"
BROKEN = ("diverged", "oom_gpu", *sorted(FAILED))
NO_REPEATS = "no repeats: how one run differs from the next is not known"


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
    in B only is worse.

    Args:
        a: what was.
        b: what is.
        tolerance: relative difference that is no matter, however sure; of exchange_exposed_s, relative to the step.
        change: relative difference that `repeats_needed` is planned for.
    """
    points_a, points_b = points(a.runs), points(b.runs)
    shared = [key for key in points_a if key in points_b]
    words = in_words([rows[0] for rows in (*points_a.values(), *points_b.values())])
    name = {key: words(rows[0]) for key, rows in (points_b | points_a).items()}
    broken = [_broken(name[key], dict(zip(POINT, key, strict=True)), points_a[key], points_b[key]) for key in shared]
    questions = [one for key in shared for one in ask(name[key], key, points_a[key], points_b[key])]
    findings = [*(one for one in broken if one), *_answers(questions, a, b, tolerance, change)]
    order = {name[key]: place for place, key in enumerate(shared)}
    return Judgement(
        tuple(sorted(findings, key=lambda finding: order[finding.point])),
        tuple(name[key] for key in points_a if key not in points_b),
        tuple(name[key] for key in points_b if key not in points_a),
        len(shared),
    )


def _broken(point: str, spec: Mapping[str, Any], rows_a: list[Row], rows_b: list[Row]) -> Finding | None:
    """Return that runs end badly on one side more than on the other; runs that are missing are not counted."""
    shares, words = [], []
    for side, rows in (("A", rows_a), ("B", rows_b)):
        ended = [row["status"] for row in rows if row["status"] in ("ok", *BROKEN)]
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
        if ratio.low is not None and ratio.high is not None:
            ends = {"low_percent": 100 * (ratio.low - 1), "high_percent": 100 * (ratio.high - 1)}
            reason += "; the interval is within these runs only"
    return _finding(one, OPEN, reason=reason, change_percent=one.percent(change), **ends)


def _finding(one: Question, verdict: str, **fields: Any) -> Finding:
    a, b = one.means
    fields |= {"runs_a": len(one.rows_a), "runs_b": len(one.rows_b), "spec": one.spec}
    return Finding(one.point, one.metric, verdict, a=a, b=b, **fields)
