"""What the GPUs did with their time and their joules: busy, power, clocks, and how much of their peak was used.

The driver calls a GPU busy while any kernel runs, and a kernel that waits for other ranks runs. So usage may rise with
the ranks while nothing is faster; beside power, MFU and the exposed exchange it is seen for what it is.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import step_columns, with_standing
from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables._frame import columns, known, largest, median
from ddp_hpc.analysis.tables._groups import Group, Row, by_group
from ddp_hpc.analysis.tables._steps import whole_curve, why_null
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Utilisation and energy: medians over the complete runs; the learning rate and the seed change no work."
OF_GPUS = True
LEFT_OUT = columns(
    "gpu_utilisation_mean_low gpu_utilisation_mean_high flop_per_s samples_per_s nvlink_tx_bytes_per_s",
    "pcie_tx_bytes_per_s energy_method",
)

MEDIANS = columns(
    "gpu_utilisation_mean power_mean_w sm_clock_mean_mhz throttled_share mfu flop_per_s samples_per_s",
    "energy_per_sample_j energy_idle_share nvlink_tx_bytes_per_s pcie_tx_bytes_per_s",
)
_COLUMNS = columns(
    "runs gpus",
    *MEDIANS,
    "gpu_utilisation_mean_low gpu_utilisation_mean_high",
    "samples_per_s_per_rank exchange_share cpu_energy_per_sample_j energy_to_target_j energy_method oversubscribed",
    "reason",
)
_EXPLAINED = ("gpu_utilisation_mean", "energy_j", "mfu")


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step: medians over its runs that ended well, where they should; null: not known.

    `exchange_share` is exchange_exposed_s over the sum of the phases. `energy_to_target_j` is what the GPUs used until
    the loss, over the study's `loss_window`, first was at most its `loss_threshold`: the least of the row's runs that
    got there; null without a threshold. `reason` says why usage, energy and MFU are null.
    """
    runs = with_standing(study_runs.runs)
    return by_group(study_runs, runs, step_columns(runs), _COLUMNS, _measured)


def _measured(group: Group) -> Row:
    ended = group.ended
    gpus = largest(row["gpus"] for row in ended)
    busy = over_runs(known(row["gpu_utilisation_mean"] for row in ended))
    return {name: group.median(name) for name in MEDIANS} | {
        "gpu_utilisation_mean_low": busy.low,
        "gpu_utilisation_mean_high": busy.high,
        "gpus": None if gpus is None else int(gpus),
        "samples_per_s_per_rank": median(row["samples_per_s"] / row["world_size"] for row in ended),
        "exchange_share": group.share("exchange_exposed_s"),
        "cpu_energy_per_sample_j": median(row["cpu_energy_j"] / row["samples_seen"] for row in ended),
        "energy_to_target_j": min(known(energy_to_target_j(group.study_runs, row) for row in ended), default=None),
        "energy_method": ", ".join(sorted({row["energy_method"] for row in ended if row["energy_method"]})) or None,
        "reason": _why(group.study_runs, ended),
    }


def energy_to_target_j(study_runs: StudyRuns, run: Mapping[str, Any]) -> float | None:
    """Return the joules of all GPUs until a run reached the study's threshold; None if it did not, or is not known."""
    rules = study_runs.study.rules
    file = study_runs.store.file(str(run["run"]), "gpu")
    if rules.loss_threshold is None or pd.isna(run["energy_j"]) or not file.is_file():
        return None
    curve = whole_curve(study_runs, str(run["run"]))
    if len(curve.loss) < rules.loss_window:
        return None
    means = np.convolve(curve.loss, np.full(rules.loss_window, 1 / rules.loss_window), mode="valid")
    there = np.flatnonzero(means <= rules.loss_threshold)
    if not len(there):
        return None
    reached_s = float(curve.t_s[there[0] + rules.loss_window - 1])
    samples = records.read("gpu", file, ["uuid", "trained_s", "energy_j"]).to_pandas().dropna()
    rises = [
        np.interp(reached_s, one["trained_s"], one["energy_j"] - one["energy_j"].iloc[0])
        for _, one in samples.groupby("uuid")
    ]
    return float(sum(rises)) if rises else None


def _why(study_runs: StudyRuns, ended: list[Row]) -> str | None:
    """Return why columns are null, each reason once, in words of the first run that has it."""
    found: dict[str, dict[str, None]] = {}
    for run, name in product(ended, _EXPLAINED):
        if pd.isna(run[name]):
            found.setdefault(why_null(study_runs, run["run"], name), {})[name] = None
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in found.items()) or None
