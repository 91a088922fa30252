"""The folder of all runs, shared by all studies; a run's journal of attempts lies beside its record."""

import os
from dataclasses import dataclass
from pathlib import Path

from ddp_hpc.system.files import read_json


@dataclass(frozen=True)
class Store:
    """`results/`: one folder per run under `runs/`."""

    root: Path

    def folder(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.root / "runs" / run

    def file(self, run: str, kind: str = "run") -> Path:
        """Return the Parquet file of a run: of a kind of record, e.g. `run`, `steps`."""
        return self.folder(run) / f"{kind}.parquet"

    def finished(self, run: str) -> bool:
        """Return whether the run has ended as a result or a finding."""
        return self.file(run).exists()

    def checkpointed_step(self, run: str) -> int | None:
        """Return the step after which an interrupted run goes on; None: it starts anew."""
        step = read_json(self.folder(run) / "checkpoint" / "checkpoint.json").get("step")
        return int(step) if step else None

    def attempts(self, run: str) -> list[Path]:
        """Return the journals of a run's attempts, the oldest first."""
        try:
            found = [entry for entry in os.scandir(self.folder(run) / "attempts") if entry.name.isdigit()]
        except FileNotFoundError:
            return []
        return [Path(entry.path) for entry in sorted(found, key=lambda entry: int(entry.name))]
