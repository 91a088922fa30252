"""What a reader of results has to know: on what the runs were made, in what they differ, and what to be wary of."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import (
    CROWDED,
    DISTURBED,
    MISPLACED,
    crowded,
    rows_of,
    search_columns,
    show,
    slow_steps_share,
    standing,
    varying,
)
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns

_PER_RUN = ("command", "startup", "null_columns", "bugs")  # differ by nature, or are told elsewhere
_PER_RANK = {
    "host": "hosts",
    "cpu": "processors",
    "gpu.name": "GPUs",
    "gpu.uuid": "GPU UUIDs",
    "threads": "threads per rank",
}
_CHANGES_TIMES = ("software.", "hosts", "processors", "GPUs", "gradient_path", "source.")

TOO_GOOD = 1.1  # parallel efficiency


@dataclass(frozen=True)
class Fact:
    """One fact of the provenance: its values, and how many runs have each."""

    name: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Evidence:
    """The provenance of a study's finished runs."""

    runs: int
    common: tuple[Fact, ...]
    differing: tuple[Fact, ...]
    nulls: tuple[Fact, ...]  # columns that are null, and why; those with the same reasons together


def of_runs(study_runs: StudyRuns) -> Evidence:
    """Return the provenance of all finished runs, what they have in common apart from what differs.

    Raises:
        RecordError: naming a record that cannot be read.
    """
    facts: dict[str, Counter[str]] = {}
    nulls: dict[str, Counter[str]] = {}
    done = [planned.run for planned in study_runs.planned if study_runs.store.finished(planned.run)]
    for run in done:
        provenance = records.read_metadata(study_runs.store.file(run)).get("provenance", {})
        for name, text in _flat(provenance):
            facts.setdefault(name, Counter())[text] += 1
        for name, reason in provenance.get("null_columns", {}).items():
            nulls.setdefault(name, Counter())[reason] += 1
    common = {name for name, counts in facts.items() if len(counts) == 1 and counts.total() == len(done)}
    listed = [Fact(name, tuple(counts.most_common())) for name, counts in facts.items()]
    return Evidence(
        runs=len(done),
        common=tuple(fact for fact in listed if fact.name in common),
        differing=tuple(fact for fact in listed if fact.name not in common),
        nulls=_grouped(nulls),
    )


def _grouped(nulls: Mapping[str, Counter[str]]) -> tuple[Fact, ...]:
    together: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for name, counts in sorted(nulls.items()):
        together.setdefault(tuple(counts.most_common()), []).append(name)
    return tuple(Fact(", ".join(names), reasons) for reasons, names in together.items())


