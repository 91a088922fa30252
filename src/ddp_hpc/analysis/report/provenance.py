"""The provenance of a study's runs: what they have in common, where they differ, what was not measured, and why."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_hpc.analysis.report.rank_seats import Seats, seats
from ddp_hpc.runs import records
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import StudyRuns

_PER_RUN = ("command", "startup", "null_columns", "bugs", "warnings")  # differ by nature, or are told elsewhere
_PER_RANK = {
    "host": "hosts",
    "cpu": "processors",
    "gpu.name": "GPUs",
    "gpu.uuid": "GPU UUIDs",
    "gpu.power_limit_w": "GPU power limits (W)",
    "gpu.compute_processes": "processes per GPU",
    "threads": "threads per rank",
}


Facts = dict[str, list[tuple[str, int]]]  # by name each value, and how many runs have it; the most common first


@dataclass(frozen=True)
class Provenance:
    """The provenance of a study's finished runs."""

    runs: int
    common: Facts
    differing: Facts
    nulls: Facts  # columns that are null, and why; those with the same reasons together
    bugs: list[tuple[str, int]]  # of ddp-hpc, beside the training: each traceback, and in how many runs it stands
    warnings: list[tuple[str, int]]  # that Python gave on ranks: each text, and in how many runs
    listed: list[tuple[str, str]]  # each fact in which runs differ, once
    of_run: dict[str, list[int]]  # by run: the places of its facts in `listed`
    seats: list[Seats]  # what each rank had


def of_runs(study_runs: StudyRuns) -> Provenance:
    """Return the provenance of all finished runs."""
    done = study_runs.runs.loc[study_runs.runs["status"].isin(FINISHED), "run"]
    found = [records.read_metadata(study_runs.store.file(run)).get("provenance", {}) for run in done]
    flat = [dict(_flat(provenance)) for provenance in found]
    facts = _counted(one.items() for one in flat)
    common = {name: values for name, values in facts.items() if len(values) == 1 and values[0][1] == len(done)}
    nulls: dict[tuple[tuple[str, int], ...], list[str]] = {}
    reasons = _counted(provenance.get("null_columns", {}).items() for provenance in found)
    for name, values in sorted(reasons.items()):
        nulls.setdefault(tuple(values), []).append(name)
    bugs, warnings = (
        Counter(text for provenance in found for text in set(provenance.get(name, []))).most_common()
        for name in ("bugs", "warnings")
    )
    differing = {name: values for name, values in facts.items() if name not in common}
    listed = [(name, text) for name, values in differing.items() for text, _ in values]
    place = {fact: number for number, fact in enumerate(listed)}
    return Provenance(
        runs=len(done),
        common=common,
        differing=differing,
        listed=listed,
        of_run={
            str(run): [place[fact] for fact in one.items() if fact in place]
            for run, one in zip(done, flat, strict=True)
        },
        nulls={", ".join(names): reasons[names[0]] for names in nulls.values()},
        bugs=bugs,
        warnings=warnings,
        seats=seats(found),
    )


def _counted(runs: Iterable[Iterable[tuple[str, str]]]) -> Facts:
    """Return each name that some run has, with its values."""
    facts: dict[str, Counter[str]] = {}
    for name, text in (pair for run in runs for pair in run):
        facts.setdefault(name, Counter())[text] += 1
    return {name: counts.most_common() for name, counts in facts.items()}


def _flat(provenance: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the facts of one run: `software.torch`, `hosts`, ...; what is null is not there."""
    for name, value in provenance.items():
        if prefix + name == "ranks":
            ranks = [dict(_flat(rank)) for rank in value]
            for path, words in _PER_RANK.items():
                if found := {rank[path] for rank in ranks if path in rank}:
                    yield words, ", ".join(sorted(found))
        elif prefix + name in _PER_RUN or value is None:
            continue
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
