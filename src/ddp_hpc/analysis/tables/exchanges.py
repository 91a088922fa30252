"""How fast each exchange is: the time of a step, side by side and against a reference, for each model and world size.

The time of a step is the training time over the steps, of a global batch each: that is there for asynchronous exchanges
too, whose ranks may take different numbers of steps, and nothing that a slow step costs is left out. Runs of one round,
which have the same seed and lie near one another in time, are compared with one another; the median over the rounds
counts, with the least and the largest beside it, and its 95 % interval, low to high: over the rounds
(`intervals.over_runs`), or of one round within its runs. Few rounds share how ratios differ between rounds elsewhere in
the table. `times_as_fast_from` says from what an interval is, as `interval_from` does of the time of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ddp_hpc.analysis.columns import ordered, varying, with_standing
from ddp_hpc.analysis.intervals import Interval, Noise, of_mean
from ddp_hpc.analysis.tables._frame import columns, largest
from ddp_hpc.analysis.tables._groups import (
    Counterparts,
    Group,
    Row,
    by_group,
    kind_of,
    noise_of_ratios,
    one_rank,
    over_pairs,
    spread,
)
from ddp_hpc.config.comparability import EFFICIENCY_BASELINE, EXCHANGE, FASTER_EXCHANGE, SAME_WORK
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

CAPTION = "Exchanges: training time per step, and against the reference in the same round; medians over the rounds."
COMPARES_EXCHANGES = True
LEFT_OUT = columns(
    "pairs slow_steps_share others_slow_steps_share step_least_us step_largest_us times_as_fast_least",
    "times_as_fast_largest times_as_fast_from weak_efficiency_low weak_efficiency_high weak_efficiency_from",
)

_COLUMNS = columns(
    "runs step_us step_least_us step_largest_us step_low_us step_high_us samples_per_s reference pairs",
    "times_as_fast times_as_fast_least times_as_fast_largest times_as_fast_low times_as_fast_high",
    "times_as_fast_from interval_from weak_efficiency weak_efficiency_low weak_efficiency_high weak_efficiency_from",
    "slow_steps_share others_slow_steps_share oversubscribed reason",
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
    axes = ordered({*varying(runs), "model", "batch_size", "world_size", *EXCHANGE} - SAME_WORK)
    references, alone = (
        _Others(others, noise_of_ratios(runs, axes, others, _ratio))
        for others in (
            Counterparts(_reference(runs, name), FASTER_EXCHANGE),
            Counterparts(one_rank(runs), EFFICIENCY_BASELINE),
        )
    )
    frame = by_group(study_runs, runs, axes, _COLUMNS, lambda group: _measured(group, name, references, alone))
    frame["pairs"] = frame["pairs"].fillna(0)
    return frame


def _reference(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    named = runs[runs["exchange"] == name]
    options = list(named["exchange_options"].unique())
    return named[named["exchange_options"] == ("{}" if "{}" in options else next(iter(options), "{}"))]


@dataclass(frozen=True)
class _Others:
    """What runs are compared with, and how ratios to them differ between rounds."""

    runs: Counterparts
    noise: Noise

    def pairs(self, group: Group) -> list[tuple[Row, Row]]:
        return self.runs.pairs(group.ended)

    def over(self, group: Group) -> Interval:
        """Return the ratio of the other's step to the own one; of several runs it is never within two of them."""
        pairs = self.pairs(group)
        ratios, itself = [_ratio(*pair) for pair in pairs], all(row["run"] == other["run"] for row, other in pairs)
        within = [(other, row) for row, other in pairs] if len(group.ended) == 1 else []
        noise = None if itself else self.noise.at(kind_of(group.ended[0]))
        return over_pairs(group.study_runs, ratios, within, noise)


def _ratio(row: Row, other: Row) -> float:
    return float(other["mean_step_us"] / row["mean_step_us"])


def _measured(group: Group, name: str, references: _Others, alone: _Others) -> Row:
    steps = [row["mean_step_us"] for row in group.ended]
    against, one_by_one = references.pairs(group), alone.pairs(group)
    step, ratios = group.over_runs(steps, of_mean), [_ratio(*pair) for pair in against]
    return {
        **spread("step", "_us", step, steps),
        "samples_per_s": group.median("samples_per_s"),
        "reference": name if ratios else None,
        "pairs": len(ratios),
        **spread("times_as_fast", "", references.over(group), ratios),
        "interval_from": step.basis,
        **spread("weak_efficiency", "", alone.over(group)),
        "others_slow_steps_share": largest(other["slow_steps_share"] for _, other in (*against, *one_by_one)),
        "reason": _why(group, ratios, references.runs, name) or _few("weak efficiency of only", len(one_by_one), group),
    }


def _why(group: Group, ratios: Sequence[float], references: Counterparts, name: str) -> str | None:
    if ratios:
        return _few("only", len(ratios), group)
    if found := references.why_none(group.ended):
        return f"nothing to compare with: {name} is {found}"
    planned, ranks = group.study_runs.runs, group.planned[0]["world_size"]
    sizes = set(planned[planned["exchange"] == name]["world_size"])
    if not sizes:
        remedy = "name another in rules: reference_exchange"
        return f"nothing to compare with: exchange {name} is not planned here; {remedy}"
    where = "with all else as here" if ranks in sizes else f"with {counted(ranks, 'rank')}"
    return f"nothing to compare with: exchange {name} is planned, but not {where}"


def _few(words: str, pairs: int, group: Group) -> str | None:
    planned = len(group.planned)
    return f"{words} {pairs} of {planned} rounds" if 0 < pairs < planned else None
