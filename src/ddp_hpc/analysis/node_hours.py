"""What node-hours buy: which count of ranks reaches a goal soonest within them, and how far each count comes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_hpc.analysis.columns import told
from ddp_hpc.analysis.tables._steps import UNKNOWN_EPOCH
from ddp_hpc.analysis.tables.cost import BUDGET, HOUR_S
from ddp_hpc.system.terminal import counted, duration, table_lines

Row = Mapping[str, Any]
ALIKE = 0.01  # relative: budgets of as many samples do the same
_OF_A_GOAL = ("time_s", "time_low_s", "time_high_s", "node_hours", "steps", "worthwhile_world_size", "reason")
_SHOWN = ("kind", "batch", "world_size", "batch_size")  # of the key of a row, in columns of their own


def bought(
    node_hours: float, predicted: Sequence[Row], costs: Sequence[Row], epochs: float | None = None
) -> dict[str, Any]:
    """Return what so many node-hours buy, from rows of the tables `prediction` and `cost` in which null is None.

    So many `epochs` are a goal beside those of the study.

    `answer` has sentences. `counts` has a row per line and count of which a step is known, measured or predicted: for
    how long they last on its nodes (`hours`), the steps, samples and epochs of that time, and under `goals` for each
    goal its time and node-hours, whether these are `within`, or the reason why nothing is known.
    """
    rows = list(_counts(node_hours, predicted, costs, epochs))
    return {"node_hours": node_hours, "answer": list(_answer(rows, node_hours)), "counts": rows}


def _counts(node_hours: float, predicted: Sequence[Row], costs: Sequence[Row], epochs: float | None) -> Iterator[Row]:
    seen = []
    for row in predicted:
        step_s, key = row["measured_s"] or row["step_s"], _key(row)
        point = {name: key[name] for name in key if name not in ("kind", "batch")}
        if not step_s or not row["nodes"] or point in seen:  # a point of a weak and of a strong line stands once
            continue
        seen.append(point)
        seconds = HOUR_S * node_hours / row["nodes"]
        samples = row["world_size"] * row["batch_size"] * seconds / step_s
        lasts = {"hours": seconds / HOUR_S, "steps": seconds / step_s, "samples": samples}
        lasts |= {"epochs": seconds / row["epoch_s"] if row["epoch_s"] else None}
        alike = [one for one in costs if key.items() <= one.items()]
        goals = {one["goal"]: {name: one[name] for name in _OF_A_GOAL} for one in alike}
        if epochs is not None:
            goals[f"{epochs:g} epochs"] = _of_epochs(row, epochs)
        for goal in goals.values():
            goal["within"] = None if goal["node_hours"] is None else goal["node_hours"] <= node_hours
        yield key | {"nodes": row["nodes"], "step_s": step_s, **lasts, "goals": goals}


def _of_epochs(row: Row, epochs: float) -> dict[str, Any]:
    """Return so many epochs as a goal."""
    if not row["epoch_s"]:
        return dict.fromkeys(_OF_A_GOAL) | {"reason": UNKNOWN_EPOCH if row["step_s"] else row["reason"]}
    ends = {"time_s": "epoch_s", "time_low_s": "epoch_low_s", "time_high_s": "epoch_high_s"}
    times = {name: None if row[one] is None else epochs * row[one] for name, one in ends.items()}
    steps = round(times["time_s"] / row["step_s"])
    return dict.fromkeys(_OF_A_GOAL) | times | {"steps": steps, "node_hours": row["nodes"] * times["time_s"] / HOUR_S}


def _key(row: Row) -> dict[str, Any]:
    """Return of what a row of a prediction is: the columns before the first that follows from it."""
    return {name: row[name] for name in list(row)[: list(row).index("nodes")]}


def _answer(rows: Sequence[Row], node_hours: float) -> Iterator[str]:
    """Yield what is known first: the best count for each goal, then what all node-hours come to."""
    if not rows:
        yield "No count can be named: of none a step is known."
        return
    named = dict.fromkeys(goal for row in rows for goal in reversed(row["goals"]))
    goals = sorted(named, key=lambda goal: goal == BUDGET)  # epochs that were asked for first, the budget last
    known = {goal: [row for row in rows if row["goals"].get(goal, {}).get("time_s")] for goal in goals}
    for goal in goals:
        if known[goal] and (goal != BUDGET or _same_work(known[goal])):
            yield _soonest(goal, known[goal], node_hours)
    yield _used_up(rows, node_hours)
    for goal in goals:
        if without := [row for row in rows if row not in known[goal]]:
            reasons = {row["goals"].get(goal, {}).get("reason") for row in without} - {None}
            counts = ", ".join(map(str, sorted({row["world_size"] for row in without})))
            yield f"To {goal} nothing is known of {counts} ranks: {'; '.join(sorted(reasons)) or 'it is null'}."


def _same_work(rows: Sequence[Row]) -> bool:
    """Whether the budget of the study is as many samples for all."""
    samples = [row["goals"][BUDGET]["steps"] * row["world_size"] * row["batch_size"] for row in rows]
    return bool(max(samples) <= (1 + ALIKE) * min(samples))


def _soonest(goal: str, rows: Sequence[Row], node_hours: float) -> str:
    to = "the end of the budget of the study" if goal == BUDGET else goal
    within = [row for row in rows if row["goals"][goal]["within"]]
    if not within:
        least = min(rows, key=lambda row: float(row["goals"][goal]["node_hours"]))
        takes = _figures(least["goals"][goal]["node_hours"])
        fewest = f"{_named(least, rows)} takes the fewest, {takes}"
        return f"No count comes to {to} in {_figures(node_hours)} node-hours: {fewest}."
    best = min(within, key=lambda row: float(row["goals"][goal]["time_s"]))
    found = best["goals"][goal]
    low, high = found["time_low_s"], found["time_high_s"]
    between = "" if low is None else f" (95 %: {lasting(low)} to {lasting(high)})"
    cost = f"{_figures(found['node_hours'])} of {_figures(node_hours)} node-hours"
    text = f"Ask for {_named(best, rows)}: {to} in {lasting(found['time_s'])}{between}, for {cost}."
    most = 0.0 if high is None else best["nodes"] * high / HOUR_S
    return f"{text} At the upper end it takes {_figures(most)}, which is more." if most > node_hours else text


def _used_up(rows: Sequence[Row], node_hours: float) -> str:
    """Return what the node-hours come to if all are used: where they come farthest, and where one more rank pays."""
    most = max(rows, key=lambda row: float(row["samples"]))
    text = f"Used up, {_figures(node_hours)} node-hours come farthest with {_named(most, rows)}: {_distance(most)}"
    last = [row for row in rows if _worthwhile(row) == row["world_size"]]
    if not last:
        return f"{text}."
    pays = max(last, key=lambda row: float(row["samples"]))
    where = "there" if pays is most else f"at {_named(pays, rows)}, with {_distance(pays)}"
    return f"{text}; one more rank stops paying {where}."


def _worthwhile(row: Row) -> int | None:
    found: int | None = row["goals"].get(BUDGET, {}).get("worthwhile_world_size")
    return found


def _distance(row: Row) -> str:
    epochs = "" if row["epochs"] is None else f", {_figures(row['epochs'])} epochs,"
    return f"{_figures(row['samples'])} samples{epochs} in {lasting(HOUR_S * row['hours'])}"


def _named(row: Row, rows: Sequence[Row]) -> str:
    """Return e.g. `8 ranks on 2 nodes, a batch of 32 per rank`, with whatever else differs between the rows."""
    words = [f"{counted(row['world_size'], 'rank')} on {counted(row['nodes'], 'node')}"]
    if len({(one["kind"], one["batch"]) for one in rows}) > 1:
        words.append(f"a batch of {row['batch_size']} per rank")
    return ", ".join([*words, *(f"{name} {value}" for name, value in _else(row, rows).items())])


def _else(row: Row, rows: Sequence[Row]) -> dict[str, str]:
    """Return what else tells a row apart from others, by its name."""
    names = [name for name in _key(row) if name not in _SHOWN and not name.endswith("_options")]
    return {name.replace("_", " "): told(row, name) for name in names if len({told(one, name) for one in rows}) > 1}


def lasting(seconds: float) -> str:
    """Return e.g. `12 ms`, `3.2 s`, `2 min 45 s`, `3 h 10 min`, `1,200 h`."""
    if seconds >= 100 * HOUR_S:
        return f"{seconds / HOUR_S:,.0f} h"
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _figures(value: float) -> str:
    """Return a number for reading, e.g. `0.0652`, `1,830`, `2.1e+10`."""
    return f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the answer, then how far each count comes."""
    yield from found["answer"]
    if rows := found["counts"]:
        goals = list(dict.fromkeys(goal for row in rows for goal in row["goals"]))
        yield ""
        yield from (f"  {line}" for line in table_lines([_cells(row, rows, goals) for row in rows]))


def _cells(row: Row, rows: Sequence[Row], goals: Sequence[str]) -> dict[str, Any]:
    cells = {"ranks": row["world_size"], "batch": row["batch_size"], "nodes": row["nodes"], **_else(row, rows)}
    cells |= {"they last": lasting(HOUR_S * row["hours"])}
    cells |= {name: _figures(row[name]) for name in ("steps", "samples")}
    cells["epochs"] = None if row["epochs"] is None else _figures(row["epochs"])
    for goal in goals:
        there = row["goals"].get(goal, {})
        if there.get("time_s"):
            cells[f"to {goal}"] = f"{lasting(there['time_s'])}, {_figures(there['node_hours'])} node-hours"
        else:
            cells[f"to {goal}"] = None
    return cells
