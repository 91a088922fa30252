"""Which runs can win, and which point of the search is best; the same rules for measured and published numbers."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log, log1p, sqrt
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import (
    ERRORS,
    counted_reasons,
    decisive,
    group_columns,
    higher_is_better,
    label,
    ordered,
    rows_of,
    search_columns,
    slow_steps_share,
    split,
    split_rows,
    standing,
    varying,
)
from ddp_hpc.analysis.intervals import ENOUGH, Arm, Array, Interval, Noise, contrast, counted_freedom, least_apart
from ddp_hpc.analysis.tables._frame import FLOAT, INT, columns, known, median, type_of, typed
from ddp_hpc.analysis.tables._groups import kind_of, noise_of_time
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.analysis.variance_model import Prior, prior
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.config.study import Target
from ddp_hpc.runs.eligibility import AREA, exclusion, least_mean
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import StudyRuns

NO_WINNER = "no winner"
BEATEN = in_words("beaten")
NO_NOISE = Noise.of([])
NOT_TOLD = "not told apart: one run each"
LEAST = np.finfo(np.float64).tiny  # has a logarithm
NOISE_KNOWN = 1.5  # to this factor: runs that are stopped would have told somewhat else of it, had they gone on
ROUNDING = 1e-12  # of a mean cost: a standard error below it is none
ErrorOf = Callable[[str], float | None]


def as_metric(interval: Interval, runs: pd.DataFrame) -> Interval:
    """Return the interval of the test metric of these runs: no accuracy is above 1."""
    accuracy = set(runs["test_metric_name"].dropna()) == {"accuracy"}
    return interval.each(lambda value: min(value, 1.0)) if accuracy else interval


@dataclass(frozen=True)
class Score:
    """What decides of one point of the search, for each of its repeats: loss area, test metric or time."""

    values: tuple[float, ...]
    standard_error: float | None = None  # of a single run, from the noise of time; None where that is not known
    higher_is_better: bool = False
    earliest: tuple[float, ...] = ()  # of times between two evaluations: the first of them

    @property
    def costs(self) -> Array:
        """What is compared, the less the better: accuracies as they are, all else, which is positive, as logarithms."""
        return -np.array(self.values) if self.higher_is_better else np.log(np.maximum(self.values, LEAST))

    @property
    def mean(self) -> float:
        """The mean cost."""
        return float(np.mean(self.costs))

    @property
    def least(self) -> float:
        """The mean cost, at the least that the evaluations allow."""
        return Score(self.earliest, None, self.higher_is_better).mean if self.earliest else self.mean

    @property
    def error(self) -> float | None:
        """The standard error of the mean value: from the repeats, else from the noise of time, else unknown."""
        if len(self.values) > 1:
            return float(np.std(self.values, ddof=1)) / sqrt(len(self.values))
        return self.standard_error


@dataclass(frozen=True)
class _Excess:
    """By how much a score behind the first exceeds it, at least and at most, and what of that may be noise."""

    least: float
    most: float
    noise: float  # inf where nothing is known of it

    @property
    def may_be_noise(self) -> bool:
        return self.least <= self.noise


def _excesses(
    ranked: Sequence[Score], arms: Sequence[Arm], known: Prior, looks: int, stopped: int = 0
) -> list[_Excess]:
    """Return the excess of each score behind the first; `arms` say how the runs of each scatter.

    The limits are Dunnett's where all points scatter alike and have equally many runs; else those of each comparison
    by itself, by the variances of its two points (`intervals.least_apart`).
    """
    first, others = ranked[0], len(ranked) - 1 + stopped
    alike = known.freedom == inf and len({arm.runs for arm in arms}) == 1
    found = []
    for score, arm in zip(ranked[1:], arms[1:], strict=True):
        noise = inf
        if min(arms[0].freedom, arm.freedom) > 0:
            apart = contrast([arms[0], arm])
            freedom = known.of_both(arms[0], arm, apart.freedom)
            # repeats that are all equal do not tell how the next one would be
            noise = apart.error * least_apart(others, freedom, looks, alike) if apart.error > ROUNDING else inf
        found.append(_Excess(score.least - first.mean, score.mean - first.least, noise))
    return found


def told_apart(
    ranked: Sequence[Score],
    between_repeats: Prior,
    of_time: Arm,
    area_noise: float,
    looks: int = 1,
    stopped: int = 0,
) -> tuple[int, str]:
    """Return how many of the ranked scores behind the first cannot be told from it, at 95 %, and how that was found.

    Those are always the next ones: with a probability of 95 % the best in truth is among them and the first
    (`intervals.least_apart`). Compared are `Score.costs`. How one run differs from the next say the repeats of a point,
    and those of others as far as points scatter alike (`between_repeats`). Of single runs it is `of_time` of runs that
    do the same work, which does not hold what the seed does to the loss: so a difference must also exceed
    `area_noise`, relative, e.g. 0.01. Where neither is known nothing is told apart. `looks`: see `least_apart`.
    So many others have `stopped` as they were beaten: they count as such, and are beyond all that is ranked.
    """
    others, repeated = len(ranked) - 1, between_repeats.total > 0
    if not others + stopped or not (repeated or of_time.freedom):
        return others, NOT_TOLD if others + stopped else "no other point"
    known = between_repeats if repeated else Prior.shared(of_time)
    arms, least = _arms(ranked, known), 0.0 if repeated else log1p(area_noise)
    found = enumerate(_excesses(ranked, arms, known, looks, stopped), 1)
    alike = max((place for place, one in found if one.may_be_noise or one.least <= least), default=0)
    if not repeated:
        freedom = counted_freedom(of_time.freedom)
        return alike, f"one run each: the noise of time only, {freedom}, at least {100 * area_noise:g} %"
    counts = " or ".join(str(count) for count in sorted({arm.runs for arm in arms}))
    if not any(arm.variance > ROUNDING**2 for arm in arms):
        return others, f"{counts} repeats that do not differ: not known how they scatter"
    least_free, *more = sorted({arm.freedom for arm in arms})
    return alike, f"{counts} repeats, {'at least ' if more else ''}{counted_freedom(least_free)}"


def _arms(ranked: Sequence[Score], known: Prior) -> list[Arm]:
    return [known.moderated(Arm.of(score.costs)) for score in ranked]


def with_exclusions(study_runs: StudyRuns, samples: int = 1) -> pd.DataFrame:
    """Return the planned runs with `min_loss` over the study's window, `slow_steps_share` and `excluded`.

    The window is of so many `samples` at least, as far as a run has them. Where time decides, also with `time_to_s`,
    when the first evaluation was at least as good as asked, and `time_before_s`, when the one before it was not.
    """
    runs = study_runs.runs.copy()
    runs["slow_steps_share"] = slow_steps_share(runs)
    rules = study_runs.study.rules
    if rules.loss_window > 1 or samples > 1:
        runs["min_loss"] = [
            _least_over(study_runs, row, samples) if row["status"] in FINISHED else float("nan")
            for row in rows_of(runs)
        ]
    if isinstance(rules.winner_by, Target):
        times = [_times_to(rules.winner_by.time_to, study_runs, row) for row in rows_of(runs)]
        runs[["time_before_s", "time_to_s"]] = np.array(times, dtype=np.float64).reshape(-1, 2)
    runs["excluded"] = exclusions(runs.assign(status=standing(runs)), rules.loss_threshold, decisive(rules))
    return runs


def _times_to(metric: float, study_runs: StudyRuns, row: Mapping[str, Any]) -> tuple[float, float]:
    """Return when a run was last evaluated before it had the test metric, 0 without that, and when first with it."""
    if row["status"] != "ok" or not study_runs.store.file(row["run"], "evaluations").is_file():
        return float("nan"), float("nan")
    curve = study_runs.evaluations(row["run"])
    reached = curve["metric"] >= metric if higher_is_better(row) else curve["metric"] <= metric
    t_s = [0.0, *curve["t_s"]]
    first = int(reached.to_numpy().argmax())
    return (t_s[first], t_s[first + 1]) if reached.any() else (t_s[-1], float("nan"))


def _least_over(study_runs: StudyRuns, row: Mapping[str, Any], samples: int) -> float:
    loss = whole_curve(study_runs, row["run"]).loss
    steps = min(len(loss), ceil(samples / (row["world_size"] * row["batch_size"])))
    return least_mean(loss, max(study_runs.study.rules.loss_window, steps))


def exclusions(runs: pd.DataFrame, loss_threshold: float | None, by: str = AREA) -> "pd.Series[str]":
    """Return for each run the first reason why it may not win, an empty text if it may (`eligibility.exclusion`)."""
    return pd.Series([exclusion(row, loss_threshold, by) for row in rows_of(runs)], index=runs.index, dtype="string")


def points(runs: pd.DataFrame, groups: list[str], search: list[str], error_of: ErrorOf, by: str = AREA) -> pd.DataFrame:
    """Return one row per point of the search, its repeats combined.

    It has the columns `groups` (what competes with what) and `search` (in which the points of a group differ), `point`
    (in short, never a bare number), `repeats`, the medians of `loss_area_loss_s`, of what decides (the column `by`) and
    of `min_loss` over the repeats that have them, `devices` (a set), `oversubscribed` (any), `excluded` (empty if all
    repeats may win), `runs` (a list) and `score` (a `Score`, None if excluded). `error_of` gives the standard error of
    what decides of a single run, or None where it is not known.
    """
    shown = ordered(set(varying(runs)) & set(search)) or search
    alone = shown[0].replace("_", " ") if len(shown) == 1 and shown[0] not in COMPONENTS else ""
    rows = []
    for key, repeats in split_rows(runs, groups + search):
        excluded = _excluded([row["excluded"] for row in repeats])
        error = error_of(repeats[0]["run"]) if not excluded and len(repeats) == 1 else None
        rows.append(
            key
            | {
                "point": f"{alone} {label(key, shown)}".strip() or "the only one",
                "repeats": len(repeats),
            }
            | {name: median(row[name] for row in repeats) for name in (AREA, by, "min_loss")}
            | {
                "samples_asked": max(
                    (row["samples_asked"] for row in repeats if pd.notna(row["samples_asked"])), default=None
                ),
                "devices": {str(row["device_used"]) for row in repeats if pd.notna(row.get("device_used"))},
                "oversubscribed": any(row["oversubscribed"] for row in repeats),
                "excluded": excluded,
                "runs": [row["run"] for row in repeats],
                "score": None if excluded else _score(repeats, by, error),
            }
        )
    names = columns(f"point repeats {by} {AREA} min_loss samples_asked devices oversubscribed excluded runs score")
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*groups, *search, *names])))


def _score(repeats: Sequence[Mapping[str, Any]], by: str, error: float | None) -> Score:
    earliest = tuple(row["time_before_s"] for row in repeats) if by == "time_to_s" else ()
    higher = by == "test_metric" and higher_is_better(repeats[0])
    return Score(tuple(sorted(known(row[by] for row in repeats))), error, higher, earliest)


def _excluded(reasons: list[str]) -> str:
    """Return why a point is out: a reason that all its repeats share, or how many repeats have which."""
    if len(set(reasons)) == 1:
        return reasons[0]
    counts = Counter(reason for reason in reasons if reason)
    return " and ".join(f"{count} of {len(reasons)} repeats {reason}" for reason, count in sorted(counts.items()))


def pick_winners(
    candidates: pd.DataFrame,
    groups: list[str],
    search: list[str],
    area_noise: float,
    time: Noise = NO_NOISE,
    *,
    by: str = AREA,
    looks: int = 1,
) -> pd.DataFrame:
    """Return, for each group of `points`, the one that is best in the column `by`, and those not to be told from it.

    One row per group, in the order of `groups`; nulls and `no winner` where no point may win. `<axis>_low` and
    `<axis>_high` are the least and the largest value of the winner and what cannot be told from it. Of equals the point
    wins that is first in the order of `search`; the others cannot be told from it. Points share how their repeats
    scatter as far as that is alike (`variance_model.prior`). `area_noise`, `looks`, and `time` of single runs: see
    `told_apart`.
    """
    repeats, rows = _between_repeats(candidates), []
    for key, group in split(candidates, groups):
        ranked, noises = _ranked(group, by, search), (repeats(kind_of(key)), time.at(kind_of(key)))
        found: dict[str, Any] = {"winner": NO_WINNER, "judged_by": _not_comparable(ranked, area_noise, by)}
        if ranked and not found["judged_by"]:
            stopped = int((group["excluded"] == BEATEN).sum())
            told = told_apart([row["score"] for row in ranked], *noises, area_noise, looks, stopped)
            found = _winner(ranked, search, by, told)
        rows.append(key | found | _counts(group))
    ranges = [f"{name}_{end}" for name in numbers(search) for end in ("low", "high")]
    decided = dict.fromkeys([by, ERRORS[by], AREA])
    return typed(rows, [*groups, "winner", *search, *decided, *_COLUMNS, *ranges])


def undecided(study_runs: StudyRuns, difference: float) -> Iterator[list[list[str]]]:
    """Yield for each group of which more repeats may tell more the runs of the winner, then of each point in question.

    Those are not told apart from the winner, nor is it known that they are not worse by more than `difference`.
    """
    (candidates, groups, search, _), rules = ranked_points(study_runs), study_runs.study.rules
    by, repeats, looks = decisive(rules), _between_repeats(candidates), len(study_runs.study.looks)
    for key, group in split(candidates, groups):
        ranked, known = _ranked(group, by, search), repeats(kind_of(key))
        if len(ranked) < 2 or not known.total or _not_comparable(ranked, rules.area_noise, by):
            continue
        scores = [row["score"] for row in ranked]
        count, _ = told_apart(scores, known, NO_NOISE.whole, rules.area_noise, looks)
        within = difference if scores[0].higher_is_better else log1p(difference)
        open_ = [one.most + one.noise > within for one in _excesses(scores, _arms(scores, known), known, looks)[:count]]
        if any(open_):
            yield [ranked[0]["runs"], *(row["runs"] for row, more in zip(ranked[1:], open_, strict=False) if more)]


def may_be_in_question(study_runs: StudyRuns) -> Iterator[tuple[str, float]]:
    """Yield the runs that were stopped as beaten and may be taken for the winner after all, or decide who else may.

    And beyond how many times the least area each would be in question no more; inf: only its end tells. An area of
    which only a part is known is taken for the whole: it is no smaller. Whether such a run would have been allowed to
    win is not known, nor how long its steps would have taken on, which tells of the noise of time: where either may
    decide which others cannot be told from the winner, those that were stopped go on to their end.
    """
    (candidates, groups, search, time), area_noise = ranked_points(study_runs), study_runs.study.rules.area_noise
    near: dict[str, float] = {}
    stopped_runs, all_go_on = [], False
    for key, group in split(candidates, groups):
        ranked, stopped = _ranked(group, AREA, search), rows_of(group[group["excluded"] == BEATEN])
        of_time, places = time.at(kind_of(key)), [(row["runs"][0], row[AREA]) for row in stopped]
        areas = [row["score"].values[0] for row in ranked]
        least, most = (_noise_of_areas(of_time, len(areas) - 1 + others) for others in (0, len(stopped)))
        doubtful = max(least / NOISE_KNOWN, log1p(area_noise)), max(most * NOISE_KNOWN, log1p(area_noise))
        decides = any(doubtful[0] < log(area / areas[0]) <= doubtful[1] for area in areas[1:])
        all_go_on |= decides and time.kinds.get(kind_of(key)) is not of_time
        stopped_runs += [run for run, _ in places]
        for run, area in places:
            if decides or not areas or log(area / areas[0]) <= doubtful[1]:
                near[run] = inf if decides or not areas else float(np.exp(doubtful[1]))
    yield from dict.fromkeys(stopped_runs, inf).items() if all_go_on else near.items()


def _noise_of_areas(of_time: Arm, others: int) -> float:
    """Return by what logarithms of areas of single runs differ for noise of time alone; inf if that is not known."""
    if others < 1 or not of_time.freedom:
        return inf
    return sqrt(2 * of_time.variance) * least_apart(others, of_time.freedom) if of_time.variance else inf


def _between_repeats(candidates: pd.DataFrame) -> Callable[[Any], Prior]:
    """Return what gives for a kind of runs how its repeats scatter; of a kind of few repeats that of all kinds."""
    arms: dict[Any, list[Arm]] = {}
    for row, score in zip(rows_of(candidates), candidates["score"], strict=True):
        if score:
            arms.setdefault(kind_of(row), []).append(Arm.of(score.costs))
    found = {kind: prior(own) for kind, own in arms.items()}
    whole = prior([arm for own in arms.values() for arm in own])
    return lambda kind: one if (one := found.get(kind, whole)).total >= ENOUGH else whole


def _ranked(group: pd.DataFrame, by: str, search: list[str]) -> list[dict[str, Any]]:
    """Return the points of a group that may win, the best first."""
    fit = group[group["excluded"] == ""]
    best_last = any(score.higher_is_better for score in fit["score"])
    return rows_of(fit.sort_values([by, *search], kind="stable", ascending=[not best_last, *[True] * len(search)]))


def _not_comparable(ranked: list[dict[str, Any]], area_noise: float, by: str) -> str | None:
    """Return why points do not compete: the shorter curve has the smaller area, the longer one the better end."""
    devices = sorted({device for row in ranked for device in row["devices"]})
    if by != "test_metric" and len(devices) > 1:
        return f"not comparable: the points ran on {' and '.join(devices)}; name one with device"
    if by == "time_to_s":
        return None
    samples = sorted({row["samples_asked"] for row in ranked if pd.notna(row["samples_asked"])})
    if samples and samples[-1] > (1 + area_noise) * samples[0]:
        return f"not comparable: the points see {samples[0]} to {samples[-1]} samples; give samples_seen or more epochs"
    return None


def numbers(search: list[str]) -> list[str]:
    """Return those columns of a search that hold numbers."""
    return [name for name in search if type_of(name) in (INT, FLOAT)]


_COLUMNS = columns(
    "min_loss margin_percent second cannot_be_told_from",
    "cannot_be_told_from_count judged_by repeats points eligible_points excluded_points excluded_because runs",
    "excluded_runs winner_runs",
)


def _winner(ranked: list[dict[str, Any]], search: list[str], by: str, told: tuple[int, str]) -> dict[str, Any]:
    best, others, (count, judged_by) = ranked[0], ranked[1:], told
    alike = others[:count]
    ranges: dict[str, Any] = {}
    for name in numbers(search):
        values = [row[name] for row in (best, *alike) if pd.notna(row[name])]
        ranges |= {f"{name}_low": min(values, default=None), f"{name}_high": max(values, default=None)}
    return (
        ranges
        | {name: best[name] for name in (*search, by, AREA, "min_loss", "repeats")}
        | {
            "winner": best["point"],
            ERRORS[by]: best["score"].error,
            "margin_percent": 100 * abs(others[0][by] / best[by] - 1) if others and best[by] else None,
            "second": others[0]["point"] if others else None,
            "cannot_be_told_from": "; ".join(row["point"] for row in alike),
            "cannot_be_told_from_count": len(alike),
            "judged_by": judged_by,
            "winner_runs": " ".join(best["runs"]),
        }
    )


def _counts(group: pd.DataFrame) -> dict[str, Any]:
    out = group[group["excluded"] != ""]
    return {
        "points": len(group),
        "eligible_points": len(group) - len(out),
        "excluded_points": len(out),
        "excluded_because": counted_reasons(out["excluded"]),
        "runs": int(group["runs"].map(len).sum()),
        "excluded_runs": int(out["runs"].map(len).sum()),
    }


def ranked_points(study_runs: StudyRuns, samples: int = 1) -> tuple[pd.DataFrame, list[str], list[str], Noise]:
    """Return the points of a study's search, the columns that group them and in which they differ, and time's noise.

    Where a metric decides, time's noise does not count. `samples`: see `with_exclusions`.
    """
    runs, by = with_exclusions(study_runs, samples), decisive(study_runs.study.rules)
    groups, search = group_columns(runs, study_runs.study), search_columns(study_runs.study)
    time = NO_NOISE if by == "test_metric" else noise_of_time(runs)
    by_name = {row["run"]: row for row in rows_of(runs)}

    def error(run: str) -> float | None:
        noise = time.at(kind_of(by_name[run]))
        return float(by_name[run][by]) * sqrt(noise.variance) if noise.freedom else None

    return points(runs, groups, search, error, by), groups, search, time
