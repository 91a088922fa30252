"""What the workflow has to know: which runs are missing, and what every table, figure and page is made from.

A run that is finished takes no part in the workflow, so nothing that Snakemake remembers can make it run again. A
table, figure or page depends on a stamp, an empty file whose name holds the hash of what it is made from: the planned
runs and which of them exist, the study's rules, the code. When any of these changes, the stamp of that name does not
exist, is made, and is newer than the table.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ddp_hpc.config import catalog
from ddp_hpc.config import pairs as pairing
from ddp_hpc.config.claims import tables_read
from ddp_hpc.config.machine import Machine
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.types import canonical_json
from ddp_hpc.runs import identity
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.slurm.resources import Request
from ddp_hpc.workflow import resource_requests


@dataclass(frozen=True)
class StudyTargets:
    """The files that one study asks for."""

    project: Project
    study_runs: StudyRuns
    settled: bool  # the second call: what is not there now will not come; tables say what is missing

    @property
    def folder(self) -> str:
        """The study's folder, relative to the project, as the workflow names it."""
        return f"results/studies/{self.study_runs.study.name}"

    @cached_property
    def runs(self) -> frozenset[str]:
        """The names of the planned runs."""
        return frozenset(planned.run for planned in self.study_runs.planned)

    @cached_property
    def missing(self) -> list[Planned]:
        """The planned runs that had not ended as result or finding when this was first asked."""
        return self.study_runs.lacking

    @property
    def in_rounds(self) -> list[Planned]:
        """The planned runs, the first repeat of every point in the order of the grid, then all second repeats, ...

        So what slows the machine for a while meets all points alike, and repeats of one point are far apart. Runs
        that differ in their seed alone are repeats, whether `repeats` or an axis asks for them. Runs of a pair stand
        side by side (`pairing.side_by_side`).
        """
        taken: Counter[tuple[Any, ...]] = Counter()
        rounds = {}
        for planned in sorted(self.study_runs.planned, key=lambda planned: planned.spec.seed):
            point = tuple(value for name, value in planned.spec.columns().items() if name != "seed")
            rounds[planned.run] = taken[point]
            taken[point] += 1
        if pairs := self.study_runs.study.pairs:
            by_planned = {planned: rounds[planned.run] for planned in self.study_runs.planned}
            return pairing.side_by_side(self.study_runs.planned, lambda planned: planned.spec, by_planned, pairs)
        return sorted(self.study_runs.planned, key=lambda planned: rounds[planned.run])

    @property
    def _made(self) -> dict[str, tuple[str, str]]:
        """By file: kind and name of all tables, also those that figures read, of all figures, and of the page."""
        study = self.study_runs.study
        read = [table for name in study.figure_names for table in figure_tables(name)]
        made = {self._table(name): ("table", name) for name in [*study.table_names, *read]}
        made |= {f"{self.folder}/figures/{name}.svg": ("figure", name) for name in study.figure_names}
        return made | {f"{self.folder}/report/index.html": ("report", "report")}

    @property
    def outputs(self) -> list[str]:
        """All tables and figures and, last, the page."""
        return list(self._made)

    @property
    def stamps(self) -> list[str]:
        """The stamps of all outputs."""
        return [self.stamp(kind, name) for kind, name in self._made.values()]

    def inputs_of_figure(self, name: str) -> list[str]:
        """Return the tables that a figure reads, as the workflow names them."""
        return [self._table(table) for table in figure_tables(name)]

    def _table(self, name: str) -> str:
        return f"{self.folder}/tables/{name}.parquet"

    @property
    def awaited(self) -> list[str]:
        """The records that tables and page have to wait for. Finished ones are not among them, see above."""
        return [] if self.settled else [run_file(planned.run) for planned in self.missing]

    def stamp(self, kind: str, name: str) -> str:
        """Return the stamp of a table, a figure or the page (kind `report`)."""
        study, analysis = self.study_runs.study, catalog.PACKAGE / "analysis"
        told: list[Any]
        if kind == "report":
            code = [analysis / "report" / "page.py"]
            files = sorted((analysis / "report" / "templates").iterdir())
            shown = {"name", "description", "citation", "rules", "search", "claims"}
            told = [
                {file.name: identity.content_hash(file) for file in files},
                study.model_dump(mode="json", include=shown),
                self._evidence,
            ]
        elif kind == "figure":
            code = [catalog.path("figure", name), analysis / "figures" / "_save.py"]
            told = [self._rules, study.description]
        else:
            claims = study.claims if "OF_CLAIMS" in catalog.constants("table", name) else []
            code = [catalog.path("table", table) for table in (name, *tables_read(claims))]
            code.append(analysis / "tables" / "_formats.py")
            told = [self._rules, self._evidence, [claim.model_dump(mode="json") for claim in claims]]
        return f"{self.folder}/.made/{kind}-{name}.{_digest([identity.closure(code), *told])}"

    @cached_property
    def _rules(self) -> Any:
        return self.study_runs.study.model_dump(mode="json", include={"name", "rules", "search", "pairs"})

    @cached_property
    def _evidence(self) -> str:
        """A hash of the planned runs and, in the second call, of why some are not there: a reason is worth a table."""
        lacking = [planned.run for planned in self.missing] if self.settled else []
        states = {run: state_of(self.study_runs.store, run) for run in lacking}
        missing = {run: [state.status, state.reason] for run, state in states.items()}
        runs = {one.run: self.study_runs.store.run(one.run).stamps() for one in self.study_runs.planned}
        return _digest({"runs": runs, "missing": missing})


