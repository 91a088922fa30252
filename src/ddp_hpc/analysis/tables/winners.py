"""The winner of each group: complete, below the threshold, not oversubscribed, best by the rule; and how sure that is.

The rule is `winner_by`: the least loss area, the best test metric, or the least time to one. Repeats of a point are
combined: their median counts, and all must be able to win. `cannot_be_told_from` lists the points that may be the best
in truth (see `_winner_selection.told_apart`). `test_metric` is the median over the repeats of the winner, `doubt` says
where it may have won by luck, for lack of budget or on other processors.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import decisive, higher_is_better, rows_of, search_columns, split_rows
from ddp_hpc.analysis.intervals import Noise, over_runs
from ddp_hpc.analysis.tables._frame import columns, known, median, type_of
from ddp_hpc.analysis.tables._groups import Row, kind_of
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.analysis.tables._winner_selection import (
    Score,
    as_metric,
    numbers,
    pick_winners,
    ranked_points,
    undecided,
)
from ddp_hpc.config.study import Study
from ddp_hpc.runs import records
from ddp_hpc.runs.eligibility import NEVER, least_mean
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

__all__ = ["build", "undecided"]  # the latter for who plans more repeats

CAPTION = "Winners: the best point of each group by the rule, and those that cannot be distinguished from it."
GENERAL = True
RANKED = True
LEARNT = 0.05  # of the way from a constant answer to the best metric there is: below, nothing was learnt
ENOUGH_SAMPLES = 256  # whose mean loss no lucky batch decides
COUNTS = columns("repeats cannot_be_told_from_count excluded_points runs excluded_runs winner_runs")


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per group: its winner, the margin to the second, who cannot be told from it, who is excluded."""
    candidates, groups, search, time = ranked_points(study_runs)
    rules = study_runs.study.rules
    found = pick_winners(
        candidates, groups, search, rules.area_noise, time, by=decisive(rules), looks=len(study_runs.study.looks)
    )
    rows = {str(row["run"]): row for row in rows_of(study_runs.runs)}
    won = [[rows[run] for run in ("" if pd.isna(runs) else runs).split()] for runs in found["winner_runs"]]
    added: dict[str, list[Any]] = {
        name: [median(row[name] for row in winner) for winner in won] for name in ("test_metric", "chance_metric")
    }
    parts = [part for _, part in split_rows(candidates, groups)]
    rivals = [[row for row in part if NEVER in row["excluded"]] for part in parts]
    times = [row.get("time_to_s") for row in rows_of(found)]
    doubts = [_doubts(study_runs, winner) if winner else () for winner in won]
    cut_off = (_cut_off(time, lost, rows) for time, lost in zip(times, rivals, strict=True))
    elsewhere = (_elsewhere(study_runs, part, winner) for part, winner in zip(parts, won, strict=True))
    added["doubt"] = ["; ".join(chain(*why)) or None for why in zip(doubts, cut_off, elsewhere, strict=True)]
    scores = {" ".join(row["runs"]): row["score"] for row in chain(*parts)}
    for name, values in _intervals(study_runs, found, scores, time).items():
        added[name] = values
    place = list(found).index("min_loss") + 1
    for name in reversed([name for name in added if name not in found]):
        found.insert(place, name, pd.Series(added[name], index=found.index, dtype=type_of(name)))
    return found


def _intervals(
    study_runs: StudyRuns, found: pd.DataFrame, scores: Mapping[str, Score | None], time: Noise
) -> dict[str, list[float | None]]:
    """Return the ends of the intervals of what decides: over the repeats of a winner, else from the noise of time."""
    by = decisive(study_runs.study.rules)
    ends: dict[str, list[float | None]] = {f"{by}_low": [], f"{by}_high": []}
    for row in rows_of(found):
        score = scores.get(str(row["winner_runs"]))
        noise = time.at(kind_of(row)) if score and len(score.values) == 1 else None
        interval = over_runs(score.values, noise=noise) if score else None
        if interval and by == "test_metric":
            interval = as_metric(interval, study_runs.runs)
        ends[f"{by}_low"].append(interval.low if interval else None)
        ends[f"{by}_high"].append(interval.high if interval else None)
    return ends


def _cut_off(time_to_s: float | None, lost: list[Row], runs: Mapping[str, Row]) -> Iterator[str]:
    """Yield how many of the points without the test metric ended before the winner had it: they may be faster."""
    ends_s = [min(known(runs[run]["train_s"] for run in point["runs"])) for point in lost]
    if sooner := [end_s for end_s in ends_s if time_to_s is not None and end_s < time_to_s]:
        yield f"{len(sooner)} ended before its time without the test metric: with more budget they may be faster"


def _elsewhere(study_runs: StudyRuns, points: list[Row], winner: list[Row]) -> Iterator[str]:
    """Yield how many points ran on other processors than the winner, where times decide: the machine may have won."""
    if not winner or decisive(study_runs.study.rules) == "test_metric":
        return

    def processors(runs: Iterable[str]) -> set[str]:
        return {name for run in runs for name in records.processors_of(study_runs.store.file(run))}

    ours = processors(row["run"] for row in winner)
    theirs = [processors(row["runs"]) for row in points if row["excluded"] == ""]
    others = [names for names in theirs if ours and names and names != ours]
    if others:
        names = ", ".join(sorted(set().union(*others) - ours)) or "fewer kinds"
        here = ", ".join(sorted(ours))
        yield f"{counted(len(others), 'other point')} ran on other processors ({names}; it on {here})"


def _doubts(study_runs: StudyRuns, repeats: list[Row]) -> Iterator[str]:
    """Yield why a winner may owe its place to luck."""
    metric, chance = (median(row[name] for row in repeats) for name in ("test_metric", "chance_metric"))
    if metric is not None and chance is not None:
        best = 1.0 if higher_is_better(repeats[0]) else 0.0
        if (metric - chance) * (1 if best else -1) <= LEARNT * abs(best - chance):
            yield f"at chance: a constant answer has the test metric {chance:.3g}"
    threshold, window = study_runs.study.rules.loss_threshold, study_runs.study.rules.loss_window
    if threshold is None:
        return
    for row in repeats:
        loss = whole_curve(study_runs, row["run"]).loss
        steps = min(len(loss), math.ceil(ENOUGH_SAMPLES / (row["world_size"] * row["batch_size"])))
        if steps > window and (mean := least_mean(loss, steps)) > threshold:
            yield f"above the threshold over {steps} steps (least mean {mean:.3g}): see loss_window"
            return


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: `winner` names what is searched."""
    search = search_columns(study)
    return [
        *search,
        *(f"{name}_{end}" for name in (*numbers(search), decisive(study.rules)) for end in ("low", "high")),
        *COUNTS,
        "chance_metric",
    ]
