"""Which runs can win, and which point of the search is best; the same rule for measured and published numbers."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log1p, sqrt
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import (
    group_columns,
    label,
    ordered,
    rows_of,
    search_columns,
    slow_steps_share,
    split,
    standing,
    varying,
)
from ddp_hpc.analysis.intervals import Arm, Array, Noise, counted_freedom, least_apart
from ddp_hpc.analysis.tables._frame import FLOAT, INT, columns, known, median, type_of, typed
from ddp_hpc.analysis.tables._groups import kind_of, noise_of_time
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import StudyRuns

NO_WINNER = "no winner"
NO_NOISE = Noise.of([])
NOT_TOLD = "not told apart: one run each"
ErrorOf = Callable[[str], float | None]


@dataclass(frozen=True)
class Area:
    """The loss area of one point of the search."""

    values: tuple[float, ...]  # one area per repeat, in loss x seconds
    # Of a single run, from the noise of time, in loss x seconds; None where that is not known.
    standard_error: float | None = None

    @property
    def error(self) -> float | None:
        """The standard error of the mean: from the repeats, else from the noise of time, else unknown."""
        if len(self.values) > 1:
            return float(np.std(self.values, ddof=1)) / sqrt(len(self.values))
        return self.standard_error


def told_apart(ranked: Sequence[Area], between_repeats: Arm, of_time: Arm, area_noise: float) -> tuple[int, str]:
    """Return how many of the ranked areas behind the first cannot be told from it, at 95 %, and how that was found.

    Those are always the next ones: with a probability of 95 % the least area in truth is among them and the first
    (`intervals.least_apart`). Areas are compared as logarithms. How one run differs from the next is
    `between_repeats` of the same point; of single runs `of_time` of runs that do the same work, which does not hold
    what the seed does to the loss: so a difference must also exceed `area_noise`, relative, e.g. 0.01. Where neither is
    known nothing is told apart.
    """
    first, others = ranked[0], ranked[1:]
    noise, repeated = (between_repeats, True) if between_repeats.freedom else (of_time, False)
    if not others or not noise.freedom:
        return len(others), NOT_TOLD if others else "no other point"
    limit, least = least_apart(len(others), noise.freedom), 0.0 if repeated else log1p(area_noise)
    alike = 0
    for place, other in enumerate(others, 1):
        error = sqrt(noise.variance * (1 / len(first.values) + 1 / len(other.values)))
        difference = float(np.mean(np.log(other.values)) - np.mean(np.log(first.values)))
        if difference <= max(limit * error, least):
            alike = place  # with all before it
    counts = " or ".join(str(count) for count in sorted({len(area.values) for area in ranked}))
    if repeated:
        return alike, f"{counts} repeats, {counted_freedom(noise.freedom)}"
    return (
        alike,
        f"one run each: the noise of time only, {counted_freedom(noise.freedom)}, at least {100 * area_noise:g} %",
    )


def with_exclusions(study_runs: StudyRuns) -> pd.DataFrame:
    """Return the planned runs with `min_loss` over the study's window, `slow_steps_share` and `excluded`."""
    runs = study_runs.runs.copy()
    runs["slow_steps_share"] = slow_steps_share(runs)
    window = study_runs.study.rules.loss_window
    if window > 1:
        runs["min_loss"] = [
            least_mean(whole_curve(study_runs, run).loss, window) if status in FINISHED else float("nan")
            for run, status in zip(runs["run"], runs["status"], strict=True)
        ]
    runs["excluded"] = exclusions(runs.assign(status=standing(runs)), study_runs.study.rules.loss_threshold)
    return runs


def least_mean(loss: Array, window: int) -> float:
    """Return the least mean loss of any `window` consecutive steps; nan if there are fewer steps."""
    means = np.lib.stride_tricks.sliding_window_view(loss, window).mean(axis=1) if len(loss) >= window else loss[:0]
    return float(np.nanmin(means)) if np.isfinite(means).any() else float("nan")


