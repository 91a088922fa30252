"""How fast each exchange is: the time of a step, side by side and against a reference, for each model and world size.

The time of a step is the training time over the steps, of a global batch each: that is there for asynchronous exchanges
too, whose ranks may take different numbers of steps, and nothing that a slow step costs is left out. Runs of one round,
which have the same seed and lie near one another in time, are compared with one another; the median over the rounds
counts, with the least and the largest beside it, and its 95 % interval, low to high: over the rounds
(`intervals.over_runs`), or of one round within its runs.
"""

from collections.abc import Sequence

import pandas as pd

from ddp_hpc.analysis.columns import ordered, varying, with_standing
from ddp_hpc.analysis.intervals import Interval, of_mean
from ddp_hpc.analysis.tables._frame import columns, largest
from ddp_hpc.analysis.tables._groups import Counterparts, Group, Row, by_group, one_rank, over_pairs, spread, statuses
from ddp_hpc.config.comparability import EFFICIENCY_BASELINE, EXCHANGE, FASTER_EXCHANGE, SAME_WORK
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Exchanges: training time per step, and against the reference in the same round; medians over the rounds."
COMPARES_EXCHANGES = True
LEFT_OUT = columns(
    "pairs slow_steps_share others_slow_steps_share step_least_us step_largest_us times_as_fast_least",
    "times_as_fast_largest weak_efficiency_low weak_efficiency_high",
)

_COLUMNS = columns(
    "runs step_us step_least_us step_largest_us step_low_us step_high_us samples_per_s reference pairs",
    "times_as_fast times_as_fast_least times_as_fast_largest times_as_fast_low times_as_fast_high interval_from",
    "weak_efficiency weak_efficiency_low weak_efficiency_high slow_steps_share others_slow_steps_share oversubscribed",
    "reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per exchange, with its options, of each model, batch size and world size that the study plans.

    `times_as_fast` is the reference's step over this one's, by pairs of runs that differ in the exchange alone (and in
    the budget); `weak_efficiency` that of one rank with exchange none and the same batch per rank. Both are null where
    there is no such run, the first with its `reason`. Of a reference with several options that with its defaults
    counts, else the first. `slow_steps_share` is the largest of the row's runs (`columns.slow_steps_share`),
    `others_slow_steps_share` of those that they are compared with.
    """
    runs = with_standing(study_runs.runs)
    batches = runs["samples_seen"] / (runs["world_size"] * runs["batch_size"])
    runs["mean_step_us"] = 1e6 * (runs["train_s"] / batches).astype("float64")
    name = study_runs.study.rules.reference_exchange
    references = Counterparts(_reference(runs, name), FASTER_EXCHANGE)
    alone = Counterparts(one_rank(runs), EFFICIENCY_BASELINE)
    axes = ordered({*varying(runs), "model", "batch_size", "world_size", *EXCHANGE} - SAME_WORK)
    frame = by_group(study_runs, runs, axes, _COLUMNS, lambda group: _measured(group, name, references, alone))
    frame["pairs"] = frame["pairs"].fillna(0)
    return frame


def _reference(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    named = runs[runs["exchange"] == name]
    options = list(named["exchange_options"].unique())
    return named[named["exchange_options"] == ("{}" if "{}" in options else next(iter(options), "{}"))]


def _measured(group: Group, name: str, references: Counterparts, alone: Counterparts) -> Row:
    steps = [row["mean_step_us"] for row in group.ended]
    against, one_by_one = references.pairs(group.ended), alone.pairs(group.ended)
    ratios, efficiencies = (
        [other["mean_step_us"] / row["mean_step_us"] for row, other in pairs] for pairs in (against, one_by_one)
    )
    step = group.over_runs(steps, of_mean)
    return {
        **spread("step", "_us", step, steps),
        "samples_per_s": group.median("samples_per_s"),
        "reference": name if ratios else None,
        "pairs": len(ratios),
        **spread("times_as_fast", "", _interval(group, ratios, against), ratios),
        "interval_from": step.basis,
        **spread("weak_efficiency", "", _interval(group, efficiencies, one_by_one)),
        "others_slow_steps_share": largest(other["slow_steps_share"] for _, other in (*against, *one_by_one)),
        "reason": _why(group, ratios, references, name) or _few("weak efficiency of only", efficiencies, group),
    }


def _interval(group: Group, ratios: Sequence[float], pairs: Sequence[tuple[Row, Row]]) -> Interval:
    """Return the ratio of the other's step to the own one; of several runs it is never within two of them."""
    return over_pairs(group.study_runs, ratios, [(other, row) for row, other in pairs] if len(group.ended) == 1 else [])


def _why(group: Group, ratios: Sequence[float], references: Counterparts, name: str) -> str | None:
    if ratios:
        return _few("only", ratios, group)
    found = [row for row in map(references.of, group.ended) if row is not None]
    if not found:
        remedy = "name another in rules: reference_exchange"
        return f"nothing to compare with: exchange {name} is not planned here; {remedy}"
    return f"nothing to compare with: {name} is {statuses(found)}"


def _few(words: str, ratios: Sequence[float], group: Group) -> str | None:
    planned = len(group.planned)
    return f"{words} {len(ratios)} of {planned} rounds" if 0 < len(ratios) < planned else None
