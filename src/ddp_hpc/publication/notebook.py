"""The results of a study in a notebook or a script: `study = ddp_hpc.open("mine")`, then `study.runs`, ...

Records are read when they are first asked for, and kept: open the study again to see runs that have ended since.
Columns have their units and meanings in `attrs` of a frame: `frame.attrs["units"]["step_s"]` is `"s"`.
"""

import sys
import weakref
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_hpc.config import catalog
from ddp_hpc.config.catalog import did_you_mean
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs.attempt import RunFolder
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.statuses import in_words
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.workflow.targets import figure_tables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

SHOWN = 10  # names in a message


class StudyResults:
    """The results of one study: of a project, or of a pack that `ddp-hpc publish` has made."""

    def __init__(self, study_runs: StudyRuns, project: Path | None, tables: Path | None = None) -> None:
        self.study_runs = study_runs
        self._project = project  # whose models, tables and figures of its own the study may name
        self._files = tables  # those of a pack: it may have fewer records than the tables were made of
        self._tables: dict[str, tuple[pd.DataFrame, str]] = {}  # each with its coverage

    def __repr__(self) -> str:
        return f"<study {self.name}: {self.study_runs.coverage()}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self.study_runs.study.name

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """One line per planned run: its spec, its status and reason, and what was measured; null where nothing was."""
        if self._files:
            return self.table("runs")
        return _with_units(self.study_runs.runs.copy(), study=self.name, coverage=self.study_runs.coverage())

    @property
    def tables(self) -> list[str]:
        """The names of the tables that there are."""
        self._use()
        return sorted(file.stem for file in self._files.glob("*.parquet")) if self._files else catalog.names("table")

    @property
    def figures(self) -> list[str]:
        """The names of the figures that there are: those whose tables are there."""
        self._use()
        there = set(self.tables)
        return [name for name in catalog.readable("figure") if there.issuperset(figure_tables(name))]

    def table(self, name: str) -> "pd.DataFrame":
        """Return a table, e.g. `winners`, made from the records; of a pack, the one that it has."""
        return self._table(name)[0].copy()

    def steps(self, run: str) -> "pd.DataFrame":
        """Return all steps of all ranks of a finished run, those of the warmup too; `run` is its name."""
        return _with_units(self.study_runs.steps(self._finished(run)), "steps", run=run)

    def evaluations(self, run: str) -> "pd.DataFrame":
        """Return the evaluations of a finished run on the test set."""
        return _with_units(self.study_runs.evaluations(self._finished(run)), "evaluations", run=run)

    def curve(self, run: str) -> "pd.DataFrame":
        """Return the loss of each counted step of a finished run, and when it ended: `step`, `t_s`, `loss`."""
        import pandas as pd

        from ddp_hpc.analysis.tables._steps import whole_curve

        curve = whole_curve(self.study_runs, self._finished(run))
        frame = pd.DataFrame({"step": curve.step, "t_s": curve.t_s, "loss": curve.loss})
        return _with_units(frame, "steps", run=run)

    def figure(self, name: str, size: str | None = None) -> "Figure":
        """Return a figure, e.g. `speedup`; `size` is `column` or `page` of a journal, None: what suits it."""
        self._use()
        _known("figure", name, self.figures)
        from ddp_hpc.analysis import figures
        from ddp_hpc.analysis.figures._style import SIZES

        if size is not None:
            _known("size", size, SIZES)
        read = {table: self._table(table) for table in figure_tables(name)}
        coverage = next((coverage for _, coverage in read.values()), "")
        return figures.picture(name, self.study_runs.study, {one: read[one][0] for one in read}, coverage, size)

    def load_model(self, run: str) -> "nn.Module":
        """Return the trained model of a finished run, on the CPU, in evaluation, if its study says `keep: weights`."""
        self._use()
        return _model(self.study_runs.store.run(self._finished(run)))

    def _table(self, name: str) -> "tuple[pd.DataFrame, str]":
        """Return a table that is not to be written to, and how many of the planned runs it covers."""
        _known("table", name, self.tables)
        if name not in self._tables:
            from ddp_hpc.analysis import tables
            from ddp_hpc.runs import records

            if self._files:
                import pandas as pd

                file = self._files / f"{name}.parquet"
                frame, coverage = pd.read_parquet(file), str(records.read_metadata(file)["coverage"])
            else:
                frame, coverage = tables.built(name, self.study_runs), self.study_runs.coverage()
            caption = catalog.constants("table", name).get("CAPTION", name) if name in catalog.names("table") else name
            about = {"study": self.name, "table": name, "caption": caption, "coverage": coverage}
            self._tables[name] = _with_units(frame, **about), coverage
        return self._tables[name]

    def _finished(self, run: str) -> str:
        """Return the name of a run that has records; else say which runs have."""
        store, planned = self.study_runs.store, [one.run for one in self.study_runs.planned]
        if run in planned and store.finished(run):
            return run
        finished = [one for one in planned if store.finished(one)]
        expected = f'expected, of `.runs["run"]`: {", ".join(finished[:SHOWN]) or "none has records"}'
        if len(finished) > SHOWN:
            expected += f" and {len(finished) - SHOWN} more"
        if run in planned:
            state = state_of(store, run)
            why = f": {state.reason}" if state.reason else ""
            raise StudyError(f"{run} has no records, it is {in_words(state.status)}{why}; {expected}")
        raise StudyError(f"no run {run!r} in study {self.name}{did_you_mean(str(run), planned)}; {expected}")

    def _use(self) -> None:
        """Let names mean this project's models, tables and figures: several projects may be open."""
        if self._project:
            catalog.use_project(self._project)


