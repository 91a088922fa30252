"""Speedup, parallel efficiency and Karp-Flatt's serial fraction of each point, against one rank without exchange.

- fixed samples: the same batch per rank and the same samples; the ratio of times (as in SHM-Learn-Dist). Epochs that
  are rounded to steps count as the same samples, times in proportion to those seen.
- strong: the same global batch and the same samples; the ratio of times.
- weak: the same batch per rank; the ratio of rates. Where all runs see the same samples it equals fixed samples.

The baseline is the run of the same spec with world_size 1 and exchange none. Runs pair by seed; the median over the
pairs counts, with the least and the largest and its 95 % interval beside it, over the pairs (`intervals.over_runs`).
Few pairs share how the ratios of runs that do equal work differ; where there are none, one pair is judged within its
two runs. Of several baselines the one counts that ended well and is most like the run. Without one the speedup is null,
and the reason given. Every axis of the study but the seed keeps its rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import key_of, ordered, rows_of, split_rows, varying, with_standing
from ddp_hpc.analysis.intervals import Arm, Noise
from ddp_hpc.analysis.tables._frame import columns, median, typed
from ddp_hpc.analysis.tables._groups import (
    Row,
    WithSpec,
    doubt,
    kind_of,
    likeness,
    one_rank,
    over_pairs,
    spread,
    why_not,
    with_spec,
)
from ddp_hpc.config.comparability import SAME_WORK, SPEEDUP_BASELINE, agreeing
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Scaling: speedup, parallel efficiency and Karp-Flatt's serial fraction, against one rank without exchange."
GENERAL = True
LEFT_OUT = columns(
    "samples_per_s baseline_train_s baseline_samples_per_s speedup_least speedup_largest efficiency_low",
    "efficiency_high",
)

_COLUMNS = columns(
    "global_batch_size pairs train_s samples_per_s baseline_train_s baseline_samples_per_s",
    "speedup speedup_least speedup_largest speedup_low speedup_high interval_from",
    "efficiency efficiency_low efficiency_high karp_flatt slow_steps_share oversubscribed reason",
)


@dataclass(frozen=True)
class Kind:
    """A way to scale: what a run has in common with its baseline, and what is compared."""

    name: str
    same: tuple[str, ...]  # columns that are equal, beside those of the spec that must agree for a speedup
    quantity: str
    free: tuple[str, ...] = ()

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what a run has in common with its baseline, but for the seed."""
        return key_of(row, [*agreeing(SPEEDUP_BASELINE.union(self.free)), *self.same])

    def speedup(self, row: Row, base: Row) -> float:
        """Return how many times as fast as its baseline a run is."""
        if self.quantity == "train_s":
            work = row["samples_seen"] / base["samples_seen"]  # 1, but for epochs that were rounded to steps
            return float(base["train_s"] / row["train_s"] * work)
        return float(row["samples_per_s"] / base["samples_per_s"])


