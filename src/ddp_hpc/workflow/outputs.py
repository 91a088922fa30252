"""Makes the tables, figures and page of a study; each stands alone, and its stamp says from what it was made."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_hpc.config import catalog
from ddp_hpc.runs.project import Project
from ddp_hpc.system.terminal import counted
from ddp_hpc.workflow import stamp
from ddp_hpc.workflow.targets import StudyTargets, figure_tables


def make_outputs(
    project: Project, study: str, kind: str, names: Sequence[str] = (), size: str | None = None, *, debug: bool = False
) -> int:
    """Make the tables or figures of these names or, without any, those that are out of date, and say where they are.

    Figures of a `size` stand beside those of the page: without names, all of the study are drawn.

    A figure of tables that are out of date is drawn, stays out of date itself, and stderr says so. One that is made
    anew is also drawn in the other sizes in which it is there.

    What they are made from is read once. One that fails does not keep the others from being made: stderr has its error,
    with `debug` its traceback, and the exit code is 2, or 1 for a bug.
    """
    for name in names:
        catalog.path(kind, name)
    targets = StudyTargets(project, project.study_runs(study), settled=True)
    outdated, codes = [] if size else targets.out_of_date(kind), {}
    chosen = list(dict.fromkeys(names)) or (targets.names[kind] if size else outdated)
    for name in set(outdated).intersection(chosen):
        file = project.root / targets.file(kind, name)
        stamp.make_way(project.root / targets.stamp(kind, name), file.parent)
        file.unlink(missing_ok=True)  # the page would show it if this fails
    if chosen and kind == "table":
        _ = targets.study_runs.runs  # what cannot be read is said once
    stale = _of_stale_tables(targets, chosen) if kind == "figure" else ()
    for name in chosen:
        try:
            print(*_made(targets, kind, name, size, current=name not in stale), sep="\n", flush=True)
        except Exception as error:
            known = isinstance(error, (ValueError, OSError, RuntimeError))
            codes[name] = 2 if known else 1
            told = f"ddp-hpc: {kind} {name}: {error}" if known and not debug else traceback.format_exc()
            print(told, file=sys.stderr)
    if codes:
        print(f"ddp-hpc: {counted(len(codes), kind)} not made: {', '.join(codes)}", file=sys.stderr)
    return min(codes.values(), default=0)


def make_page(project: Project, study: str) -> Path:
    """Write the page of a study from the tables and figures that are there; its stamp, if all of them are."""
    from ddp_hpc.analysis.report import page

    targets = StudyTargets(project, project.study_runs(study), settled=True)
    made_from = project.root / targets.stamp("report", "report")
    stamp.make_way(made_from, (project.root / targets.file("report", "report")).parent)
    outdated = [f"{kind} {name}" for kind in ("table", "figure") for name in targets.out_of_date(kind)]
    there = [one for one in outdated if (project.root / targets.file(*one.split())).exists()]
    if there:
        print(f"ddp-hpc: warning: {page.old(there, targets.study_runs.study.name)}", file=sys.stderr)
    file = page.make(targets.study_runs, project.root / targets.folder, outdated=there)
    if not outdated:
        stamp.put(made_from, file)
    return file


def _of_stale_tables(targets: StudyTargets, chosen: Sequence[str]) -> list[str]:
    """Return which of the chosen figures read a table that is there and was not made from what there is now."""
    folder, study = targets.project.root / targets.folder, targets.study_runs.study.name
    outdated = {name for name in targets.out_of_date("table") if (folder / "tables" / f"{name}.parquet").exists()}
    found = {name: tables for name in chosen if (tables := outdated.intersection(figure_tables(name)))}
    if found:
        read = ", ".join(sorted(set().union(*found.values())))
        print(
            f"ddp-hpc: warning: drawn from tables that are out of date ({read}): {', '.join(found)}; "
            f"`ddp-hpc table {study}` makes them anew, then draw again",
            file=sys.stderr,
        )
    return list(found)


def _made(targets: StudyTargets, kind: str, name: str, size: str | None, *, current: bool) -> Iterator[object]:
    """Make a table or a figure, put its stamp if what it is made from is current, and yield what a terminal shows."""
    study_runs, folder = targets.study_runs, targets.project.root / targets.folder
    made_from = targets.stamp(kind, name)  # of what is there before it is read
    if kind == "table":
        from ddp_hpc.analysis import tables

        file = tables.make(name, study_runs, folder / "tables")
        yield from tables.lines(name, file)
    else:
        from ddp_hpc.analysis import figures

        there = [other for other in figures.SIZES if (folder / "figures" / f"{name}-{other}.svg").exists()]
        for other in there if size is None else ():  # they would keep what the tables no longer say
            figures.make(name, study_runs.study, folder / "tables", folder / "figures", other)
        file = figures.make(name, study_runs.study, folder / "tables", folder / "figures", size)
    if size is None and current:
        stamp.put(targets.project.root / made_from, targets.project.root / targets.file(kind, name))
    yield file