def exclusions(runs: pd.DataFrame, loss_threshold: float | None) -> "pd.Series[str]":
    """Return for each run the first reason why it may not win, an empty text if it may.

    A run competes if it ended well, saw all samples it was asked for, has an area, reached the threshold (inclusive;
    None: any does), and had a core for every thread. By area alone a short run wins, however poor its final loss.

    Source: Biswas, SHM-Learn-Dist (2017), section 5.
    """
    return pd.Series([_exclusion(row, loss_threshold) for row in rows_of(runs)], index=runs.index, dtype="string")


def _exclusion(row: Mapping[str, Any], loss_threshold: float | None) -> str:
    if row["status"] != "ok":
        return in_words(str(row["status"])).replace("_", " ")
    if pd.notna(row["samples_asked"]) and row["samples_seen"] != row["samples_asked"]:
        return "incomplete"
    if not 0 < row["loss_area_loss_s"] < float("inf"):
        return "without a loss area"
    if loss_threshold is not None and pd.isna(row["min_loss"]):
        return "shorter than the loss window"
    if loss_threshold is not None and row["min_loss"] > loss_threshold:
        return "above threshold"
    return "oversubscribed" if row["oversubscribed"] else ""


def points(runs: pd.DataFrame, groups: list[str], search: list[str], error_of: ErrorOf) -> pd.DataFrame:
    """Return one row per point of the search, its repeats combined.

    It has the columns `groups` (what competes with what) and `search` (in which the points of a group differ), `point`
    (in short, never a bare number), `repeats`, the medians of `loss_area_loss_s` and `min_loss` over the repeats that
    have them, `oversubscribed` (any), `excluded` (empty if all repeats may win), `runs` (a list) and `area` (an `Area`,
    None if excluded). `error_of` gives the standard error of a single run's loss area, or None where it is not known.
    """
    shown = ordered(set(varying(runs)) & set(search)) or search
    alone = shown[0].replace("_", " ") if len(shown) == 1 and shown[0] not in COMPONENTS else ""
    rows = []
    for key, part in split(runs, groups + search):
        repeats = rows_of(part)
        excluded = _excluded([row["excluded"] for row in repeats])
        areas = known(row["loss_area_loss_s"] for row in repeats)
        error = error_of(repeats[0]["run"]) if not excluded and len(repeats) == 1 else None
        rows.append(
            key
            | {
                "point": f"{alone} {label(key, shown)}".strip() or "the only one",
                "repeats": len(repeats),
                "loss_area_loss_s": median(areas),
                "min_loss": median(row["min_loss"] for row in repeats),
                "samples_asked": part["samples_asked"].max(),
                "oversubscribed": any(row["oversubscribed"] for row in repeats),
                "excluded": excluded,
                "runs": [row["run"] for row in repeats],
                "area": None if excluded else Area(tuple(sorted(areas)), error),
            }
        )
    names = columns("point repeats loss_area_loss_s min_loss samples_asked oversubscribed excluded runs area")
    return pd.DataFrame(rows, columns=[*groups, *search, *names])


def _excluded(reasons: list[str]) -> str:
    """Return why a point is out: a reason that all its repeats share, or how many repeats have which."""
    if len(set(reasons)) == 1:
        return reasons[0]
    counts = Counter(reason for reason in reasons if reason)
    return " and ".join(f"{count} of {len(reasons)} repeats {reason}" for reason, count in sorted(counts.items()))


