"""The folder of all runs, shared by all studies."""

from dataclasses import dataclass
from pathlib import Path

from ddp_hpc.runs.attempt import Attempt, RunFolder, finished


@dataclass(frozen=True)
class Store:
    """`results/`: one folder per run under `runs/`."""

    root: Path

    @property
    def runs(self) -> Path:
        """The folder in which the runs lie."""
        return self.root / "runs"

    def run(self, run: str) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.runs / run)

    def file(self, run: str, kind: str = "run") -> Path:
        """Return the Parquet file of a run: of a kind of record, e.g. `run`, `steps`."""
        return self.run(run).record(kind)

    def finished(self, run: str) -> bool:
        """Return whether the run has ended as a result or a finding."""
        return self.run(run).finished

    def attempts(self, run: str) -> list[Attempt]:
        """Return the attempts at a run, the oldest first."""
        return self.run(run).attempts

    def finished_runs(self) -> list[RunFolder]:
        """Return all runs that have ended as a result or a finding, whichever study asked for them."""
        return finished(self.runs)