def _flat(provenance: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the facts of one run: `software.torch`, `hosts`, ...; what is null is not there."""
    for name, value in provenance.items():
        if prefix + name == "ranks":
            yield from _of_ranks(value)
        elif prefix + name in _PER_RUN or value is None:
            continue
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _of_ranks(ranks: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for path, words in _PER_RANK.items():
        found = sorted({str(value) for rank in ranks if (value := _at(rank, path)) is not None})
        if found:
            yield words, ", ".join(found)


def _at(rank: Mapping[str, Any], path: str) -> Any:
    value: Any = rank
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def flags(study_runs: StudyRuns, tables: Mapping[str, pd.DataFrame], evidence: Evidence) -> list[str]:
    """Return what a reader has to be wary of, a sentence each."""
    return [
        *_oversubscribed(study_runs.runs),
        *_misplaced(study_runs.runs),
        *_disturbed(study_runs.runs),
        *(_unsteady(tables["runs"]) if "runs" in tables else []),
        *(_too_good(tables["scaling"]) if "scaling" in tables else []),
        *_mixed(evidence),
        *_uncommitted(evidence),
        *_again(study_runs.runs),
        *(_doubtful(tables["winners"]) if "winners" in tables else []),
        *(_at_an_edge(study_runs, tables["winners"]) if "winners" in tables else []),
    ]


def _oversubscribed(runs: pd.DataFrame) -> Iterator[str]:
    count = int(runs["oversubscribed"].fillna(False).sum())
    if count:
        yield (
            f"{count} of {len(runs)} runs had more threads than cores (oversubscribed): their times mean nothing, "
            "they cannot win, and figures mark them."
        )


def _misplaced(runs: pd.DataFrame) -> Iterator[str]:
    count = int((standing(runs) == MISPLACED).sum())
    if count:
        yield (
            f"The ranks of {count} of {len(runs)} runs did not sit as the study asks (placement_verified in the table "
            "of runs): these runs are kept out of all comparisons."
        )


def _disturbed(runs: pd.DataFrame) -> Iterator[str]:
    counted = runs[~runs["oversubscribed"].fillna(False).astype(bool)]
    count = int((slow_steps_share(counted) > DISTURBED).sum())
    if count:
        yield (
            f"In {count} of {len(runs)} runs more than a third of the training time went to steps slower than the "
            "median step (slow_steps_share in the table of runs): something else used the cores. Their times and areas "
            "are not to be trusted; run them again on a quiet machine, or with repeats."
        )
    slowed = counted[crowded(counted)]
    if len(slowed):
        yield (
            f"In {len(slowed)} of {len(runs)} runs threads were ready and had no core in over {CROWDED:.0%} of the "
            f"time, and others used up to {slowed['others_core_share'].max():.0%} of their cores (core_wait_share and "
            "others_core_share in the table of runs). Where they do so evenly no step stands out, and all are slow: "
            "run again on a quiet machine."
        )


def _unsteady(runs: pd.DataFrame) -> Iterator[str]:
    drifting = runs[runs["drifting"].astype("boolean").fillna(False).astype(bool)]
    if len(drifting):
        largest = float(drifting["drift_percent"].abs().max())
        yield (
            f"In {len(drifting)} of {len(runs)} runs the steps drift, by up to {largest:.0f} % from first to last "
            "(drifting in the table of runs): the machine changed meanwhile, or its clocks did. Their medians are of "
            "no one state."
        )
    slow = runs["slow_ranks"].dropna()
    if len(slow):
        yield (
            f"In {len(slow)} of {len(runs)} runs some ranks work slower than the others by 10 % or more, e.g. "
            f"{slow.iloc[0]} (slow_ranks in the table of runs): all others wait for them."
        )


def _too_good(scaling: pd.DataFrame) -> Iterator[str]:
    fit = scaling[~scaling["oversubscribed"].fillna(False).astype(bool)]
    count = int((fit["efficiency"] > TOO_GOOD).sum())
    if count:
        yield (
            f"{count} of {len(scaling)} rows of the scaling table have a parallel efficiency above {TOO_GOOD}: "
            "their baseline was disturbed, or a rank's share fits a faster memory."
        )


def _mixed(evidence: Evidence) -> Iterator[str]:
    for fact in evidence.differing:
        if fact.name.startswith(_CHANGES_TIMES) and fact.name != "source.dirty":
            values = "; ".join(f"{text} in {count} runs" for text, count in fact.values)
            others = evidence.runs - sum(count for _, count in fact.values)
            unknown = f"; not known in {others} runs" if others else ""
            yield f"Runs of different {fact.name} stand side by side: {values}{unknown}. Their times may differ for it."


def _uncommitted(evidence: Evidence) -> Iterator[str]:
    for fact in (*evidence.common, *evidence.differing):
        dirty = dict(fact.values).get("True", 0)
        if fact.name == "source.dirty" and dirty:
            yield f"{dirty} of {evidence.runs} runs were made by code with uncommitted changes."


def _again(runs: pd.DataFrame) -> Iterator[str]:
    count = int((runs["attempts"] > 1).sum())
    if count:
        yield f"{count} runs took more than one attempt."


def _doubtful(winners: pd.DataFrame) -> Iterator[str]:
    won = winners[winners["loss_area_loss_s"].notna()]
    doubtful = int((won["cannot_be_told_from_count"] > 0).sum())
    if doubtful:
        yield (
            f"In {doubtful} of {len(won)} groups the winner cannot be told from other points; "
            "they stand beside it in the table of winners."
        )
    none = len(winners) - len(won)
    if none:
        yield f"In {none} of {len(winners)} groups no run may win; the table of winners says why."


def _at_an_edge(study_runs: StudyRuns, winners: pd.DataFrame) -> Iterator[str]:
    """Say where the best value is the last one that was tried: a better one may lie beyond."""
    for name in search_columns(study_runs.study):
        tried = sorted(study_runs.runs[name].dropna().unique()) if name in ("batch_size", "learning_rate") else []
        if len(tried) < 3:
            continue
        for value, words in ((tried[0], "least"), (tried[-1], "largest")):
            count = int((winners[name] == value).sum())
            if count:
                yield (
                    f"In {count} of {len(winners)} groups the winner has the {words} {name} tried, {show(value)}: "
                    "a better one may lie beyond."
                )


def lacking(runs: pd.DataFrame, finished: frozenset[str]) -> list[dict[str, str]]:
    """Return the planned runs that have no result: `run` in words, `status` and `reason`."""
    differ = [name for name in varying(runs) if not name.endswith("_options")] or ["world_size"]
    return [
        {
            "run": ", ".join(f"{name} {show(row[name])}" for name in differ),
            "status": "not yet run" if row["status"] == "missing" else str(row["status"]).replace("_", " "),
            "reason": "" if pd.isna(row["reason"]) else str(row["reason"]),
        }
        for row in rows_of(runs[~runs["status"].isin(finished)])
    ]