@dataclass(frozen=True)
class Targets:
    """The studies of one call of the workflow; none within a job, for they may have been edited since it was queued."""

    project: Project
    studies: dict[str, StudyTargets] = field(default_factory=dict)  # by name
    machine: Machine | None = None  # that runs them; None: they run here
    only: frozenset[str] | None = None  # of the missing runs, train these; None: all

    @cached_property
    def requests(self) -> dict[str, Request]:
        """What each run that is still to be trained asks of the machine; empty without one."""
        studies = [study.study_runs for study in self.studies.values() if not study.settled]
        return {} if self.machine is None else resource_requests.requests(studies, self.machine)

    def runtime_min(self, run: str) -> int | None:
        """Return the minutes that a run may take: the most of those that its studies give; None: they do not say."""
        asking = [study.study_runs.study for study in self.studies.values() if run in study.runs]
        return max((study.runtime_min for study in asking if study.runtime_min is not None), default=None)

    @cached_property
    def planned(self) -> dict[str, Planned]:
        """All planned runs by name; two studies that share a point share the run."""
        return {planned.run: planned for study in self.studies.values() for planned in study.study_runs.planned}

    @cached_property
    def priority(self) -> dict[str, int]:
        """By run: the higher, the earlier it is trained. Study after study, each in rounds of repeats."""
        order = dict.fromkeys(planned.run for study in self.studies.values() for planned in study.in_rounds)
        return {run: len(order) - place for place, run in enumerate(order)}

    @property
    def missing(self) -> list[str]:
        """The records that have to be trained."""
        runs = dict.fromkeys(planned.run for study in self.studies.values() for planned in study.missing)
        return [run_file(run) for run in runs if self.only is None or run in self.only]

    @property
    def wanted(self) -> list[str]:
        """All that a call of the workflow should bring about.

        The records and stamps stand here by name: Snakemake makes nothing that is missing between files that exist.
        """
        settled = any(study.settled for study in self.studies.values())
        made = [file for study in self.studies.values() for file in (*study.stamps, *study.outputs)]
        return made if settled else [*self.missing, *made]

    def spec(self, run: str) -> RunSpec:
        """Return the spec of a run; of one that no study here plans, from its folder."""
        return self.planned[run].spec if run in self.planned else resource_requests.spec(self.project.store, run)

    def data_for(self, run: str) -> list[str]:
        """Return the receipts of datasets that must have been fetched before `run`; none for those that ship."""
        dataset = self.spec(run).dataset.name
        return [f"results/data/{dataset}/archive.sha256"] if "URL" in catalog.constants("dataset", dataset) else []


def run_file(run: str) -> str:
    """Return the record of a run as the workflow names it."""
    return f"results/runs/{run}/run.parquet"


def figure_tables(name: str) -> tuple[str, ...]:
    """Return the tables that a figure reads, from the constant INPUTS in its file."""
    return tuple(catalog.constants("figure", name).get("INPUTS", ()))


def _digest(parts: Any) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[: identity.DIGITS]
