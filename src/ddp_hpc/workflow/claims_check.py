"""Checks before any run that claims can be judged: tables have the columns, the study the runs, and these the sizes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_hpc.config import catalog
from ddp_hpc.config.claims import Cells, Claim, Sizes, Trend, places
from ddp_hpc.config.errors import StudyError, unknown
from ddp_hpc.config.matching import is_option
from ddp_hpc.config.yaml_file import Document, Key, read_mapping
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import Planned, StudyRuns

if TYPE_CHECKING:
    import pandas as pd

NOWHERE = Path("/nonexistent")


def checked(project: Project, study_runs: StudyRuns) -> StudyRuns:
    """Return `study_runs` as they are, where each claim can be judged once they have run.

    The tables are built as if nothing had run; without claims nothing is imported for it. A StudyError says which
    column a table does not have, or has no numbers in, which claim reads no run of the study, and which conditions no
    run that it reads can meet: file, line and what is allowed.
    """
    claims = study_runs.study.claims
    if not claims:
        return study_runs
    import pandas as pd

    from ddp_hpc.analysis.tables._claim_quantity import of_specs, selected

    document = read_mapping(project.study_file(study_runs.study.name), StudyError)
    unrun = replace(study_runs, store=Store(NOWHERE), planned=_few(study_runs))
    names = {cells.table for _, cells in places(claims)}
    frames = {name: catalog.load("table", name).build(unrun) for name in sorted(names)}
    specs = pd.DataFrame([planned.spec.columns() for planned in study_runs.planned])
    problems: list[str] = []
    read: dict[int, list[pd.DataFrame]] = {}
    for place, cells in places(claims):
        frame = frames[cells.table]
        frame = frame.join(specs.head(0).drop(columns=[name for name in specs if name in frame]))
        if wrong := list(_wrong(place, cells, frame, document)):
            problems += wrong
            continue
        fits = selected(of_specs(cells), specs, study_runs)
        read.setdefault(int(place[1]), []).append(fits)
        if fits.empty:
            where = document.where((*place, "where"), place)
            problems.append(f"{where}: no run of the study fits the claim {claims[int(place[1])].id}")
    for number, parts in read.items():
        problems += _never_met(number, claims[number], pd.concat(parts), document)
    if problems:
        raise StudyError("\n".join(problems))
    return study_runs


def noted(study_runs: StudyRuns, cores: int) -> StudyRuns:
    """Return `study_runs`, with a note if claims that ask for a core for each thread read runs with more."""
    import pandas as pd

    from ddp_hpc.analysis.tables._claim_quantity import of_specs, selected

    specs = pd.DataFrame([planned.spec.columns() for planned in study_runs.planned])
    threads = specs["world_size"] * specs["threads_per_rank"].astype("Float64").fillna(1).astype("int64")
    crowded, most = [], 0
    for claim in study_runs.study.claims:
        read = [selected(of_specs(cells), specs, study_runs) for cells in claim.ours.cells.values()]
        largest = max((int(threads[runs.index].max()) for runs in read if len(runs)), default=0)
        if "within_cores" in claim.applies_when and largest > cores:
            crowded.append(claim.id)
            most = max(most, largest)
    if not crowded:
        return study_runs
    why = f"their runs have up to {most} threads, and this machine {cores} cores"
    note = f"{len(crowded)} of {len(study_runs.study.claims)} claims will not be testable here, as {why}: "
    return replace(study_runs, notes=(*study_runs.notes, note + ", ".join(crowded)))


def _never_met(number: int, claim: Claim, runs: "pd.DataFrame", document: Document) -> Iterator[str]:
    """Yield the conditions that the runs which a claim reads cannot meet on any machine, as their specs say."""
    for place, condition in enumerate(claim.applies_when if len(runs) else ()):
        where = document.where(("claims", number, "applies_when", place), ("claims", number, "applies_when"))
        never = f"{where}: applies_when: the claim {claim.id} can never be judged: "
        if condition == "gpu" and set(runs["device"]) == {"cpu"}:
            yield f"{never}it asks for GPUs, and all runs that it reads have device: cpu"
        if not isinstance(condition, Sizes):
            continue
        name, asked = condition.asked
        least, most = _largest(name, runs)
        words = name.replace("_", " ")
        if asked.at_least is not None and most < asked.at_least:
            yield f"{never}it asks for {asked.at_least} {words}, and no run that it reads can have more than {most}"
        if asked.at_most is not None and least > asked.at_most:
            yield f"{never}it asks for at most {asked.at_most} {words}, and a run that it reads has {least}"


def _largest(size: str, runs: "pd.DataFrame") -> tuple[int, int]:
    """Return the least and the most that the largest `nodes`, `ranks` or `ranks_per_node` of some runs can be."""
    ranks = runs["world_size"]
    per_node = runs["ranks_per_node"].where(runs["placement"] == "spread").clip(upper=ranks)
    if size == "nodes":
        known = -(-ranks // per_node)
    elif size == "ranks":
        known = ranks
    else:
        known = per_node
    return int(known.fillna(1).max()), int(known.fillna(ranks).max())


def _wrong(place: Key, cells: Cells, frame: "pd.DataFrame", document: Document) -> Iterator[str]:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    columns = [str(name) for name in frame]
    numbers = [name for name in columns if is_numeric_dtype(frame[name]) and not is_bool_dtype(frame[name])]
    for key, name in {"column": cells.column, **({"over": cells.over} if isinstance(cells, Trend) else {})}.items():
        if name not in numbers:
            what = "column of numbers" if name in columns else "column"
            where = document.where((*place, key), place)
            yield f"{where}: {key}: {unknown(what, name, numbers)} (table {cells.table})"
    for name in cells.where:
        if name not in columns and not is_option(name):
            where = document.where((*place, "where", name), (*place, "where"), place)
            yield f"{where}: where: {unknown('column', name, columns)} (table {cells.table})"


def _few(study_runs: StudyRuns) -> tuple[Planned, ...]:
    """Return a few planned runs in which the same fields vary as in all: their tables measure the same columns."""
    first, *others = study_runs.planned
    kept = [first]
    for name, value in study_runs.varying[first.run].items():
        if all(study_runs.varying[one.run][name] == value for one in kept):
            kept.append(next(one for one in others if study_runs.varying[one.run][name] != value))
    return tuple(kept)
