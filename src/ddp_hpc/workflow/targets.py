"""What the workflow has to know: which runs are missing, and what every table, figure and page is made from.

A run that is finished takes no part in the workflow, so nothing that Snakemake remembers can make it run again. A
table, figure or page has a stamp, a file whose name holds the hash of what it was made from: the planned runs and which
of them exist, the study's rules, the code. When any of these changes, no stamp of that name exists, and `outputs` makes
it anew; so it does where a file is not the one that the stamp knows (`stamp.py`). Snakemake sees one job for all of a
study that is out of date, and no date of a file.
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
from ddp_hpc.config.settings import Settings
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.types import canonical_json
from ddp_hpc.runs import identity, syntax
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.slurm.resources import Request
from ddp_hpc.workflow import resource_requests, stamp
from ddp_hpc.workflow.likely_winners import likely_first

_FILES = {"table": "tables/{}.parquet", "figure": "figures/{}.svg", "report": "report/index.html"}


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
        side by side (`pairing.side_by_side`). Where runs stop that are beaten, likely winners come first.
        """
        if self.study_runs.study.rules.stop_when_beaten:
            return likely_first(self.study_runs)
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

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """By kind: all tables, also those that figures read, all figures, and the page."""
        study = self.study_runs.study
        read = [table for name in study.figure_names for table in figure_tables(name)]
        tables = list(dict.fromkeys([*study.table_names, *read]))
        return {"table": tables, "figure": study.figure_names, "report": ["report"]}

    @property
    def outputs(self) -> list[str]:
        """The files of all tables and figures and, last, of the page."""
        return [self.file(kind, name) for kind, names in self.names.items() for name in names]

    @property
    def shown(self) -> list[str]:
        """The files that `snakemake --report` shows: each table as CSV, each figure, the page."""
        return [file.removesuffix(".parquet") + ".csv" if "/tables/" in file else file for file in self.outputs]

    @property
    def stamps(self) -> list[str]:
        """The stamps of all outputs."""
        return [self.stamp(kind, name) for kind, names in self.names.items() for name in names]

    def file(self, kind: str, name: str) -> str:
        """Return the file of a table, a figure or the page, the one that is written last."""
        return f"{self.folder}/{_FILES[kind].format(name)}"

    def out_of_date(self, kind: str) -> list[str]:
        """Return the names of a kind whose files are not there or not whole, or not made from what there is now."""
        there = self.project.root.joinpath
        files = {name: (there(self.stamp(kind, name)), there(self.file(kind, name))) for name in self.names[kind]}
        return [
            name
            for name, (made_from, file) in files.items()
            if not (made_from.exists() and file.exists()) or stamp.changed(made_from, file.parent)
        ]

    @property
    def making(self) -> list[str]:
        """The file that has to come to be if anything is out of date, of a number that none has yet; else nothing."""
        if not any(map(self.out_of_date, self.names)):
            return []
        made = (self.project.root / self.folder / ".made").glob("[0-9]*")
        return [f"{self.folder}/.made/{max((int(file.name) for file in made), default=0) + 1}"]

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
            shown = {"name", "description", "citation", "rules", "search", "repeats", "claims"}
            told = [
                {file.name: identity.content_hash(file) for file in files},
                study.model_dump(mode="json", include=shown),
                self._evidence,
                [self.stamp(kind, name) for kind in ("table", "figure") for name in self.names[kind]],
            ]
        elif kind == "figure":
            code = [catalog.path("figure", name), analysis / "figures" / "_save.py"]
            read = [self.stamp("table", table) for table in figure_tables(name)]
            told = [self._rules, study.description, study.exchanges, read]
        else:
            claims = study.claims if "OF_CLAIMS" in catalog.constants("table", name) else []
            code = [catalog.path("table", table) for table in (name, *tables_read(claims))]
            code.append(analysis / "tables" / "_formats.py")
            told = [self._rules, self._evidence, [claim.model_dump(mode="json") for claim in claims]]
        return f"{self.folder}/.made/{kind}-{name}.{_digest([identity.closure(code), *told])}"

    @cached_property
    def _rules(self) -> Any:
        return self.study_runs.study.model_dump(mode="json", include={"name", "rules", "search", "pairs", "repeats"})

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
    settings: Settings = field(default_factory=Settings)

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
        """All that a call of the workflow should bring about: the records that are missing, what is out of date.

        If that is nothing, the files of the results, which are there: of these `snakemake --report` makes its report.
        """
        settled = any(study.settled for study in self.studies.values())
        made = [file for study in self.studies.values() for file in study.making]
        asked = made if settled else [*self.missing, *made]
        return asked or [file for study in self.studies.values() for file in study.shown]

    def spec(self, run: str) -> RunSpec:
        """Return the spec of a run; of one that no study here plans, from its folder."""
        return self.planned[run].spec if run in self.planned else resource_requests.spec(self.project.store, run)

    def data_for(self, run: str) -> list[str]:
        """Return the receipts of datasets that must have been fetched before `run`; none for those that ship."""
        if not (component := self.spec(run).dataset):  # a program has its own
            return []
        dataset = component.name
        return [f"results/data/{dataset}/archive.sha256"] if "URL" in catalog.constants("dataset", dataset) else []


def run_file(run: str) -> str:
    """Return the record of a run as the workflow names it."""
    return f"results/runs/{run}/run.parquet"


def figure_tables(name: str) -> tuple[str, ...]:
    """Return the tables that a figure reads, from the constant INPUTS in its file."""
    return tuple(catalog.constants("figure", name).get("INPUTS", ()))


def _digest(parts: Any) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[: syntax.DIGITS]
