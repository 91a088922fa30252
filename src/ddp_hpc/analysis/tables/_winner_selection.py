"""Which runs can win, and which point of the search is best; the same rule for measured and published numbers."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

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
from ddp_hpc.analysis.intervals import CONFIDENCE, Arm, Array, contrast, curve_error
from ddp_hpc.analysis.tables._frame import FLOAT, INT, columns, known, median, type_of, typed
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import StudyRuns

NO_WINNER = "no winner"
CurveError = Callable[[str], float | None]


@dataclass(frozen=True)
class Area:
    """The loss area of one point of the search."""

    values: tuple[float, ...]  # one area per repeat, in loss x seconds
    # Of a single run, from its curve, in loss x seconds; None where there is no curve.
    standard_error: float | None = None

    @property
    def repeated(self) -> bool:
        """Whether there are repeats to take the spread from."""
        return len(self.values) > 1

    @property
    def error(self) -> float | None:
        """The standard error of the mean: from the repeats, else from the curve, else unknown."""
        if self.repeated:
            return float(np.std(self.values, ddof=1)) / sqrt(len(self.values))
        return self.standard_error


def compare(least: Area, other: Area, noise: float) -> tuple[bool, str]:
    """Return whether `other` is larger than `least` beyond doubt, at 95 %, and how that was found.

    Repeats on both sides: Welch's interval of the difference of the means (Welch, Biometrika 34, 1947). Otherwise
    the standard errors that there are, a curve's from `curve_error`, and the difference must also exceed `noise`,
    relative, e.g. 0.01: one curve knows how the loss and the steps scatter within a run, not how runs differ. With
    neither: `noise` alone.
    """
    difference = float(np.mean(other.values) - np.mean(least.values))
    if least.repeated and other.repeated:
        found = contrast([Arm.of(np.array(area.values)) for area in (least, other)])
        counts = sorted({len(least.values), len(other.values)})
        return found.difference > found.half_width, f"{' or '.join(map(str, counts))} repeats"
    beyond_noise = difference > noise * float(np.mean(least.values))
    if least.error is None or other.error is None:
        return beyond_noise, f"assumed {100 * noise:g} % noise"
    half_width = float(special.ndtri((1 + CONFIDENCE) / 2)) * sqrt(least.error**2 + other.error**2)
    against = " against repeats" if least.repeated or other.repeated else ""
    limit = f", at least {100 * noise:g} %" if noise else ""
    return beyond_noise and difference > half_width, f"block bootstrap of one curve{against}{limit}"


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


def points(runs: pd.DataFrame, groups: list[str], search: list[str], error_of: CurveError) -> pd.DataFrame:
    """Return one row per point of the search, its repeats combined.

    It has the columns `groups` (what competes with what) and `search` (in which the points of a group differ), `point`
    (in short, never a bare number), `repeats`, the medians of `loss_area_loss_s` and `min_loss` over the repeats that
    have them, `oversubscribed` (any), `excluded` (empty if all repeats may win), `runs` (a list) and `area` (an `Area`,
    None if excluded). `error_of` gives the standard error of a run's loss area, or None where there is no curve.
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


def pick_winners(candidates: pd.DataFrame, groups: list[str], search: list[str], area_noise: float) -> pd.DataFrame:
    """Return, for each group of `points`, the one with the least loss area, and those that cannot be told from it.

    One row per group, in the order of `groups`; nulls and `no winner` where no point may win. `<axis>_low` and
    `<axis>_high` are the least and the largest value of the winner and what cannot be told from it. Of equal areas the
    point wins that is first in the order of `search`; the others cannot be told from it. `area_noise`: see `compare`.
    """
    rows = []
    for key, group in split(candidates, groups):
        fit = group[group["excluded"] == ""].sort_values(["loss_area_loss_s", *search], kind="stable")
        rows.append(key | _winner(fit, search, area_noise) | _counts(group))
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


def _winner(fit: pd.DataFrame, search: list[str], area_noise: float) -> dict[str, Any]:
    if fit.empty:
        return {"winner": NO_WINNER}
    samples = sorted(fit["samples_asked"].dropna().unique())
    if samples and samples[-1] > (1 + area_noise) * samples[0]:  # the shorter curve has the smaller area
        why = f"the points see {samples[0]} to {samples[-1]} samples; give samples_seen or more epochs"
        return {"winner": NO_WINNER, "judged_by": f"not comparable: {why}"}
    rows = rows_of(fit)
    best, others = rows[0], rows[1:]
    verdicts = [compare(best["area"], row["area"], area_noise) for row in others]
    alike = [row for row, (larger, _) in zip(others, verdicts, strict=True) if not larger]
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
            "judged_by": "; ".join(dict.fromkeys(method for _, method in verdicts)) or "no other point",
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


def ranked_points(study_runs: StudyRuns) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Return the points of a study's search, and the columns that group them and in which they differ."""
    runs = with_exclusions(study_runs)
    groups, search = group_columns(runs, study_runs.study), search_columns(study_runs.study)

    def error(run: str) -> float | None:
        curve = whole_curve(study_runs, run)
        return curve_error(curve.t_s, curve.loss)

    return points(runs, groups, search, error), groups, search
