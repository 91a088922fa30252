"""What the page says of each run, as JSON that a script shows when asked: small, though there be 1,000 runs."""

import os
import shlex
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import decisive, rows_of, show
from ddp_hpc.analysis.formatting import options
from ddp_hpc.analysis.report.provenance import Provenance
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs.study_runs import StudyRuns

POINTS, FEWEST_POINTS = 80, 20  # of a curve, which is drawn small
MOST_POINTS = 200_000  # of all curves: of many runs each has fewer
SIGNIFICANT = 4
RESULTS = (
    *("train_s", "samples_per_s", "step_s", "test_metric", "test_loss", "min_loss", "final_loss", "loss_area_loss_s"),
    *("time_to_s", "steps", "samples_seen", "parameters", "slow_steps_share", "drift_percent", "energy_j", "mfu"),
)


def cards(
    study_runs: StudyRuns, tables: Mapping[str, pd.DataFrame], provenance: Provenance, folder: Path
) -> dict[str, Any]:
    """Return what all runs have in common, and what is of each, in the order of the plan.

    `results`, `fields` and `phases` name what stands in the lists of a run; null is what was not measured. Paths are
    relative to `folder`, in which the page lies.
    """
    runs = tables.get("runs", study_runs.runs)
    results = [name for name in RESULTS if name in runs and runs[name].notna().any()]
    phases = [name for name in (*PHASES, "forward_backward_s") if name in runs and runs[name].notna().any()]
    differ = list(dict.fromkeys(name for varying in study_runs.varying.values() for name in varying))
    curves = _curves(tables["curves"]) if "curves" in tables else {}
    # the table may be older than the plan
    by_run = {str(row["run"]): row for frame in (study_runs.runs, runs) for row in rows_of(frame)}
    root = study_runs.store.root.parent
    listed = []
    for planned in study_runs.planned:
        row, log = by_run[planned.run], root / "logs" / "train" / f"{planned.run}.log"
        listed.append(
            {
                "id": planned.run,
                "point": study_runs.describe(planned.run),
                "status": "not yet run" if row["status"] == "missing" else str(row["status"]).replace("_", " "),
                "reason": _text(row["reason"]),
                "excluded": _text(row.get("excluded")),
                "ranks": planned.spec.world_size,
                "fields": [_field(row, name) for name in differ],
                "results": [_number(row.get(name)) for name in results],
                "phases": [_number(row.get(name)) for name in phases],
                "curve": curves.get(planned.run),
                "log": log.is_file(),
                "record": study_runs.store.file(planned.run).is_file(),
                "command": _again(study_runs, planned.run, planned.spec.world_size),
                "provenance": provenance.of_run.get(planned.run, []),
            }
        )
    common = [[name, _field(runs.iloc[0], name)] for name in SPEC_COLUMNS if name in runs and name not in differ]
    return {
        "fields": differ,
        "results": results,
        "phases": phases,
        "decisive": decisive(study_runs.study.rules),
        "common": [[name, value] for name, value in common if value],
        "facts": provenance.listed,
        "logs": os.path.relpath(root / "logs" / "train", folder),
        "records": os.path.relpath(study_runs.store.runs, folder),
        "runs": listed,
    }


def _again(study_runs: StudyRuns, run: str, ranks: int) -> str:
    launcher = f" --launcher {shlex.quote(f'mpiexec -n {ranks}')}" if ranks > 1 else ""
    again = " --again" if study_runs.store.file(run).is_file() else ""
    return f"ddp-hpc plan {study_runs.study.name} --write\nddp-hpc train {run}{again}{launcher}"


def _curves(table: pd.DataFrame) -> dict[str, list[list[float | None]]]:
    """Return by run times and losses of its curve, thinned, with its last point."""
    found = {}
    series = [table[name].to_numpy(float) for name in ("t_s", "loss")]
    rows_by_run = table.groupby("run", sort=False).indices
    points = min(POINTS, max(FEWEST_POINTS, MOST_POINTS // max(len(rows_by_run), 1)))
    for run, rows in rows_by_run.items():
        places = rows[np.unique(np.linspace(0, len(rows) - 1, points).round().astype(np.int64))]
        found[str(run)] = [[_number(value) for value in values[places].tolist()] for values in series]
    return found


def _number(value: Any) -> float | int | None:
    """Return a number in a few digits; None is what is not finite or not there."""
    if pd.isna(value) or not isfinite(value):
        return None
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{SIGNIFICANT}g}")


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else show(value)


def _field(row: "Mapping[str, Any] | pd.Series[Any]", name: str) -> str:
    text = _text(row.get(name))
    return options(text) if name.endswith("_options") else text
