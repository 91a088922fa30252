"""What a training costs at each world size, measured and predicted: time, rank- and node-hours, energy, money.

To the end of the budget, to the loss threshold and to the test metric that decides. The steps to the last two are
counted in the runs and, as the same global batch takes the same steps, hold at all world sizes of a line of strong
scaling; how many another batch needs follows from the gradient noise scale, where gradients were sampled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import key_of, paid
from ddp_hpc.analysis.intervals import Array, Interval, of_ratio, over_runs
from ddp_hpc.analysis.prediction.measured import Place
from ddp_hpc.analysis.prediction.trust import Doubt
from ddp_hpc.analysis.tables._approaches import NOT_SAMPLED, Approach, approaches
from ddp_hpc.analysis.tables._frame import columns, known, median, typed
from ddp_hpc.analysis.tables._goals import Reached, goals_of
from ddp_hpc.analysis.tables._groups import Row, spread
from ddp_hpc.analysis.tables._scaling_lines import Elsewhere, Line, Price, axes_of, scaling_lines
from ddp_hpc.analysis.tables._steps import provenance
from ddp_hpc.analysis.tables.prediction import asked_world_sizes
from ddp_hpc.analysis.tables.winners import ENOUGH_SAMPLES
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = (
    "Cost of a training to the end of its budget, to the loss threshold and to a test metric: measured where there are "
    "runs, else predicted; a rank-hour is a GPU-hour where each rank has a GPU."
)
LEFT_OUT = columns("worthwhile_low worthwhile_high worth_it steps_low steps_high")
HOUR_S = 3600.0
BUDGET = "budget"
BY_THE_CLOCK = "its budget is a time"
OTHER_BATCH = "how many steps another global batch needs is not known"
NEVER_THERE = "no learning rate comes there in all repeats"

_COLUMNS = columns(
    "kind batch world_size batch_size nodes runs goal from steps steps_low steps_high time_s time_low_s time_high_s",
    "rank_hours node_hours energy_j money currency on_front worthwhile_world_size worthwhile_low worthwhile_high",
    "worth_it steps_held_out_batch steps_held_out_error_percent reason",
)
_OF_A_LINE = ("exchange", "exchange_options")


@dataclass(frozen=True)
class Distance:
    """How far it is to a goal: the steps, and the seconds of the runs that were measured."""

    steps: float
    seconds: tuple[float, ...] = ()
    predicted: Interval | None = None  # the steps, where they are predicted, too
    held_out: tuple[int, float] | None = None  # a global batch, and by how many percent its predicted steps are off


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per line, world size and goal: those measured, and 2, 4 and 8 times the largest of them.

    `from` says whether it was measured or predicted. To a loss or metric the learning rate counts that is there in
    the fewest steps. Steps with a global batch that was not measured are predicted from the gradient noise scale,
    of the loss averaged over enough samples, with `steps_low` to `steps_high`; `steps_held_out_error_percent` is
    how far that is off at `steps_held_out_batch`, left out of the fit. `node_hours` count whole nodes. `energy_j`
    is of what was metered, GPUs and processors; where it is predicted, a rank takes the power that it took. `money`
    is `node_hours` at the price that the machine file gave when the runs were requested. `on_front`: nothing that
    does the same is both sooner there and cheaper. `worthwhile_world_size` is the last one up to which one more
    rank adds at least `rules: worthwhile_efficiency` of the rate of the first; it is looked for among 1, 2, 4, ...
    ranks; null where it lies beyond what can be predicted.
    """
    return costs(study_runs)


def costs(
    study_runs: StudyRuns, world_sizes: Sequence[int] | None = None, elsewhere: Elsewhere | None = None
) -> pd.DataFrame:
    """Return the table with other world sizes beside the measured ones, and at another price."""
    found, price, goals = scaling_lines(study_runs, elsewhere), _price(study_runs), goals_of(study_runs)
    sampled = study_runs.runs["noise_scale_every_steps"].notna().any()
    ways = {
        goal: approaches(study_runs, reached) if sampled else []
        for goal, reached in goals_of(study_runs, ENOUGH_SAMPLES).items()
    }
    axes = axes_of(study_runs, found)
    rows = [
        row
        for line in found
        for row in _rows(
            study_runs, line, world_sizes, goals=goals, approached=ways, price=line.elsewhere.price or price
        )
    ]
    _mark_front(rows, [name for name in axes if name not in (*_OF_A_LINE, "world_size", "batch_size")])
    return typed(rows, [*axes, *(name for name in _COLUMNS if name not in axes)])


