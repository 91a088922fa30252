"""Epochs: how many samples, and steps, a run takes to see its training set once; intervals of its times."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ddp_hpc.analysis.intervals import Interval
from ddp_hpc.analysis.tables._ranks import provenance
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

UNKNOWN = "the records do not say how many samples an epoch has"


def train_samples(study_runs: StudyRuns, run: str) -> int | None:
    """Return the samples that a finished run trained on, an epoch; None where its record does not say."""
    samples = provenance(study_runs, run).get("train_samples")
    return int(samples) if samples else None


def steps_per_epoch(study_runs: StudyRuns, runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the steps in which all ranks together see the training set once; None where the runs differ in that.

    It is no whole number where the global batch does not divide the set.
    """
    found = {train_samples(study_runs, str(run["run"])) for run in runs}
    samples = found.pop() if len(found) == 1 else None
    return samples / (runs[0]["world_size"] * runs[0]["batch_size"]) if samples else None


def ended_well(group: pd.DataFrame) -> tuple[list[dict[str, Any]], str | None]:
    """Return the runs of a group that ended well, and how the others ended if there is none."""
    rows = [{str(name): value for name, value in row.items()} for row in group.to_dict("records")]
    ended = [row for row in rows if row["status"] == "ok"]
    words = ", ".join(sorted({in_words(str(row["status"])) for row in rows}))
    return ended, None if ended else f"not complete: {words}"


def spread(name: str, unit: str, interval: Interval, factor: float | None = 1.0) -> dict[str, float | None]:
    """Return a middle and its ends as columns, `step_s`, `step_low_s`, `step_high_s`; null without a factor."""
    ends = {"": interval.middle, "_low": interval.low, "_high": interval.high}
    return {
        f"{name}{end}{unit}": None if value is None or factor is None else factor * value for end, value in ends.items()
    }


def doubt(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns that tell whether times are to be trusted."""
    listed = list(rows)
    return {
        "slow_steps_share": max((row["slow_steps_share"] for row in listed), default=None),
        "oversubscribed": any(pd.notna(row["oversubscribed"]) and row["oversubscribed"] for row in listed),
    }
