"""Two settings side by side: how many times as fast the second is, round by round, with its interval.

The runs of a pair have the same seed, and are trained one after the other, first and second in turns (A B, B A, ...):
what slows the machine for a while slows both, and a trend cancels out. So only their ratio is given.
"""

import pandas as pd

from ddp_hpc.analysis.columns import ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.tables._frame import columns, typed
from ddp_hpc.analysis.tables._groups import Row, doubt, not_complete, over_pairs, spread
from ddp_hpc.config import pairs as pairing
from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.runs.records import hosts_of
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Pairs: how many times as fast the second setting is as the first in the same round."
COMPARES_PAIRS = True
LEFT_OUT = ("slow_steps_share",)

_COLUMNS = columns(
    "first second rounds ratio ratio_low ratio_high ratios told_apart interval_from slow_steps_share oversubscribed",
    "same_hosts reason",
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per point of the study without the axis of its pairs; no row if it has no `pairs`.

    `ratios` are samples per second of the second over the first, a ratio per round in the order of the seeds;
    `ratio` is their median, `ratio_low` and `ratio_high` its 95 % interval over the rounds, or of one round within its
    two runs (`interval_from`). `same_hosts`: in every round both ran on the same hosts; else their difference may be
    that of the hosts. `told_apart`: over several rounds, and the interval excludes 1.
    `slow_steps_share` is the largest of all runs in the row (`columns.slow_steps_share`).
    """
    runs, pairs = with_standing(study_runs.runs), study_runs.study.pairs
    if pairs is None:
        return typed([], _COLUMNS)
    row_of = {row["spec_hash"]: row for row in rows_of(runs)}
    both = [
        (row_of[first.hash], row_of[second.hash])
        for first, second in pairing.sides(pairs, (planned.spec for planned in study_runs.planned)).values()
        if first is not None and second is not None
    ]
    axis = {pairs.axis, *([f"{pairs.axis}_options"] if pairs.axis in COMPONENTS else [])}
    axes = [name for name in ordered({*varying(runs), "world_size", "batch_size"} - {"seed"}) if name not in axis]
    first, second = map(str, pairing.values(pairs))
    firsts = pd.DataFrame([first | {"pair": number} for number, (first, _) in enumerate(both)])
    rows = (
        key
        | {"first": first, "second": second}
        | _row(study_runs, [both[number] for number in part.sort_values("seed")["pair"]])
        for key, part in split(firsts, axes)
    )
    return typed(rows, [*axes, *_COLUMNS])


def _row(study_runs: StudyRuns, planned: list[tuple[Row, Row]]) -> Row:
    ended = [pair for pair in planned if all(run["status"] == "ok" for run in pair)]
    if not ended:
        return {"rounds": 0, "reason": not_complete(run for pair in planned for run in pair)}
    ratios = [float(second["samples_per_s"] / first["samples_per_s"]) for first, second in ended]
    found = over_pairs(study_runs, ratios, ended)
    hosts = [[hosts_of(study_runs.store.file(run["run"])) for run in pair] for pair in ended]
    return {
        "rounds": len(ended),
        **spread("ratio", "", found),
        "ratios": " ".join(f"{ratio:.3f}" for ratio in ratios),
        "told_apart": not found.low <= 1 <= found.high if len(ended) > 1 and found.known else None,
        "interval_from": found.basis.replace("runs", "rounds"),
        **doubt(run for pair in ended for run in pair),
        # not known where a record does not say the hosts
        "same_hosts": all(a == b for a, b in hosts) if all(one for pair in hosts for one in pair) else None,
        "reason": f"only {len(ended)} of {len(planned)} rounds" if len(ended) < len(planned) else None,
    }