def pick_winners(
    candidates: pd.DataFrame, groups: list[str], search: list[str], area_noise: float, time: Noise = NO_NOISE
) -> pd.DataFrame:
    """Return, for each group of `points`, the one with the least loss area, and those that cannot be told from it.

    One row per group, in the order of `groups`; nulls and `no winner` where no point may win. `<axis>_low` and
    `<axis>_high` are the least and the largest value of the winner and what cannot be told from it. Of equal areas the
    point wins that is first in the order of `search`; the others cannot be told from it. All points share how their
    repeats scatter (`intervals.Noise`). `area_noise`, and `time` of single runs: see `told_apart`.
    """
    fit_areas = zip(rows_of(candidates), candidates["area"], strict=True)
    repeats = Noise.of((kind_of(row), area.values) for row, area in fit_areas if area and len(area.values) > 1)
    rows = []
    for key, group in split(candidates, groups):
        fit = group[group["excluded"] == ""].sort_values(["loss_area_loss_s", *search], kind="stable")
        noises = (repeats.at(kind_of(key)), time.at(kind_of(key)))
        rows.append(key | _winner(fit, search, *noises, area_noise) | _counts(group))
    ranges = [f"{name}_{end}" for name in numbers(search) for end in ("low", "high")]
    return typed(rows, [*groups, "winner", *search, *_COLUMNS, *ranges])


def numbers(search: list[str]) -> list[str]:
    """Return those columns of a search that hold numbers."""
    return [name for name in search if type_of(name) in (INT, FLOAT)]


_COLUMNS = columns(
    "loss_area_loss_s standard_error_loss_s min_loss margin_percent second cannot_be_told_from",
    "cannot_be_told_from_count judged_by repeats points eligible_points excluded_points excluded_because runs",
    "excluded_runs winner_runs",
)


def _winner(fit: pd.DataFrame, search: list[str], repeats: Arm, time: Arm, area_noise: float) -> dict[str, Any]:
    if fit.empty:
        return {"winner": NO_WINNER}
    samples = sorted(fit["samples_asked"].dropna().unique())
    if samples and samples[-1] > (1 + area_noise) * samples[0]:  # the shorter curve has the smaller area
        why = f"the points see {samples[0]} to {samples[-1]} samples; give samples_seen or more epochs"
        return {"winner": NO_WINNER, "judged_by": f"not comparable: {why}"}
    rows = rows_of(fit)
    best, others = rows[0], rows[1:]
    count, judged_by = told_apart([row["area"] for row in rows], repeats, time, area_noise)
    alike = others[:count]
    ranges: dict[str, Any] = {}
    for name in numbers(search):
        values = [row[name] for row in (best, *alike) if pd.notna(row[name])]
        ranges |= {f"{name}_low": min(values, default=None), f"{name}_high": max(values, default=None)}
    return (
        ranges
        | {name: best[name] for name in (*search, "loss_area_loss_s", "min_loss", "repeats")}
        | {
            "winner": best["point"],
            "standard_error_loss_s": best["area"].error,
            "margin_percent": 100 * (others[0]["loss_area_loss_s"] / best["loss_area_loss_s"] - 1) if others else None,
            "second": others[0]["point"] if others else None,
            "cannot_be_told_from": "; ".join(row["point"] for row in alike),
            "cannot_be_told_from_count": len(alike),
            "judged_by": judged_by,
            "winner_runs": " ".join(best["runs"]),
        }
    )


def _counts(group: pd.DataFrame) -> dict[str, Any]:
    out = group[group["excluded"] != ""]
    listed = Counter(out["excluded"]).most_common()
    return {
        "points": len(group),
        "eligible_points": len(group) - len(out),
        "excluded_points": len(out),
        "excluded_because": ", ".join(
            f"{count} {'with ' if ' repeats ' in reason else ''}{reason}" for reason, count in listed
        ),
        "runs": int(group["runs"].map(len).sum()),
        "excluded_runs": int(out["runs"].map(len).sum()),
    }


def ranked_points(study_runs: StudyRuns) -> tuple[pd.DataFrame, list[str], list[str], Noise]:
    """Return the points of a study's search, the columns that group them and in which they differ, and time's noise."""
    runs = with_exclusions(study_runs)
    groups, search = group_columns(runs, study_runs.study), search_columns(study_runs.study)
    time, by_name = noise_of_time(runs), {row["run"]: row for row in rows_of(runs)}

    def error(run: str) -> float | None:
        noise = time.at(kind_of(by_name[run]))
        return float(by_name[run]["loss_area_loss_s"]) * sqrt(noise.variance) if noise.freedom else None

    return points(runs, groups, search, error), groups, search, time
