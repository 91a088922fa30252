"""The gradient noise scale of each run, and the global batch from which larger ones stop helping.

McCandlish, Kaplan, Amodei et al., arXiv:1812.06162. With a batch as large as the noise scale, a training takes twice
the fewest steps, and twice the fewest samples.
"""

from collections.abc import Iterator
from math import isnan, nan

import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, varying
from ddp_hpc.analysis.tables._approaches import NOT_SAMPLED, norms_of
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._goals import to_threshold
from ddp_hpc.analysis.tables._groups import Row, not_complete, spread
from ddp_hpc.analysis.tables._steps import why_null
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = (
    "Gradient noise scale of each run, in samples, and the global batch from which larger ones stop helping on its way."
)
LEFT_OUT = ("run",)
_COLUMNS = columns(
    "global_batch_size sampled_steps gradient_norm2 gradient_trace noise_scale noise_scale_low noise_scale_high",
    "interval_from to_step critical_batch run reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned run, in the order of the plan.

    `gradient_norm2` and `gradient_trace` are the unbiased |G|^2 and tr(Sigma), means over the sampled steps;
    `noise_scale` is their ratio, B_simple, with Fieller's 95 % interval. `critical_batch` is B_noise of the steps to
    the loss threshold, `to_step`, or of all steps without one, each step counted by how far it comes: null where that
    is never reached, or the samples do not tell.
    """
    axes = ordered({*varying(study_runs.runs), "exchange", "world_size", "batch_size"})
    return typed(_rows(study_runs, axes), [*axes, *_COLUMNS])


def _rows(study_runs: StudyRuns, axes: list[str]) -> Iterator[Row]:
    reached = to_threshold(study_runs)
    for row in rows_of(study_runs.runs):
        batch = int(row["world_size"] * row["batch_size"])
        about = {name: row[name] for name in [*axes, "run"]} | {"global_batch_size": batch}
        norms = norms_of(study_runs, row) if row["status"] == "ok" else None
        if norms is None:
            yield about | {"reason": _why(study_runs, row)}
            continue
        scale, end = norms.noise_scale(), reached(row)[0] if reached else float(row["steps"])
        critical = nan if isnan(end) else norms.until(end).along_the_way(batch)
        why = f"the loss never came to {study_runs.study.rules.loss_threshold:g}" if isnan(end) else None
        few = "too few samples on that way" if isnan(critical) else None
        yield about | {
            "sampled_steps": len(norms.step),
            "gradient_norm2": float(norms.signal.mean()),
            "gradient_trace": float(norms.noise.mean()),
            **spread("noise_scale", "", scale),
            "interval_from": scale.basis if scale.known else None,
            "to_step": end,
            "critical_batch": critical,
            "reason": why or (None if scale.known else scale.basis) or few,
        }


def _why(study_runs: StudyRuns, row: Row) -> str:
    if row["status"] != "ok":
        return not_complete([row])
    if pd.isna(row["noise_scale_every_steps"]):
        return NOT_SAMPLED
    if row["steps"] < row["noise_scale_every_steps"]:
        return f"its {row['steps']} steps are fewer than noise_scale_every_steps: {row['noise_scale_every_steps']}"
    return why_null(study_runs, str(row["run"]), "gradient_norm2")
