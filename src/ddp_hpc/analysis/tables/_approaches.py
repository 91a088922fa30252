"""How far runs of one kind are from a goal at each global batch, and the model of it from the gradient noise scale."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from ddp_hpc.analysis.columns import key_of, ordered, rows_of, split, varying
from ddp_hpc.analysis.prediction.noise_scale import FARTHEST, Norms, StepsModel, StepsThere
from ddp_hpc.analysis.tables._goals import Reached
from ddp_hpc.analysis.tables._groups import Row
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import EXCHANGE, RANKS, RATE, SAME_WORK
from ddp_hpc.config.spec import noise_parts
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import StudyRuns

NOT_SAMPLED = "no gradients were sampled: set `noise_scale_every_steps`"
NOT_THERE = "no learning rate comes there in all repeats"
_COLUMNS = ("step", "rank", "warm_up", "part_gradient_norm2", "gradient_norm2")


@dataclass(frozen=True)
class BestRate:
    """The learning rate that is at a goal in the fewest steps with one global batch, and why it may not be the best."""

    way: StepsThere
    learning_rate: float
    doubt: str | None


@dataclass(frozen=True)
class Approach:
    """Runs that differ in ranks, batch, learning rate and exact exchange alone, on their way to a goal."""

    key: Mapping[str, Any]  # what sets them apart from others
    found: tuple[BestRate, ...]  # by global batch, rising
    model: StepsModel

    def doubt(self, batch: float) -> str | None:
        """Return why nothing is said of the steps with a global batch; None if something is."""
        if not self.found:
            return NOT_THERE
        if not len(self.model.noise_scales):
            return NOT_SAMPLED
        least, largest = self.found[0].way.batch, self.found[-1].way.batch
        if not least / FARTHEST <= batch <= FARTHEST * largest:
            return f"more than {FARTHEST} times beyond the measured global batches, {least} to {largest}"
        return None

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Return whether a run is of this kind."""
        return key_of(row, self.key) == key_of(self.key, self.key)


def kind_columns(runs: pd.DataFrame) -> list[str]:
    """Return the columns in which runs of one approach agree, as far as they vary."""
    return ordered(set(varying(runs)) - RANKS - SAME_WORK - EXCHANGE - {"batch_size"})


def approaches(study_runs: StudyRuns, reached: Reached) -> list[Approach]:
    """Return the approaches to a goal, each with its model. A run that came there counts, however it was timed."""
    runs = study_runs.runs[study_runs.runs["status"].isin(FINISHED)]
    exact = [catalog.constants("exchange", name).get("EXACT", False) for name in runs["exchange"]]
    runs = runs[exact]
    found = []
    for key, part in split(runs, names) if (names := kind_columns(study_runs.runs)) else [({}, runs)]:
        rates = tuple(_best_rates(study_runs, rows_of(part), reached))
        found.append(Approach(key, rates, StepsModel(tuple(rate.way for rate in rates))))
    return found


def _best_rates(study_runs: StudyRuns, rows: Sequence[Row], reached: Reached) -> Iterator[BestRate]:
    by_batch: dict[int, dict[tuple[Any, ...], list[Row]]] = {}
    for row in rows:
        batch = int(row["world_size"] * row["batch_size"])
        by_batch.setdefault(batch, {}).setdefault(key_of(row, sorted(RATE)), []).append(row)
    for batch, by_rate in sorted(by_batch.items()):
        there = {}
        for rate, alike in by_rate.items():
            steps = [reached(row)[0] if row["status"] == "ok" else np.nan for row in alike]
            if not any(map(isnan, steps)):
                there[rate] = dict(zip((row["seed"] for row in alike), steps, strict=True))  # a seed counts once
        if there:
            best = min(there, key=lambda rate: float(np.median(list(there[rate].values()))))
            norms = ((norms_of(study_runs, row), reached(row)[0]) for row in by_rate[best])
            scales = tuple(one.until(steps).along_the_way(batch) for one, steps in norms if one)
            chosen = float(by_rate[best][0]["learning_rate"])
            tried = {float(alike[0]["learning_rate"]) for alike in by_rate.values()}
            yield BestRate(StepsThere(batch, tuple(there[best].values()), scales), chosen, _untuned(chosen, tried))


def _untuned(rate: float, tried: set[float]) -> str | None:
    if len(tried) == 1:
        return "one learning rate was tried"
    if rate in (min(tried), max(tried)):
        which = "largest" if rate == max(tried) else "smallest"
        return f"the best learning rate is the {which} that was tried"
    return None


def norms_of(study_runs: StudyRuns, row: Mapping[str, Any]) -> Norms | None:
    """Return the norms of a run's sampled gradients; None if none was sampled."""
    if pd.isna(row["noise_scale_every_steps"]) or row["status"] not in FINISHED:
        return None
    rank_0 = (pc.field("rank") == 0) & ~pc.field("warm_up")
    steps = study_runs.steps(str(row["run"]), _COLUMNS, rank_0).sort_values("step")
    sampled = steps[steps["gradient_norm2"].notna()]
    parts, samples = noise_parts(int(row["world_size"]), int(row["batch_size"]))
    step, part, whole = (sampled[name].to_numpy(float) for name in ("step", *_COLUMNS[3:]))
    return Norms(step.astype(np.int64), part, whole, parts, samples) if len(sampled) else None
