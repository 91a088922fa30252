"""Who keeps the others waiting: of each run the rank that costs most, where it sits, and what it does meanwhile.

In each counted step the rank that arrives last at the exchange is late by the time to the one before it: so much
sooner all could have begun without it. What a rank costs is the sum of that over the steps in which it was last. In a
quiet run the ranks take turns and cost about the same; a straggler stands out.
"""

from collections.abc import Mapping
from itertools import count, groupby
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, varying, with_standing
from ddp_hpc.analysis.intervals import Array
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._steps import provenance, rank_steps, why_null
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Stragglers: of each run the rank that keeps the others waiting most, and for how long."
GENERAL = True
LEFT_OUT = ("run", "next_costs_s", "slow_steps_share")

COSTS = 0.05  # of the training time: what a straggler costs at least
TIMES_THE_NEXT = 2.0  # and how much more than any other rank

# a rank is late at the exchange by what it does before: where it is slower than the others is the cause
_BEFORE = ("data_s", "h2d_s", "forward_s", "backward_s", "update_s", "rest_s")
_COLUMNS = columns(
    "straggler rank host gpu core_set last_share late_s costs_s costs_share next_costs_s slow_phase slower_s waited_s",
    "slow_steps_share oversubscribed reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per run of several ranks that has ended well.

    `rank` is the one that costs most, on `host`, with the GPU `gpu` (UUID) and the cores `core_set`. `last_share`: of
    the steps, in how many it was last; `late_s`: then by how much (median); `costs_s`: together, and `costs_share` of
    the training time; `next_costs_s`: what the next costs. `slow_phase` is the phase in which it is longer than the
    median of the other ranks by most, `slower_s` per step (mean). `waited_s`: how long an average rank waited in all.
    `straggler`: it costs at least 5 % of the training time, and twice what any other rank does. Where waiting is not
    known all is null, with the `reason`. Steps whose phases were not measured are taken to be like those that were.
    """
    runs = with_standing(study_runs.runs)
    axes = ordered({*varying(runs), "exchange", "world_size"})
    several = runs[(runs["world_size"] > 1) & (runs["status"] == "ok")]
    own = [*axes, "run"]
    rows = [{name: row[name] for name in own} | _row(study_runs, row) for row in rows_of(several)]
    return typed(rows, [*own, *_COLUMNS])


def _row(study_runs: StudyRuns, run: Mapping[str, Any]) -> dict[str, Any]:
    steps = rank_steps(study_runs, run["run"], ("wait_s", *PHASES))
    known = np.isfinite(steps["wait_s"]).all(axis=1)
    about = {name: run[name] for name in ("slow_steps_share", "oversubscribed")}
    if not known.any():
        return about | {"reason": f"waiting is not known: {why_null(study_runs, run['run'], 'wait_s')}"}
    wait_s = steps["wait_s"][known]
    last, late_s = np.argmin(wait_s, axis=1), np.partition(wait_s, 1, axis=1)[:, 1]
    all_steps = run["steps"] / len(wait_s)
    costs_s = np.bincount(last, weights=late_s, minlength=wait_s.shape[1]) * all_steps
    rank, mine = int(costs_s.argmax()), last == costs_s.argmax()
    worst_s, next_s = float(costs_s[rank]), float(np.delete(costs_s, rank).max())
    share = worst_s / run["train_s"]
    return about | {
        "straggler": bool(share >= COSTS and worst_s >= TIMES_THE_NEXT * next_s),
        **_place(provenance(study_runs, run["run"]), rank),
        "last_share": float(mine.mean()),
        "late_s": float(np.median(late_s[mine])),
        "costs_s": worst_s,
        "costs_share": share,
        "next_costs_s": next_s,
        **_cause(steps, rank),
        "waited_s": float(wait_s.mean(axis=1).sum() * all_steps),
    }


def _place(facts: Mapping[str, Any], rank: int) -> dict[str, Any]:
    found: dict[str, Any] = next((one for one in facts.get("ranks", []) if one["rank"] == rank), {})
    return {
        "rank": rank,
        "host": found.get("host"),
        "gpu": (found.get("gpu") or {}).get("uuid"),
        "core_set": in_ranges(found["core_set"]) if "core_set" in found else None,
    }


def in_ranges(numbers: list[int]) -> str:
    """Return core numbers as Linux writes them: `0-3,8`."""
    places = count()
    parts = [list(part) for _, part in groupby(sorted(numbers), lambda number: number - next(places))]
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _cause(steps: Mapping[str, Array], rank: int) -> dict[str, Any]:
    means_s = {phase: steps[phase].mean(axis=0) for phase in _BEFORE}
    known = {phase: mean_s for phase, mean_s in means_s.items() if np.isfinite(mean_s).all()}
    longer = {phase: float(mean_s[rank] - np.median(np.delete(mean_s, rank))) for phase, mean_s in known.items()}
    if not longer:
        return {}
    phase = max(longer, key=longer.__getitem__)
    return {"slow_phase": phase.removesuffix("_s"), "slower_s": longer[phase]}
