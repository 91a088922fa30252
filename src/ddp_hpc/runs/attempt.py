"""What lies in `results/runs/RUN`, the folder of a run, and in those of the attempts at it: only here files are named.

    spec.json           the run, as it was planned: what its supervisor starts from
    request.json        what the cluster was asked for
    run.parquet, ...    the records, once the run has ended as result or finding
    checkpoint/         where an interrupted run goes on: checkpoint.json, step-<n>/rank-<r>.pt
    trace/              traced steps: rank-<r>.json.gz, merged.json.gz
    attempts/<k>/       in the order in which they come to be:
        started.json      by the supervisor, as it begins: host, process, Slurm job, request
        alive             its date is that of the supervisor's last sign of life
        launch.json       what the ranks are to do
        rank-<r>.pid      the process of a rank
        progress.json     how far rank 0 is
        rank-<r>.json     by a rank or its watchdog: how it failed
        room              kept by the supervisor for ended.json, for when the disk is full
        interrupted.json  by rank 0: asked to end, the ranks have left
        run.parquet, ...  by rank 0; summary.json says that they are whole
        ended.json        by the supervisor: how the attempt ended
        slurm_end.json    by the driver: how it ended as Slurm says, before Slurm forgets

It imports only the standard library: supervisor and rank watchdog start quickly.
"""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_hpc.system.files import clock_of, naming, read_json, replaced, write_json

ROOM, ROOM_BYTES = "room", 4096  # kept for `ended.json`, so that a full disk can be told of
RECORDS = ("steps", "evaluations", "gpu", "run")  # in the order in which they are put in place
PLAN, REQUEST, MANIFEST = "spec.json", "request.json", "checkpoint.json"
_RECORD, _TRACE, _CHECKPOINT = "run.parquet", "trace", "checkpoint"


