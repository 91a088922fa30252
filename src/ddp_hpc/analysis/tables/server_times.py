"""What a parameter server does in a step beside computing: gather, average and distribute, at rank 0.

Gathering begins when rank 0 has its own gradients and ends when it has all. In it are waiting, until the last rank has
its gradients, and moving, the rest; SHM-Learn-Dist (Biswas, 2017), figures 6.4 to 6.6, shows the three times without
telling these two apart. As there, times are means over the steps: parts add up to the whole, and slow steps count.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, split, standing, varying
from ddp_hpc.analysis.intervals import Array, Interval, of_mean, over_runs
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.analysis.tables._ranks import provenance, rank_steps, why_null
from ddp_hpc.config.comparability import SAME_WORK
from ddp_hpc.config.study import Study
from ddp_hpc.profiling.phases import PARTS
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Times at a parameter server per step, at rank 0: means over the steps, then medians over the complete runs."
ON_REQUEST = True

GATHERING = ("gather_wait_s", "gather_move_s")
TIMES = ("gather_s", *GATHERING, "average_s", "distribute_s")
_TYPES = {
    "runs": INT,
    **dict.fromkeys(TIMES, FLOAT),
    **{f"{name.removesuffix('_s')}_{end}_s": FLOAT for name in TIMES for end in ("low", "high")},
    **{f"median_{name}": FLOAT for name in PARTS},
    "server_share": FLOAT,
    "interval_from": TEXT,
    "oversubscribed": FLAG,
    "reason": TEXT,
}


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step of exchanges that tell these times apart, and of those not yet run.

    Each time has its 95 % interval, `..._low_s` to `..._high_s`, over the runs, or within the only one
    (`interval_from`). `median_..._s` are over the steps, so that single slow ones do not disturb them. `server_share`
    is the sum of gather, average and distribute over the step. What is not known is null, with the `reason`.
    """
    runs = study_runs.runs.copy()
    runs["status"] = standing(runs)
    runs = runs[(runs["exchange"] != "none") & ((runs["status"] != "ok") | runs["gather_s"].notna())]
    axes = ordered({*varying(runs), "exchange", "world_size", "batch_size"} - SAME_WORK - {"evaluate_every_steps"})
    return typed((key | _row(study_runs, rows) for key, rows in split(runs, axes)), types_of(axes) | _TYPES)


def _row(study_runs: StudyRuns, group: pd.DataFrame) -> dict[str, Any]:
    ended = rows_of(group[group["status"] == "ok"])
    if not ended:
        words = ", ".join(sorted({in_words(str(status)) for status in group["status"]}))
        return {"runs": 0, "reason": f"not complete: {words}"}
    steps = [of_rank_0(study_runs, str(row["run"])) for row in ended]
    found = {name: _over([of_mean(one[name]) for one in steps]) for name in TIMES}
    medians = {name: over_runs([float(np.median(one[name])) for one in steps]).middle for name in PARTS}
    shares = [sum(float(one[name].mean()) for name in PARTS) / float(one["step_s"].mean()) for one in steps]
    waited = np.isfinite(found["gather_wait_s"].middle)
    return {
        "runs": len(ended),
        **{name: interval.middle for name, interval in found.items()},
        **{f"{name.removesuffix('_s')}_low_s": interval.low for name, interval in found.items()},
        **{f"{name.removesuffix('_s')}_high_s": interval.high for name, interval in found.items()},
        **{f"median_{name}": seconds for name, seconds in medians.items()},
        "server_share": over_runs(shares).middle,
        "interval_from": found["gather_s"].basis,
        "oversubscribed": any(pd.notna(row["oversubscribed"]) and row["oversubscribed"] for row in ended),
        "reason": None if waited else f"waiting: {why_null(provenance(study_runs, ended[0]['run']), 'wait_s')}",
    }


def of_rank_0(study_runs: StudyRuns, run: str) -> Mapping[str, Array]:
    """Return `step_s` and `TIMES` of each counted step of a run at rank 0, in seconds; NaN where waiting is not known.

    Averaging what has come, rank 0 may wait for the last rank outside of gathering; of the waiting, what is within
    gathering counts.
    """
    steps = rank_steps(study_runs, run, (*PARTS, "wait_s"))
    gather_s, average_s, distribute_s = (steps[name][:, 0] for name in PARTS)
    wait_s = np.minimum(steps["wait_s"][:, 0], gather_s)
    return {
        "step_s": steps["step_s"][:, 0],
        "gather_s": gather_s,
        "gather_wait_s": wait_s,
        "gather_move_s": gather_s - wait_s,
        "average_s": average_s,
        "distribute_s": distribute_s,
    }


def _over(within: list[Interval]) -> Interval:
    return over_runs([one.middle for one in within], within[0])


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading: the ends of the intervals, and medians beside the means."""
    return [name for name in _TYPES if name.endswith(("_low_s", "_high_s")) or name.startswith("median_")]
