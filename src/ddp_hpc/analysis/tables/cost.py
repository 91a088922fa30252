"""What a training costs at each world size, measured and predicted: time, rank- and node-hours, energy.

To the end of the budget, and to the loss threshold: its steps are counted in the runs and, as the same global batch
takes the same steps, hold at all world sizes of a line of strong scaling; with another batch they are not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, isnan, nan
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.intervals import Array, Interval, over_runs
from ddp_hpc.analysis.prediction.measured import Place
from ddp_hpc.analysis.prediction.trust import Doubt
from ddp_hpc.analysis.tables._frame import columns, known, median, typed
from ddp_hpc.analysis.tables._groups import Row, spread
from ddp_hpc.analysis.tables._scaling_lines import Elsewhere, Line, axes_of, scaling_lines
from ddp_hpc.analysis.tables._steps import whole_curve
from ddp_hpc.analysis.tables.prediction import asked_world_sizes
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = (
    "Cost of a training to the end of its budget and to the loss threshold: measured where there are runs, else "
    "predicted; a rank-hour is a GPU-hour where each rank has a GPU."
)
LEFT_OUT = columns("worthwhile_low worthwhile_high worth_it")
HOUR_S = 3600.0
BY_THE_CLOCK = "its budget is a time"

_COLUMNS = columns(
    "kind batch world_size batch_size nodes runs from train_s train_low_s train_high_s rank_hours node_hours energy_j",
    "money threshold_steps to_threshold_s to_threshold_rank_hours to_threshold_node_hours worthwhile_world_size",
    "worthwhile_low worthwhile_high worth_it reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per line and world size: those measured, and 2, 4 and 8 times the largest of them.

    `train_s` is to the end of the budget: `from` says whether it was measured or predicted. `node_hours` count whole
    nodes. `energy_j` is of what was metered, GPUs and processors; where it is predicted, a rank takes the power that it
    took. `threshold_steps` is of the learning rate that has the loss threshold first. `worthwhile_world_size` is the
    last one up to which one more rank adds at least `rules: worthwhile_efficiency` of the rate of the first; it is
    looked for among 1, 2, 4, ... ranks; null where it lies beyond what can be predicted.
    """
    return costs(study_runs)


def costs(
    study_runs: StudyRuns, world_sizes: Sequence[int] | None = None, elsewhere: Elsewhere | None = None
) -> pd.DataFrame:
    """Return the table with other world sizes beside the measured ones, and in money if there is a price."""
    found = scaling_lines(study_runs, elsewhere)
    axes = axes_of(study_runs, found)
    rows = [row for line in found for row in _rows(study_runs, line, world_sizes)]
    price = elsewhere.price_per_node_hour if elsewhere else None
    if price:
        rows = [row | {"money": price * row["node_hours"]} if "node_hours" in row else row for row in rows]
    names = [name for name in _COLUMNS if price or name != "money"]
    return typed(rows, [*axes, *(name for name in names if name not in axes)])


def _rows(study_runs: StudyRuns, line: Line, world_sizes: Sequence[int] | None) -> Iterator[Row]:
    worth, steps = worthwhile(line, study_runs.study.rules.worthwhile_efficiency), _threshold_steps(study_runs, line)
    for n in asked_world_sizes(line, world_sizes):
        batch = line.batch_at(n)
        about = dict(line.key) | {"kind": line.kind, "batch": line.batch, "world_size": n}
        about |= {"batch_size": int(batch) if batch == int(batch) else None, "runs": len(line.measured.get(n, []))}
        place, rows = line.place(n), line.measured.get(n, [])
        why = None if rows else line.doubt(n)
        if why or isinstance(place, Doubt) or not (rows or line.model):
            yield about | {"reason": why.reason if why else None}
            continue
        step = over_runs([row["train_s"] / row["steps"] for row in rows])
        if not rows and line.model:
            step = line.model.predict(place).interval()
        count = _budget_steps(study_runs, line, n)
        about |= {"nodes": place.nodes, "from": "measured" if rows else "predicted"}
        about |= _to_threshold(steps, step.middle, n, place.nodes, line.kind) | worth
        yield about | (_spent(step, count, place, rows or line.good) if count else {"reason": BY_THE_CLOCK})


def _spent(step: Interval, count: float, place: Place, metered: Sequence[Row]) -> Row:
    train, power = step.each(lambda seconds: seconds * count), known(map(_power, metered))
    return {
        **spread("train", "_s", train),
        "rank_hours": place.world_size * train.middle / HOUR_S,
        "node_hours": place.nodes * train.middle / HOUR_S,
        "energy_j": place.world_size * float(np.median(power)) * train.middle if power else nan,
    }