def _rows(
    study_runs: StudyRuns,
    line: Line,
    world_sizes: Sequence[int] | None,
    *,
    goals: Mapping[str, Reached],
    approached: Mapping[str, Sequence[Approach]],
    price: Price | None,
) -> Iterator[Row]:
    worth = worthwhile(line, study_runs.study.rules.worthwhile_efficiency)
    ways = {goal: _ways(line, reached) for goal, reached in goals.items()}
    for n in asked_world_sizes(line, world_sizes):
        batch, rows = line.batch_at(n), line.measured.get(n, [])
        about = dict(line.key) | {"kind": line.kind, "batch": line.batch, "world_size": n, "runs": len(rows)}
        about |= {"batch_size": int(batch) if batch == int(batch) else None}
        place, why = line.place(n), None if rows else line.doubt(n)
        if why or isinstance(place, Doubt) or not (rows or line.model):
            yield about | {"goal": BUDGET, "reason": why.reason if why else None}
            continue
        about |= {"nodes": place.nodes, "from": "measured" if rows else "predicted"} | worth
        work, budget = _budget(study_runs, line, n, rows)
        further = ((goal, _way(found, line, n, approached[goal])) for goal, found in ways.items())
        for goal, way in ((BUDGET, budget), *further):
            about |= {"goal": goal, "work": work if goal == BUDGET else 0}
            if isinstance(way, str):
                yield about | {"reason": way}
                continue
            time = over_runs(way.seconds) if way.seconds else _predicted(line, place, way)
            yield about | _steps(way) | _spent(time, place, rows or line.good, price)


def _predicted(line: Line, place: Place, way: Distance) -> Interval:
    """Return the time of predicted steps, whose number may be predicted, too: relative errors add up in squares."""
    assert line.model
    step, steps = line.model.predict(place).interval(), way.predicted
    if steps is None:
        return step.each(lambda seconds: seconds * way.steps)
    return of_ratio(step, Interval(1 / steps.middle, 1 / steps.high, 1 / steps.low, steps.basis))


def _steps(way: Distance) -> Row:
    found: Row = {"steps": round(way.steps)}
    if way.predicted:
        found |= {"steps_low": way.predicted.low, "steps_high": way.predicted.high}
    if way.held_out:
        found |= dict(zip(("steps_held_out_batch", "steps_held_out_error_percent"), way.held_out, strict=True))
    return found


def _spent(time: Interval, place: Place, metered: Sequence[Row], price: Price | None) -> Row:
    hours, power = time.middle / HOUR_S, known(map(_power, metered))
    return {
        **spread("time", "_s", time),
        "rank_hours": place.world_size * hours,
        "node_hours": place.nodes * hours,
        "energy_j": place.world_size * float(np.median(power)) * time.middle if power else nan,
        "money": place.nodes * hours * price.per_node_hour if price else nan,
        "currency": price.currency if price else None,
    }


def _power(row: Mapping[str, Any]) -> float:
    """Return the mean power of a run over its ranks, in W; nan where nothing was metered."""
    energy = known([row.get("energy_j"), row.get("cpu_energy_j")])
    return sum(energy) / (row["train_s"] * row["world_size"]) if energy else nan


def _price(study_runs: StudyRuns) -> Price | None:
    """Return the price of the last run that was requested at one."""
    ended = study_runs.runs["run"][study_runs.runs["status"] == "ok"]
    asked = [provenance(study_runs, run).get("request") or {} for run in ended]
    prices = [(one["price_per_node_hour"], one.get("currency")) for one in asked if one.get("price_per_node_hour")]
    return Price(*prices[-1]) if prices else None


