"""The rule `stop_when_beaten`: for which studies it is exact, and which of their runs compete with which.

A loss is never negative, so the area under its curve only grows. A run whose area has passed that of a complete run of
its group by more than the noise can neither win nor be taken for the winner, whatever comes.
"""

from collections.abc import Iterator, Sequence

from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import SAME_WORK, agreeing
from ddp_hpc.config.spec import SPEC_COLUMNS, RunSpec
from ddp_hpc.config.study import Study
from ddp_hpc.config.types import canonical_json

STOPS_BEYOND = 1.25  # times the least area: what is nearer may yet be taken for it, and would have to run again


def beyond(study: Study) -> float:
    """Return how many times the least area of its group the area of a run has to be for it to stop."""
    return max(STOPS_BEYOND, 1 + study.rules.area_noise)


def problems(study: Study, specs: Sequence[RunSpec]) -> Iterator[str]:
    """Yield why a study cannot stop runs without changing what it finds."""
    given, told = "given true, but ", "; expected: false, or "
    if study.rules.winner_by != "loss_area":
        yield f"{given}winner_by {study.rules.winner_by}: a metric may still improve{told}winner_by: loss_area"
    if study.looks != [1] or len({_key(spec, ["seed"]) for spec in specs}) < len(specs):
        why = "how the repeats of a point scatter says which points are told apart, so all have to end"
        yield f"{given}points have repeats: {why}{told}one run of each point"
    if study.pairs:
        yield f"{given}the study has pairs, both of which have to end{told}no pairs"
    if any(spec.program for spec in specs):
        yield f"{given}a program takes its steps itself{told}a model and a dataset of ddp-hpc"
    for name in sorted({spec.model.name for spec in specs if not spec.program}):
        if catalog.defines("model", name, "loss"):
            why = "which may be negative: its area may shrink"
            yield f"{given}model {name} has a loss of its own, {why}{told}a model that takes that of the dataset"
    columns = agreeing(SAME_WORK)
    if len(specs) > 1 and len({_key(spec, [], columns) for spec in specs}) == len(specs):
        why = "no two runs do the same work per step, so the noise of time will not be known, and nothing is told apart"
        yield f"{given}{why}{told}several learning rates"


def _key(spec: RunSpec, without: Sequence[str], columns: Sequence[str] = tuple(SPEC_COLUMNS)) -> str:
    values = spec.columns()
    return canonical_json([values[name] for name in columns if name not in without])


def rivals(study: Study, specs: Sequence[RunSpec]) -> dict[str, list[str]]:
    """Return by its hash the others that each spec competes with; of a group that does not compare, none.

    Points that see different numbers of samples do not: `winners` says so. Nor does a rank stop that takes its steps by
    itself.
    """
    searched = {*study.search} - {"exchange", "world_size"}
    columns = [name for name in SPEC_COLUMNS if name.removesuffix("_options") not in searched and name != "seed"]
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(_key(spec, [], columns), []).append(spec)
    found: dict[str, list[str]] = {}
    for group in groups.values():
        samples = [spec.samples_asked or 0 for spec in group]
        comparable = max(samples) <= (1 + study.rules.area_noise) * min(samples)
        together = catalog.constants("exchange", group[0].exchange.name)["SYNCHRONOUS"]
        for spec in group:
            others = [other.hash for other in group if other is not spec]
            found[spec.hash] = others if comparable and together else []
    return found