def _power(row: Mapping[str, Any]) -> float:
    """Return the mean power of a run over its ranks, in W; nan where nothing was metered."""
    energy = known([row.get("energy_j"), row.get("cpu_energy_j")])
    return sum(energy) / (row["train_s"] * row["world_size"]) if energy else nan


def _budget_steps(study_runs: StudyRuns, line: Line, n: int) -> float | None:
    """Return how many steps the budget is at a world size; None of a training for a given time."""
    first = line.planned[-1]
    spec = next(one.spec for one in study_runs.planned if one.run == first["run"])
    if spec.budget.steps:
        return float(spec.budget.steps)
    samples = median(row["samples_asked"] for row in line.planned)
    return ceil(samples / (n * line.batch_at(n))) if samples else None


def _threshold_steps(study_runs: StudyRuns, line: Line) -> dict[int, float]:
    """Return by world size after how many steps the loss is at the threshold, with the learning rate that is first."""
    rules, found = study_runs.study.rules, {}
    if rules.loss_threshold is None:
        return {}
    for n, rows in line.measured.items():
        by_rate: dict[float, list[float]] = {}
        for row in rows:
            loss = whole_curve(study_runs, row["run"]).loss
            means = np.convolve(loss, np.ones(rules.loss_window) / rules.loss_window, "valid")
            there = np.flatnonzero(means <= rules.loss_threshold)
            steps = float(there[0] + rules.loss_window) if len(there) else nan
            by_rate.setdefault(row["learning_rate"], []).append(steps)
        best = min((float(np.median(steps)) for steps in by_rate.values() if not any(map(isnan, steps))), default=nan)
        if not isnan(best):
            found[n] = best
    return found


def _to_threshold(steps: Mapping[int, float], step_s: float, n: int, nodes: int, kind: str) -> Row:
    count = steps.get(n)
    if count is None and kind == "strong" and steps:  # the same global batches, so the same losses
        count = float(np.median(list(steps.values())))
    if count is None:
        return {}
    hours = count * step_s / HOUR_S
    return {
        "threshold_steps": count,
        "to_threshold_s": count * step_s,
        "to_threshold_rank_hours": n * hours,
        "to_threshold_node_hours": nodes * hours,
    }


def _rates(samples: Array, step_s: Array) -> Array:
    """Return samples per second; nan where the model has nothing that takes time."""
    rates: Array = np.full(step_s.shape, np.nan)
    np.divide(samples, step_s, out=rates, where=step_s > 0)
    return rates


def worthwhile(line: Line, least: float) -> Row:
    """Return the last world size up to which one more rank adds this share of what one rank does, and its interval."""
    largest = 8 * max(line.measured, default=1)
    sizes = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    sizes = [n for n in sizes if line.doubt(n) is None]
    if len(sizes) < 2 or sizes[0] != 1 or line.model is None:
        return {}
    places = [place for n in sizes if isinstance(place := line.place(n), Place)]
    found = [line.model.predict(place) for place in places]
    samples = np.array([place.world_size * place.batch_size for place in places])
    middle = _rates(samples, np.array([one.middle.step_s for one in found]))
    drawn = _rates(samples, np.array([one.replicates.step_s for one in found]).T)
    gains = [np.diff(rates, axis=-1) / np.diff(sizes) / rates[..., :1] for rates in (middle[None], drawn)]
    last, lasts = (_last_worth(np.array(sizes), gain >= least) for gain in gains)
    low, high = np.quantile(lasts, [0.025, 0.975], method="nearest")
    words = f"{last[0]:g} rank{'s' if last[0] > 1 else ''}"
    whole = f"one more rank adds at least {least:g} of the rate of the first"
    if last[0] == sizes[-1]:
        return {"worth_it": f"up to {sizes[-1]} ranks, as far as can be predicted, {whole}"}
    between = f" ({low:g} to {high:g})" if low < high else ""
    return {
        "worthwhile_world_size": last[0],
        "worthwhile_low": low,
        "worthwhile_high": high,
        "worth_it": f"up to {words}{between} {whole}; beyond, less",
    }


def _last_worth(sizes: "np.ndarray[Any, Any]", worth: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the last world size before the first step that is not worth it, of each row."""
    return np.asarray(sizes[np.cumprod(worth, axis=1).sum(axis=1)])