def _budget(study_runs: StudyRuns, line: Line, n: int, rows: Sequence[Row]) -> tuple[float, Distance | str]:
    """Return how many samples the budget is, and how far its end; or that it is a time."""
    spec = next(one.spec for one in study_runs.planned if one.run == line.planned[-1]["run"])
    samples = median(row["samples_asked"] for row in line.planned)
    times = tuple(float(row["train_s"]) for row in rows)
    if spec.budget.steps:
        return spec.budget.steps * n * line.batch_at(n), Distance(float(spec.budget.steps), times)
    return (samples, Distance(ceil(samples / (n * line.batch_at(n))), times)) if samples else (nan, BY_THE_CLOCK)


def _ways(line: Line, reached: Reached) -> dict[int, Distance]:
    """Return by world size how far it was to a goal, with the learning rate that is there in the fewest steps."""
    found = {}
    for n, rows in line.measured.items():
        by_rate: dict[float, list[tuple[float, float]]] = {}
        for row in rows:
            by_rate.setdefault(row["learning_rate"], []).append(reached(row))
        ways = [
            Distance(float(np.median(steps)), seconds)
            for steps, seconds in (zip(*one, strict=True) for one in by_rate.values())
        ]
        if there := [way for way in ways if not any(map(isnan, way.seconds))]:
            found[n] = min(there, key=lambda way: way.steps)
    return found


def _way(ways: Mapping[int, Distance], line: Line, n: int, known: Sequence[Approach]) -> Distance | str:
    if n in ways:
        return ways[n]
    if n in line.measured:
        return NEVER_THERE
    if line.kind == "strong" and ways:  # the same global batches, so the same losses
        return Distance(float(np.median([way.steps for way in ways.values()])))
    batch = n * line.batch_at(n)
    approach = next((one for one in known if one.holds(line.planned[-1])), None)
    if approach is None and (ways or not line.measured):
        return f"{OTHER_BATCH}: {NOT_SAMPLED}"
    if approach is None or not approach.found:
        return NEVER_THERE
    if why := approach.doubt(batch):
        return f"{OTHER_BATCH}: {why}"
    steps = approach.model.interval(batch)
    return Distance(steps.middle, predicted=steps, held_out=approach.model.held_out)


def _mark_front(rows: Sequence[Row], axes: Sequence[str]) -> None:
    """Mark in each row whether nothing else that does the same is both sooner there and cheaper."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("time_s", nan) > 0:
            alike.setdefault((*key_of(row, axes), row["goal"], row["work"]), []).append(row)
    for some in alike.values():
        by, last = paid(pd.DataFrame(some)), (0.0, np.inf)
        for row in sorted(some, key=lambda row: (row["time_s"], row[by])):
            here = (row["time_s"], row[by])
            row["on_front"] = (here[1] < last[1] or here == last) if len(some) > 1 else None
            last = here if here[1] < last[1] else last


def _rates(samples: Array, step_s: Array) -> Array:
    """Return samples per second; nan where the model has nothing that takes time."""
    rates: Array = np.full(step_s.shape, np.nan)
    np.divide(samples, step_s, out=rates, where=step_s > 0)
    return rates


def worthwhile(line: Line, least: float) -> Row:
    """Return the last world size up to which one more rank adds this share of what one rank does, and its interval."""
    largest = 8 * max(line.counts, default=1)
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
    if last[0] == sizes[-1]:
        all_pay = f"it adds at least {least:g} of the rate of the first"
        return {"worth_it": f"up to {sizes[-1]} ranks, as far as can be predicted, one more pays: {all_pay}"}
    low, high = np.quantile(lasts, [0.025, 0.975], method="nearest")
    words = f"{last[0]:g} rank{'s' if last[0] > 1 else ''}{f' (95 %: {low:g} to {high:g})' if low < high else ''}"
    at = sizes.index(last[0])
    adds = f"from {last[0]:g} to {sizes[at + 1]} one more adds {gains[0][0][at]:.2g} of the rate of the first"
    return {
        "worthwhile_world_size": last[0],
        "worthwhile_low": low,
        "worthwhile_high": high,
        "worth_it": f"{words} is where one more stops paying: {adds}, less than {least:g}",
    }


def _last_worth(sizes: "np.ndarray[Any, Any]", worth: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the last world size before the first step that is not worth it, of each row."""
    return np.asarray(sizes[np.cumprod(worth, axis=1).sum(axis=1)])