KINDS = (
    Kind("fixed samples", ("samples_planned",), "train_s"),
    Kind("strong", ("samples_planned", "global_batch_size"), "train_s", free=("batch_size",)),
    Kind("weak", (), "samples_per_s"),
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per planned point and kind of scaling for which the study plans any pair.

    A study without any pair gets rows of one kind, which say what baseline is not planned. `slow_steps_share` is the
    largest of all runs that the speedup is made from, baselines too (`columns.slow_steps_share`).
    """
    runs = with_standing(study_runs.runs)
    specs = [planned.spec for planned in study_runs.planned]  # the plan knows these of runs that have not run
    runs["global_batch_size"] = pd.array([spec.global_batch_size for spec in specs], dtype="Int64")
    runs["samples_planned"] = pd.array([spec.samples_budgeted for spec in specs], dtype="Float64")
    fields = {*varying(runs), "exchange", "world_size", "batch_size", "learning_rate"}
    axes = ordered(fields - {"seed"})
    rows = [row for kind, those in _kinds(runs) for row in _rows(study_runs, those, kind, axes)]
    return typed(rows, ["kind", *axes, *_COLUMNS])


def _kinds(runs: pd.DataFrame) -> list[tuple[Kind, pd.DataFrame]]:
    """Return the kinds to report, each with the runs that it can be told of."""
    counted = runs[runs["samples_planned"].notna()]  # of a training for a given time only rates can be compared
    usable = [(kind, counted if kind.quantity == "train_s" else runs) for kind in KINDS]
    usable = [(kind, rows) for kind, rows in usable if len(rows)]
    return [(kind, rows) for kind, rows in usable if _has_pairs(rows, kind)] or usable[:1]


def _has_pairs(runs: pd.DataFrame, kind: Kind) -> bool:
    planned = set(map(kind.key, rows_of(one_rank(runs))))
    return any(kind.key(row) in planned for row in rows_of(runs[runs["world_size"] > 1]))


def _rows(study_runs: StudyRuns, runs: pd.DataFrame, kind: Kind, axes: list[str]) -> Iterator[Row]:
    baselines: dict[tuple[Any, ...], list[WithSpec]] = {}
    for row in rows_of(one_rank(runs)):
        baselines.setdefault(kind.key(row), []).append(with_spec(row))
    points = []
    for key, rows in split_rows(runs, axes):
        point = with_spec(rows[0])
        nearest_last = sorted(baselines.get(kind.key(rows[0]), []), key=partial(likeness, point))
        points.append((key, rows, {base["seed"]: base for _, base in nearest_last}))
    cells: dict[tuple[Any, ...], list[float]] = {}
    for row, base in (pair for _, rows, by_seed in points for pair in _pairs(rows, by_seed)):
        if row["run"] != base["run"]:
            cells.setdefault((kind_of(row), *key_of(row, agreeing(SAME_WORK))), []).append(kind.speedup(row, base))
    noise = Noise.of((cell[0], ratios) for cell, ratios in cells.items())
    for key, rows, by_seed in points:
        yield {"kind": kind.name} | key | _compared(study_runs, rows, by_seed, kind, noise.at(kind_of(rows[0])))


def _pairs(rows: list[Row], baselines: Mapping[int, Row]) -> list[tuple[Row, Row]]:
    """Return the complete runs that have a complete baseline of their seed, each with it."""
    found = [(row, baselines.get(row["seed"])) for row in rows]
    return [
        (row, base)
        for row, base in found
        if base is not None and _complete(row) and _complete(base) and not why_not(row, base)
    ]


def _compared(study_runs: StudyRuns, rows: list[Row], baselines: Mapping[int, Row], kind: Kind, noise: Arm) -> Row:
    first, ended = rows[0], [row for row in rows if _complete(row)]
    own = {
        "global_batch_size": first["global_batch_size"],
        "train_s": median(row["train_s"] for row in ended),
        "samples_per_s": median(row["samples_per_s"] for row in ended),
        **(doubt(ended) if ended else {}),
    }
    pairs = _pairs(rows, baselines)
    if not pairs:
        return own | {"pairs": 0, "reason": _why_none(rows, ended, baselines, kind)}
    ratios, world_size = [kind.speedup(row, base) for row, base in pairs], int(first["world_size"])
    itself = all(row["run"] == base["run"] for row, base in pairs)
    speedup = over_pairs(study_runs, ratios, [(base, row) for row, base in pairs], None if itself else noise)
    return own | {
        "pairs": len(pairs),
        "baseline_train_s": median(base["train_s"] for _, base in pairs),
        "baseline_samples_per_s": median(base["samples_per_s"] for _, base in pairs),
        **spread("speedup", "", speedup, ratios),
        "interval_from": speedup.basis,
        **spread("efficiency", "", speedup.each(lambda value: value / world_size)),
        "karp_flatt": karp_flatt(speedup.middle, world_size) if kind.name != "weak" else None,
        **doubt(run for pair in pairs for run in pair),
        "reason": f"only {len(pairs)} of {len(rows)} repeats" if len(pairs) < len(rows) else None,
    }


def _complete(row: Mapping[str, Any]) -> bool:
    if row["status"] != "ok" or not np.isfinite(row["final_loss"]):
        return False
    return row["samples_asked"] is None or bool(row["samples_seen"] == row["samples_asked"])


def karp_flatt(speedup: float, world_size: int) -> float | None:
    """Return the serial fraction that a speedup at the same work would come from; None for one rank: there is none.

    Karp and Flatt, Communications of the ACM 33(5), 1990.
    """
    if world_size == 1:
        return None
    return (1 / speedup - 1 / world_size) / (1 - 1 / world_size)


def _why_none(rows: list[Row], ended: list[Row], baselines: Mapping[int, Row], kind: Kind) -> str:
    if not ended:
        return f"not complete: {_counted(rows)}"
    if not baselines:
        batch = rows[0]["global_batch_size" if kind.name == "strong" else "batch_size"]
        return f"no baseline: exchange none at world_size 1 with batch_size {batch} is not planned"
    paired = [(row, baselines[row["seed"]]) for row in ended if row["seed"] in baselines]
    elsewhere = [reason for row, base in paired if _complete(base) and (reason := why_not(row, base))]
    if elsewhere:
        return f"no baseline: it ran {elsewhere[0]}"
    return f"no baseline: {_counted([base for _, base in paired]) or 'it is planned with other seeds only'}"


def _counted(rows: list[Row]) -> str:
    """Return e.g. `diverged` of one run, `2 diverged, 1 ok` of several."""
    counts = Counter(in_words(str(row["status"])) for row in rows)
    return ", ".join(f"{count} {words}" if len(rows) > 1 else words for words, count in counts.most_common())
