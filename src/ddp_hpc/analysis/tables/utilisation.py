"""What the GPUs did with their time and their joules: busy, power, clocks, and how much of their peak was used.

The driver calls a GPU busy while any kernel runs, and a kernel that waits for other ranks runs. So usage may rise with
the ranks while nothing is faster; beside power, MFU and the exposed exchange it is seen for what it is.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, split, varying
from ddp_hpc.analysis.tables._curve import whole_curve
from ddp_hpc.analysis.tables._frame import FLAG, FLOAT, INT, TEXT, typed, types_of
from ddp_hpc.config.comparability import SAME_WORK
from ddp_hpc.config.study import Study
from ddp_hpc.profiling.phases import PHASES
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Utilisation and energy: medians over the complete runs; the learning rate and the seed change no work."
OF_GPUS = True

MEDIANS = (
    "gpu_utilisation_mean",
    "power_mean_w",
    "sm_clock_mean_mhz",
    "throttled_share",
    "mfu",
    "flop_per_s",
    "samples_per_s",
    "energy_per_sample_j",
    "energy_idle_share",
    "nvlink_tx_bytes_per_s",
    "pcie_tx_bytes_per_s",
)
_TYPES = (
    {"runs": INT, "gpus": INT}
    | dict.fromkeys((*MEDIANS, "samples_per_s_per_rank", "exchange_share", "cpu_energy_per_sample_j"), FLOAT)
    | {"energy_to_target_j": FLOAT, "energy_method": TEXT, "oversubscribed": FLAG, "reason": TEXT}
)
_EXPLAINED = ("gpu_utilisation_mean", "energy_j", "mfu")


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per kind of step: medians over its runs with status ok; what is not known is null.

    `exchange_share` is exchange_exposed_s over the sum of the phases. `energy_to_target_j` is what the GPUs used until
    the loss, over the study's `loss_window`, first was at most its `loss_threshold`: the least of the row's runs that
    got there; null without a threshold. `reason` says why usage, energy and MFU are null.
    """
    runs = study_runs.runs
    axes = ordered({*varying(runs), "exchange", "world_size", "batch_size"} - SAME_WORK)
    types = types_of(axes) | _TYPES
    return typed((key | _row(study_runs, rows[rows["status"] == "ok"]) for key, rows in split(runs, axes)), types)


def _row(study_runs: StudyRuns, ended: pd.DataFrame) -> dict[str, Any]:
    if ended.empty:
        return {"runs": 0, "reason": "no complete run"}
    to_target = [joules for run in rows_of(ended) if (joules := energy_to_target_j(study_runs, run)) is not None]
    methods = sorted(ended["energy_method"].dropna().unique())
    seen = ended["samples_seen"].astype("Float64")
    return {name: ended[name].median() for name in MEDIANS} | {
        "runs": len(ended),
        "gpus": ended["gpus"].max(),
        "samples_per_s_per_rank": (ended["samples_per_s"] / ended["world_size"]).median(),
        "exchange_share": exposed_share(ended),
        "cpu_energy_per_sample_j": (ended["cpu_energy_j"].astype("Float64") / seen).median(),
        "energy_to_target_j": min(to_target, default=None),
        "energy_method": ", ".join(map(str, methods)) or None,
        "oversubscribed": bool(ended["oversubscribed"].fillna(False).any()),
        "reason": _why(study_runs, rows_of(ended)),
    }


def exposed_share(runs: pd.DataFrame) -> float | None:
    """Return the median over runs of exchange_exposed_s over the sum of the phases; None where that is not known."""
    whole = runs[[*PHASES, "forward_backward_s"]].astype("float64").sum(axis=1)
    share = (runs["exchange_exposed_s"].astype("float64") / whole.where(whole > 0)).median()
    return None if pd.isna(share) else float(share)


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


def _why(study_runs: StudyRuns, ended: list[dict[str, Any]]) -> str | None:
    """Return why columns are null, each reason once, in words of the first run that has it."""
    found: dict[str, list[str]] = {}
    for run in ended:
        lacking = [name for name in _EXPLAINED if pd.isna(run[name])]
        if not lacking:
            continue
        notes = records.read_metadata(study_runs.store.file(str(run["run"]))).get("provenance", {})
        for name in lacking:
            why = notes.get("null_columns", {}).get(name, "not recorded")
            found.setdefault(why, [])
            if name not in found[why]:
                found[why].append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in found.items()) or None


def left_out(study: Study) -> list[str]:
    """Return the columns that are not for reading."""
    return ["flop_per_s", "samples_per_s", "nvlink_tx_bytes_per_s", "pcie_tx_bytes_per_s", "energy_method"]
