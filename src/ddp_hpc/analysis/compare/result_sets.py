"""Result sets to compare: the runs of a study, of a folder of results, or of a table of runs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from ddp_hpc.analysis.intervals import Array
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import RunFolder, Store, finished
from ddp_hpc.runs.project import Project
from ddp_hpc.system.terminal import counted

BEFORE = "@before"
PLACES = (".", "runs", "results/runs")  # where the folders of runs may lie below a given folder


@dataclass(frozen=True)
class ResultSet:
    """Runs that were made under one set of conditions."""

    name: str  # as it was given
    # One row per run, the columns of `schema.RUN`; failed and missing runs too, where they are known.
    runs: pd.DataFrame
    folder: Path | None = None  # in which the runs lie; None where only the table is kept
    notes: tuple[str, ...] = ()  # what is worth saying about the choice of runs

    def step_times(self, run: str) -> Array | None:
        """Return the times between the ends of the counted steps of a run in seconds, slowest rank; None: not kept."""
        file = self.folder and RunFolder(self.folder / run).record("steps")
        if not file or not file.is_file():
            return None
        steps = records.read("steps", file, ["step", "rank", "t_s", "warm_up"]).to_pandas()
        mine = steps[(steps["rank"] == steps["rank"].min()) & ~steps["warm_up"].astype(bool)].sort_values("step")
        return np.asarray(np.diff(mine["t_s"].to_numpy(np.float64), prepend=0.0))


def in_both(a: ResultSet, b: ResultSet) -> int:
    """Return how many trainings are in both sets: of one name, and equal in time to the last bit."""
    times = [["run", "step_s"], *([["run", "train_s"]] if "train_s" in a.runs and "train_s" in b.runs else [])]
    return min(len(a.runs[names].dropna().merge(b.runs[names].dropna(), on=names)) for names in times)


def read(given: str) -> ResultSet:
    """Return a result set by its name or path.

    That of a study; `STUDY@before`, the newest runs of the same specs that other code has made; a folder with runs in
    it, in its `runs` or in its `results/runs`; or a table of runs, `.../tables/runs.parquet`.

    Raises:
        ValueError: there is no such thing, or no run in it.
        RecordError: naming the records that cannot be read.
    """
    path = Path(given)
    if path.is_dir():
        return _folder(given, path)
    is_study = path.suffix == ".yaml"
    if path.is_file() and not is_study:
        return _table(given, path)
    if "/" in given and not is_study:
        raise ValueError(f"{given}: no such folder or file; {_ALLOWED}")
    study_runs = Project.here().study_runs(given.removesuffix(BEFORE))
    if given.endswith(BEFORE):
        return _before(given, study_runs.store, {planned.run for planned in study_runs.planned})
    return ResultSet(given, study_runs.runs, study_runs.store.runs)


_ALLOWED = f"expected: a study, STUDY{BEFORE}, a folder of results, or a table runs.parquet"


def _folder(given: str, path: Path) -> ResultSet:
    for place in PLACES:
        folder = path / place
        if files := [run.record() for run in finished(folder)]:
            return _newest(given, files, folder)
    raise ValueError(f"{given}: no finished run in it, in its `runs` or in its `results/runs`; {_ALLOWED}")


def _table(given: str, file: Path) -> ResultSet:
    try:
        frame = pd.read_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{given}: cannot be read as a table: {error}; {_ALLOWED}") from None
    lacking = sorted({"run", "spec_hash", "seed", "status", "step_s"} - set(frame))
    if lacking:
        raise ValueError(f"{given}: is no table of runs, it has no column {', '.join(lacking)}; {_ALLOWED}")
    return ResultSet(given, frame)


def _before(given: str, store: Store, planned: set[str]) -> ResultSet:
    """Return the newest run by other code of each planned spec that has one."""
    specs = {identity.parts(run)[1] for run in planned}
    others = [run for run in store.finished_runs() if run.path.name not in planned and run.path.name.count("-") > 1]
    files = [run.record() for run in others if identity.parts(run.path.name)[1] in specs]
    if not files:
        raise ValueError(f"{given}: no run of this study by other code lies in {store.runs}")
    return _newest(given, files, store.runs)


def _newest(given: str, files: list[Path], folder: Path) -> ResultSet:
    """Return of several runs of one spec and seed the newest: older ones are of other code."""
    table, problems = records.read_runs(files)
    if problems:
        raise records.RecordError("\n".join(problems.values()))
    frame = table.to_pandas()
    kept = frame.sort_values("ended_at", kind="stable").drop_duplicates("spec_hash", keep="last").sort_index()
    older = len(frame) - len(kept)
    notes = (f"{counted(older, 'run')} of older code left out: the newest of each spec counts",) if older else ()
    return ResultSet(given, kept.reset_index(drop=True), folder, notes)