def open(given: str | Path, project: str | Path | None = None) -> StudyResults:
    """Return the results of a study.

    Args:
        given: the study's name, or its file `.../config/studies/NAME.yaml`; or a pack, a folder or a zip file.
        project: the folder of the study's project, or one in it; None: the current folder, or that of the study's file.

    Raises:
        StudyError: no such study or project, with those that there are.
        PackError: this is no pack.
    """
    path = Path(given)
    if path.suffix == ".zip" or (path.is_dir() and (path / "SHA256SUMS").is_file()):
        return _of_pack(path)
    if path.is_dir():
        found = Project.here(path)
        raise StudyError(f"{given} is a project, expected: a study of it, e.g. open({_first(found)!r}, {str(given)!r})")
    start = Path(project) if project else path.parent if path.suffix == ".yaml" and path.is_file() else None
    found = Project.here(start)
    study = found.study_file(str(given)).stem
    return StudyResults(found.study_runs(study), found.root)


def load_model(run: str | Path) -> "nn.Module":
    """Return the trained model of a run of the current project, or of the folder of a run: on the CPU, in evaluation.

    The study says `keep: weights`. This imports torch; a model of the project's own is built from the project's file.

    Raises:
        StudyError: no such run, or no weights of it.
        WeightsError: the weights cannot be read, or the model has changed and does not take them.
    """
    folder = Path(run)
    if len(folder.parts) == 1 and not folder.is_dir():
        project = Project.here()
        folder = project.store.runs / folder
        if not folder.is_dir():
            known = sorted(one.name for one in project.store.runs.glob("*") if RunFolder(one).weights.exists())
            expected = f"{', '.join(known[:SHOWN]) or 'none has weights'}{' ...' if len(known) > SHOWN else ''}"
            raise StudyError(f"no run {str(run)!r} in {project.store.runs}; expected: {expected}")
    else:
        with suppress(StudyError):  # it may lie anywhere, if its model is one of ddp-hpc
            Project.here(folder)
    return _model(RunFolder(folder.absolute()))


def _model(folder: RunFolder) -> "nn.Module":
    if not folder.weights.is_file():
        raise StudyError(
            f"{folder.path} has no weights; expected: a run that was trained with `keep: weights` in its study, or by "
            f"`ddp-hpc train {folder.path.name} --again --keep weights`"
        )
    from ddp_hpc.training import weights

    return weights.load(folder.weights)


def _of_pack(path: Path) -> StudyResults:
    from ddp_hpc.publication import pack as packs

    with suppress(StudyError):  # whose models the study may name
        Project.here()
    stack = ExitStack()
    root = stack.enter_context(packs.unpacked(path))  # a zip file stays so for as long as its results are in use
    with packs.own_code_of(root):
        study_runs = packs.Pack(root).study_runs
    if packs.project_of(root):
        sys.dont_write_bytecode = True  # a pack holds nothing beside what SHA256SUMS names
    results = StudyResults(study_runs, packs.project_of(root) or catalog.project(), root / packs.TABLES)
    weakref.finalize(results, stack.close)
    return results


def _first(project: Project) -> str:
    return (project.studies or ["NAME"])[0]


def _known(kind: str, name: str, there: Iterable[str]) -> None:
    """Raise a StudyError that says what there is, unless `name` is."""
    names = list(there)
    if name not in names:
        raise StudyError(f"no {kind} {name!r}{did_you_mean(str(name), names)}; expected: {', '.join(names) or 'none'}")


def _with_units(frame: "pd.DataFrame", kind: str | None = None, /, **about: Any) -> "pd.DataFrame":
    """Put into the attributes of a frame what it is, and units and meanings of those columns that have some."""
    from ddp_hpc.analysis import definitions

    columns = {str(name): definitions.about(str(name), kind) for name in frame}
    frame.attrs |= about
    frame.attrs["units"] = {name: unit for name, (unit, _) in columns.items() if unit}
    frame.attrs["meanings"] = {name: meaning for name, (_, meaning) in columns.items() if meaning}
    return frame
