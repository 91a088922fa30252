"""Points that a study lacks, as YAML to paste under its `grid`."""

import json
from collections.abc import Sequence
from typing import Any

from ddp_hpc.analysis.prediction.measured import Place
from ddp_hpc.analysis.tables._scaling_lines import Line
from ddp_hpc.config.spec import COMPONENTS, RunSpec
from ddp_hpc.runs.study_runs import StudyRuns


def as_yaml(study_runs: StudyRuns, line: Line, places: Sequence[Place]) -> str | None:
    """Return an entry of `grid` for these points of a line, like the run of it that has the most ranks."""
    if not places:
        return None
    model = max(line.planned, key=lambda row: (row["exchange"] != "none", row["world_size"]))
    spec = next(one.spec for one in study_runs.planned if one.run == model["run"])
    varying = study_runs.varying[model["run"]]
    names = [name for name in RunSpec.model_fields if name in varying or f"{name}_options" in varying]
    fixed = {name: _plain(spec, name) for name in names if name not in ("seed", "budget", *_PLACED)}
    fixed = {"exchange": _plain(spec, "exchange"), **fixed, "world_size": [one.world_size for one in places]}
    if spec.program:  # which has no other
        del fixed["exchange"]
    batches = [int(line.batch_at(one.world_size)) for one in places]
    if line.kind == "strong":
        fixed["global_batch_size"] = line.batch
    else:
        fixed["batch_size"] = batches[0]
    if max(one.nodes for one in places) > 1:
        fixed |= {"placement": "spread", "ranks_per_node": max(1, round(places[0].ranks_per_node))}
    fixed.setdefault("learning_rate", spec.learning_rate)
    return "- " + _flow(fixed)


_PLACED = ("world_size", "batch_size", "placement", "ranks_per_node", "learning_rate")


def _plain(spec: RunSpec, name: str) -> Any:
    value = getattr(spec, name)
    return value.model_dump(mode="json", exclude_defaults=True) if name in COMPONENTS and value else value


def _flow(value: Any) -> str:
    """Return a value as YAML on one line, as people write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)
