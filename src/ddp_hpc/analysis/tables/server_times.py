"""What a parameter server does in a step beside computing: gather, average and distribute, at rank 0.

Gathering begins when rank 0 has its own gradients and ends when it has all. In it are waiting, until the last rank has
its gradients, and moving, the rest; SHM-Learn-Dist (Biswas, 2017), figures 6.4 to 6.6, shows the three times without
telling these two apart. As there, times are means over the steps: parts add up to the whole, and slow steps count.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import step_columns, with_standing
from ddp_hpc.analysis.intervals import Array, of_mean, over_runs
from ddp_hpc.analysis.tables._frame import columns
from ddp_hpc.analysis.tables._groups import Group, Row, by_group, spread
from ddp_hpc.analysis.tables._steps import rank_steps, why_null
from ddp_hpc.profiling.phase_names import PARTS
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Times at a parameter server per step, at rank 0: means over the steps, then medians over the complete runs."

TIMES = ("gather", "gather_wait", "gather_move", "average", "distribute")
_ENDS = [f"{name}_{end}_s" for name in TIMES for end in ("low", "high")]
_MEDIANS = [f"median_{name}" for name in PARTS]
LEFT_OUT = (*_ENDS, *_MEDIANS)
_COLUMNS = columns(
    "runs", *(f"{name}_s" for name in TIMES), *LEFT_OUT, "server_share interval_from oversubscribed reason"
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step of exchanges that tell these times apart, and of those not yet run.

    Each time has its 95 % interval, `..._low_s` to `..._high_s`, over the runs, or within the only one
    (`interval_from`). `median_..._s` are over the steps, so that single slow ones do not disturb them. `server_share`
    is the sum of gather, average and distribute over the step. What is not known is null, with the `reason`.
    """
    runs = with_standing(study_runs.runs)
    runs = runs[(runs["exchange"] != "none") & ((runs["status"] != "ok") | runs["gather_s"].notna())]
    return by_group(study_runs, runs, step_columns(runs), _COLUMNS, _measured)


def _measured(group: Group) -> Row:
    steps = [of_rank_0(group.study_runs, str(row["run"])) for row in group.ended]
    found = {}
    for name in TIMES:
        within = [of_mean(one[f"{name}_s"]) for one in steps]
        found[name] = over_runs([one.middle for one in within], within[0])
    medians = {name: over_runs([float(np.median(one[name])) for one in steps]).middle for name in PARTS}
    shares = [sum(float(one[name].mean()) for name in PARTS) / float(one["step_s"].mean()) for one in steps]
    waited = np.isfinite(found["gather_wait"].middle)
    return {column: value for name in TIMES for column, value in spread(name, "_s", found[name]).items()} | {
        **{f"median_{name}": seconds for name, seconds in medians.items()},
        "server_share": over_runs(shares).middle,
        "interval_from": found["gather"].basis,
        "reason": None if waited else f"waiting: {why_null(group.study_runs, group.run, 'wait_s')}",
    }


def of_rank_0(study_runs: StudyRuns, run: str) -> Mapping[str, Array]:
    """Return `step_s` and `TIMES` of each counted step of a run at rank 0, in seconds; NaN where waiting is not known.

    Averaging what has come, rank 0 may wait for the last rank outside of gathering; of the waiting, what is within
    gathering counts.
    """
    steps = {name: of_ranks[:, 0] for name, of_ranks in rank_steps(study_runs, run, (*PARTS, "wait_s")).items()}
    wait_s = np.minimum(steps["wait_s"], steps["gather_s"])
    return steps | {"gather_wait_s": wait_s, "gather_move_s": steps["gather_s"] - wait_s}
