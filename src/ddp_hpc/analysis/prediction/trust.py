"""How far a prediction can be trusted: what the runs cannot tell, what to run for it, and how far the model was off."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil
from statistics import fmean

from ddp_hpc.analysis.prediction.measured import Place, Run
from ddp_hpc.analysis.prediction.step_model import BETWEEN, Model

FARTHEST = 8  # times the largest measured world size; as far beyond the measured batches
MOST_RUN = 3  # points that are proposed at once
CANDIDATES = 7  # world sizes from which they are chosen

Fit = Callable[[Sequence[Run]], Model]


@dataclass(frozen=True)
class Doubt:
    """Why nothing is predicted, and the points that would change that, the cheapest."""

    reason: str
    to_run: tuple[Place, ...] = ()


@dataclass(frozen=True)
class HeldOut:
    """How far the model is off where it was measured: at the largest world size, from the others."""

    world_size: int | None = None
    error_percent: float | None = None
    reason: str | None = None


def doubt(model: Model, place: Place) -> Doubt | None:
    """Return why a model cannot say how long a step takes at a place; None if it can."""
    largest = max(run.place.world_size for run in model.runs)
    if place.nodes > 1 and max(run.place.nodes for run in model.runs) == 1 and not _given(model, BETWEEN):
        why = "it needs several nodes, and no run crossed a node boundary"
        reason = f"{why}; give their link by --latency and --bandwidth, or run some"
        return Doubt(reason, _cheapest(model, place))
    if not model.tells_exchange(place):
        counts = sorted({run.place.world_size for run in model.runs if run.place.world_size > 1})
        measured = f"only with {' and '.join(map(str, counts))} ranks" if counts else "on one rank only"
        reason = f"the exchange was measured {measured}: too few world sizes to tell latency from bandwidth"
        return Doubt(reason, _cheapest(model, place))
    if not model.tells_work(place):
        what = f"a batch of {place.batch_size:g} and {place.ranks_per_node:g} ranks per node"
        reason = f"how long the work takes with {what} follows from no measured ones"
        return Doubt(reason, _cheapest(model, place))
    if place.world_size > FARTHEST * largest:
        reason = f"more than {FARTHEST} times the largest measured world size, {largest}"
        return Doubt(reason, (_like(place, ceil(place.world_size / FARTHEST)),))
    if too_far := _other_batch(model, place):
        return too_far
    if not any(run.place.world_size > 1 for run in model.runs):
        return Doubt("no run of several ranks: how ranks scatter is not known", _cheapest(model, place))
    return _never_seen(model, place)


def _other_batch(model: Model, place: Place) -> Doubt | None:
    """Return that a batch lies too far beyond the measured ones: the work is not quite linear in it."""
    batches = [run.place.batch_size for run in model.runs]
    least, largest = min(batches), max(batches)
    if least / FARTHEST <= place.batch_size <= FARTHEST * largest:
        return None
    return Doubt(
        f"a batch of {place.batch_size:g} per rank is more than {FARTHEST} times beyond the measured ones, "
        f"{least:g} to {largest:g}"
    )


def _never_seen(model: Model, place: Place) -> Doubt | None:
    """Return that an exchange outgrows what it was ever hidden beside, if all measured ones were hidden."""
    if not model.asked.overlaps:
        return None
    if not model.exchange.overlaps:
        return Doubt("what of that exchange overlaps the backward pass was not measured")
    step = model.whole_exchange(place)
    if step > model.longest_hidden and model.always_hidden:
        reason = "the exchange was hidden whole at all measured world sizes; here it is longer than it ever was"
        return Doubt(reason, (_like(place, max(run.place.world_size for run in model.runs) * 2),))
    return None


def _given(model: Model, where: int) -> bool:
    return all(value == value for value in model.exchange.links[where : where + 2])


def _like(place: Place, world_size: int) -> Place:
    """Return a place with as many ranks on a node and, in all, as large a batch per rank."""
    nodes = 1 if place.nodes == 1 else max(2, ceil(world_size / place.ranks_per_node))
    return Place(world_size=world_size, batch_size=place.batch_size, nodes=nodes)


def _cheapest(model: Model, place: Place) -> tuple[Place, ...]:
    """Return the points with the fewest ranks in all after which the model could predict."""
    candidates = [_like(place, size) for size in range(2, min(2 + CANDIDATES, place.world_size))]
    if place.nodes > 1:
        full = max(1, round(place.ranks_per_node))
        per_node = full if 3 * full < place.world_size else 1  # two points tell latency from bandwidth
        counts = [nodes for nodes in range(2, 2 + CANDIDATES) if nodes * per_node < place.world_size]
        candidates = [replace(place, world_size=nodes * per_node, nodes=nodes) for nodes in counts]
    for count in range(1, MOST_RUN + 1):
        sets = sorted(combinations(candidates, count), key=lambda chosen: sum(one.world_size for one in chosen))
        for chosen in sets:
            if model.tells_exchange.after(chosen)(place) and model.tells_work.after(chosen)(place):
                return chosen
    return ()


def held_out(fit: Fit, runs: Sequence[Run]) -> HeldOut:
    """Leave the largest measured world size out, predict it from the others, and return the error."""
    counts = sorted({run.place.world_size for run in runs})
    if len(counts) < 2:
        return HeldOut(reason="not checked: one world size only")
    largest = counts[-1]
    left, out = ([run for run in runs if (run.place.world_size == largest) is yes] for yes in (False, True))
    model, errors = fit(left), []
    for place in {run.place for run in out}:
        if why := doubt(model, place):
            return HeldOut(reason=f"not checked at {largest} ranks: without them, {why.reason}")
        measured = fmean(run.step_s for run in out if run.place == place)
        errors.append(float(model.predict(place).middle.step_s) / measured - 1)
    return HeldOut(largest, 100 * max(errors, key=abs))