class JsonFile:
    """An attribute that is an object in a JSON file of its owner's folder: what is set is written, empty: no file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type) -> dict[str, Any]:
        return read_json(owner.path / self.name)

    def __set__(self, owner: Any, content: dict[str, Any]) -> None:
        if content:
            write_json(owner.path / self.name, content)
        else:
            (owner.path / self.name).unlink(missing_ok=True)


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path


class CheckpointFolder(_Folder):
    """The folder of a run's checkpoint. The parts of the ranks count once the manifest names their step."""

    manifest = JsonFile(MANIFEST)

    def part(self, step: int, rank: int) -> Path:
        """Return the file of one rank."""
        return self.path / f"step-{step}" / f"rank-{rank}.pt"

    def remove_parts(self, step: int) -> None:
        """Remove the files of all ranks that are of one step."""
        shutil.rmtree(self.path / f"step-{step}", ignore_errors=True)

    def remove_parts_but(self, step: int) -> None:
        """Remove all files of ranks that are of other steps."""
        for folder in self.path.glob("step-*"):
            if folder.name != f"step-{step}":
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Remove all."""
        shutil.rmtree(self.path, ignore_errors=True)


class RunFolder(_Folder):
    """The folder of a run."""

    plan = JsonFile(PLAN)
    request = JsonFile(REQUEST)

    def record(self, kind: str = "run") -> Path:
        """Return the Parquet file of a kind of record, e.g. `run`, `steps`."""
        return self.path / f"{kind}.parquet"

    @property
    def finished(self) -> bool:
        """Whether the run has ended as a result or a finding."""
        return self.record().exists()

    @property
    def checkpoint(self) -> CheckpointFolder:
        """Where the run goes on if it was interrupted."""
        return CheckpointFolder(self.path / _CHECKPOINT)

    @property
    def checkpointed_step(self) -> int | None:
        """The step after which an interrupted run goes on; None: it starts anew."""
        step = self.checkpoint.manifest.get("step")
        return int(step) if step else None

    @property
    def attempts(self) -> list["Attempt"]:
        """The attempts at the run, the oldest first."""
        try:
            found = [entry for entry in os.scandir(self.path / "attempts") if entry.name.isdigit()]
        except FileNotFoundError:
            return []
        return [Attempt(Path(entry.path)) for entry in sorted(found, key=lambda entry: int(entry.name))]

    def new_attempt(self) -> "Attempt":
        """Make the folder of the next attempt, which no other process has made."""
        number = max((attempt.number for attempt in self.attempts), default=0)
        while True:
            number += 1
            folder = self.path / "attempts" / str(number)
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                return Attempt(folder.resolve())


class Attempt(_Folder):
    """The folder of one attempt at a run."""

    started = JsonFile("started.json")
    launch = JsonFile("launch.json")
    progress = JsonFile("progress.json")
    interrupted = JsonFile("interrupted.json")
    summary = JsonFile("summary.json")
    ended = JsonFile("ended.json")
    slurm_end = JsonFile("slurm_end.json")

    def keep_room(self) -> None:
        """Take the room on the disk that `end` may need."""
        with naming(self.path / ROOM):
            (self.path / ROOM).write_bytes(bytes(ROOM_BYTES))

    def end(self, content: dict[str, Any]) -> None:
        """Write how the attempt ended: on a full disk, into the room that was kept for it."""
        room = self.path / ROOM
        try:
            self.ended = content
        except OSError:
            reason = str(content.get("reason"))[: ROOM_BYTES // 4]
            with open(room, "r+b") as file:
                file.write(json.dumps(content | {"reason": reason}).encode().ljust(ROOM_BYTES))
            os.replace(room, self.path / "ended.json")
        room.unlink(missing_ok=True)

    @property
    def number(self) -> int:
        """Which attempt it is, from 1."""
        return int(self.path.name)

    @property
    def run(self) -> RunFolder:
        """The run that is tried."""
        return RunFolder(self.path.parents[1])

    @property
    def has_ended(self) -> bool:
        """Whether its supervisor has said how it ended, or the driver what Slurm says of that."""
        return any((self.path / name).exists() for name in ("ended.json", "slurm_end.json"))

    def beat(self) -> None:
        """Give a sign of life."""
        with suppress(OSError):  # a full disk must not end a training
            (self.path / "alive").touch()

    def silent_s(self) -> float:
        """Return the seconds since its supervisor gave a sign of life, if only by making its folder."""
        return clock_of(self.run.path) - (self._last_sign() or _date(self.path))

    def lived_s(self) -> float:
        """Return the seconds from its start to its last sign of life."""
        return self._last_sign() - _date(self.path / "started.json")

    def _last_sign(self) -> float:
        return max(_date(self.path / "alive"), _date(self.path / "started.json"))

    def process_file(self, rank: int) -> Path:
        """Return the file that says which process is a rank."""
        return self.path / f"rank-{rank}.pid"

    def report_file(self, rank: int) -> Path:
        """Return the file in which a rank says how it failed."""
        return self.path / f"rank-{rank}.json"

    def clear(self) -> None:
        """Remove what only living processes need: those that are killed leave it."""
        for file in [*self.path.glob("rank-*.pid"), self.path / ROOM]:
            with suppress(OSError):
                file.unlink()

    @property
    def has_failed(self) -> bool:
        """Whether a rank has said that it failed."""
        return any(self.path.glob("rank-*.json"))

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What ranks have said of how they failed, the first first."""
        return sorted(map(read_json, self.path.glob("rank-*.json")), key=lambda report: report.get("at", 0))

    def record(self, kind: str = "run") -> Path:
        """Return the Parquet file of a kind of record."""
        return self.path / f"{kind}.parquet"

    @property
    def is_complete(self) -> bool:
        """Whether the ranks have left all their records."""
        return bool(self.summary) and all(self.record(kind).exists() for kind in RECORDS)

    def trace_file(self, rank: int | None) -> Path:
        """Return the file of the traced steps of one rank; None: of all together."""
        return self.path / _TRACE / ("merged.json.gz" if rank is None else f"rank-{rank}.json.gz")

    def publish(self) -> None:
        """Put records and traces in their place in the folder of the run, the record of the run last."""
        if self.record(_TRACE).exists():
            shutil.rmtree(self.run.path / _TRACE, ignore_errors=True)
            os.replace(self.path / _TRACE, self.run.path / _TRACE)
            os.replace(self.record(_TRACE), self.run.record(_TRACE))
        for kind in RECORDS:
            os.replace(self.record(kind), self.run.record(kind))


class Store:
    """`results/`: one folder per run under `runs/`, shared by all studies."""

    def __init__(self, root: Path) -> None:
        self.root = root

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

    def code(self, hashed: str) -> Path:
        """Return where the text of a file of our code is kept, by the hash that `files` of a plan or record has."""
        return self.root / "code" / hashed

    def keep_code(self, hashed: str, file: Path) -> None:
        """Keep the text of a file of our code, unless it is there."""
        kept = self.code(hashed)
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replaced(kept) as temporary:
                temporary.write_bytes(file.read_bytes())

    def finished_runs(self) -> list[RunFolder]:
        """Return all runs that have ended as a result or a finding, whichever study asked for them."""
        return finished(self.runs)


def finished(runs: Path) -> list[RunFolder]:
    """Return the runs in a folder of runs that have ended as result or finding, by name."""
    return [RunFolder(file.parent) for file in sorted(runs.glob(f"*/{_RECORD}"))]


def _date(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
