"""Which runs can win, and which point of the search is best; the same rule for measured and published numbers."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

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
from ddp_hpc.analysis.tables._frame import FLOAT, INT, columns, known, median, type_of, typed
from ddp_hpc.analysis.tables._significance import Area, compare, curve_error, least_mean
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.runs.study_runs import StudyRuns

NO_WINNER = "no winner"
CurveError = Callable[[str], float | None]


def with_exclusions(study_runs: StudyRuns) -> pd.DataFrame:
    """Return the planned runs with `min_loss` over the study's window, `excluded` and `slow_steps_share`.

    `excluded` says why a run may not win, `slow_steps_share` is as `slow_steps_share` gives it.
    """
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


def exclusions(runs: pd.DataFrame, loss_threshold: float | None) -> "pd.Series[str]":
    """Return for each run why it may not win, an empty text if it may.

    A run competes if it ended well, saw all samples it was asked for, has an area, reached the threshold, and had
    a core for every thread. By area alone a short run wins, however poor its final loss.

    Args:
        runs: one row per run, with `status`, `samples_seen`, `samples_asked`, `min_loss`, `loss_area_loss_s`,
            `oversubscribed`.
        loss_threshold: the largest `min_loss` that may win, inclusive; None: any.

    Source: Biswas, SHM-Learn-Dist (2017), section 5.
    """
    return pd.Series([_exclusion(row, loss_threshold) for row in rows_of(runs)], index=runs.index, dtype="string")


def _exclusion(row: Mapping[str, Any], loss_threshold: float | None) -> str:
    """Return the first reason that applies."""
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
    """Combine the repeats of each point of the search.

    Args:
        runs: one row per run, with the columns of `exclusions`, `run` and `excluded`.
        groups: the columns that say what competes with what.
        search: the columns in which the points of a group differ.
        error_of: gives the standard error of a run's loss area, or None where there is no curve.

    Returns:
        One row per point: its `groups` and `search`, `point` (in short, never a bare number), `repeats`, the medians of
        `loss_area_loss_s` and `min_loss` over the repeats that have them, `oversubscribed` (any), `excluded` (empty
        if all repeats may win), `runs` (a list) and `area` (an `Area`, None if excluded).
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
    counts = Counter(reason for reason in reasons if reason)
    if not counts:
        return ""
    if len(counts) == 1 and counts.total() == len(reasons):
        return reasons[0]
    return " and ".join(f"{count} of {len(reasons)} repeats {reason}" for reason, count in sorted(counts.items()))


def pick_winners(candidates: pd.DataFrame, groups: list[str], search: list[str], area_noise: float) -> pd.DataFrame:
    """Return, for each group, the point with the least loss area, and those that cannot be told from it.

    Args:
        candidates: as `points` returns them.
        groups: the columns that say what competes with what.
        search: the columns in which the points of a group differ.
        area_noise: relative difference of areas taken for noise where a point is not repeated.

    Returns:
        One row per group, in the order of `groups`; nulls and `no winner` where no point may win. `<axis>_low` and
        `<axis>_high` are the least and the largest value of the winner and what cannot be told from it. Of equal areas
        the point wins that is first in the order of `search`; the others cannot be told from it.
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
    if len(samples) > 1:  # the shorter of two curves has the smaller area, however poor its end
        seen = f"{samples[0]} to {samples[-1]} samples"
        return {
            "winner": NO_WINNER,
            "judged_by": f"not comparable: the points see {seen}; give the budget in samples_seen",
        }
    rows = rows_of(fit)
    best, others = rows[0], rows[1:]
    verdicts = [(row, compare(best["area"], row["area"], area_noise)) for row in others]
    alike = [row for row, verdict in verdicts if not verdict.larger]
    ranges = {name: [row[name] for row in (best, *alike) if pd.notna(row[name])] for name in numbers(search)}
    lows = {f"{name}_low": min(values, default=None) for name, values in ranges.items()}
    highs = {f"{name}_high": max(values, default=None) for name, values in ranges.items()}
    return {name: best[name] for name in (*search, "loss_area_loss_s", "min_loss", "repeats")} | {
        "winner": best["point"],
        "standard_error_loss_s": best["area"].error,
        "margin_percent": 100 * (others[0]["loss_area_loss_s"] / best["loss_area_loss_s"] - 1) if others else None,
        "second": others[0]["point"] if others else None,
        **lows,
        **highs,
        "cannot_be_told_from": "; ".join(row["point"] for row in alike),
        "cannot_be_told_from_count": len(alike),
        "judged_by": "; ".join(dict.fromkeys(verdict.method for _, verdict in verdicts)) or "no other point",
        "winner_runs": " ".join(best["runs"]),
    }


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
