"""What lies in `results/runs/RUN`, the folder of a run, and in those of the attempts at it: only here files are named.

    spec.json           the run, as it was planned: what its supervisor starts from
    request.json        what the cluster was asked for
    run.parquet, ...    the records, once the run has ended as result or finding
    seal.json           size, date and digest of each of them, by which damage is seen
    weights.safetensors the trained model, if its study keeps it
    beaten.json         the records are of a run that was stopped: it could not win any more
    whole.json          it is not to be stopped
    NAME.aside-<n>      what was damaged, or stood where something of the run belongs
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
        recorded-<r>.jsonl  by a program of one's own, until its run has ended well; group/ while its ranks live
        interrupted.json  by rank 0: asked to end, the ranks have left
        run.parquet, ...  by rank 0, with the weights if they are kept; summary.json says that they are whole
        ended.json        by the supervisor: how the attempt ended
        slurm_end.json    by the driver: how it ended as Slurm says, before Slurm forgets

It imports only the standard library: supervisor and rank watchdog start quickly.
"""

import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

from ddp_hpc.runs.statuses import PEER_FAILURE, STATUSES
from ddp_hpc.system.files import clock_of, leave_out, naming, put_aside, read_json, replaced, write_json

ROOM, ROOM_BYTES = "room", 4096  # kept for `ended.json`, so that a full disk can be told of
RECORDS = ("steps", "evaluations", "gpu", "run")  # in the order in which they are put in place
PLAN, REQUEST, MANIFEST = "spec.json", "request.json", "checkpoint.json"
GROUP = "group"  # of ranks that find each other by files
BEATEN, WHOLE = "beaten.json", "whole.json"
_RECORD, _TRACE, _CHECKPOINT, _ATTEMPTS, _SEAL = "run.parquet", "trace", "checkpoint", "attempts", "seal.json"
_WEIGHTS = "weights.safetensors"

_TYPES: Mapping[str, tuple[type, ...]] = {  # of what programs read, in whichever file of the journal it stands
    "run": (str,),
    "host": (str,),
    "message": (str,),
    "reason": (str, NoneType),
    "error": (str, NoneType),
    "launched_on": (str, NoneType),
    "process_space": (str, NoneType),
    "slurm_cluster": (str, NoneType),
    "signal": (str, int, NoneType),  # its name in an ending, its number when ranks have left
    "at": (str, int, float),
    "pid": (int,),
    "world_size": (int,),
    "rank": (int,),
    "step": (int,),
    "nodes": (int,),
    "ranks_per_node": (int,),
    "steps": (int, NoneType),
    "steps_asked": (int, NoneType),
    "runtime_min": (int, NoneType),
    "mem_mb": (int, NoneType),
    "resumes": (int, NoneType),
    "process_created": (int, float, NoneType),
    "wall_s": (int, float, NoneType),
    "train_s": (int, float, NoneType),
    "startup_s": (int, float, NoneType),
    "lost_s": (int, float, NoneType),
    "eta_s": (int, float, NoneType),
    "memory_bytes": (int, float, NoneType),
    "loss": (int, float, NoneType),
    "spec": (dict,),
    "records": (dict,),
    "request": (dict, NoneType),
    "curve": (dict, NoneType),
    "files": (dict, list),  # hashes by name in a plan, one of each rank in a checkpoint
}


def _wrong(content: Mapping[str, Any]) -> str | None:
    """Return what cannot be meant in an object of the journal; names that are not known here may hold anything."""
    for name, value in content.items():
        expected, types = "", _TYPES.get(name)
        if types and type(value) not in types:  # a truth value is no number
            expected = " or ".join(one.__name__ for one in types)
        elif types and name != "loss" and isinstance(value, int | float) and not abs(value) < 1e300:
            expected = "a finite number"
        elif name == "status" and value not in (*STATUSES, PEER_FAILURE):
            expected = ", ".join(STATUSES)
        elif name == "slurm_job" and value is not None and not re.fullmatch("[0-9]+", str(value)):
            expected = "the number of a job"
        elif name == "request" and value and (fault := _wrong(value)):
            return f"request: {fault}"
        if expected:
            return f"{name}: given {str(value)[:40]}, expected: {expected}"
    return None


class JsonFile:
    """An attribute that is an object in a JSON file of its owner's folder: what is set is written, empty: no file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type) -> dict[str, Any]:
        return read_json(owner.path / self.name, _wrong)

    def __set__(self, owner: Any, content: dict[str, Any]) -> None:
        if content:
            write_json(owner.path / self.name, content)
        else:
            (owner.path / self.name).unlink(missing_ok=True)


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, kind: str = "run") -> Path:
        """Return the Parquet file of a kind of record, e.g. `run`, `steps`."""
        return self.path / f"{kind}.parquet"

    @property
    def weights(self) -> Path:
        """The file of the trained weights, which only some studies keep."""
        return self.path / _WEIGHTS

    def stamps(self) -> dict[str, list[int]]:
        """Return size and date of each record that is there, by kind: another in its place makes other tables."""
        found = {}
        for kind in (_TRACE, *RECORDS):
            with suppress(OSError):
                status = os.stat(self.record(kind))
                found[kind] = [status.st_size * stat.S_ISREG(status.st_mode), status.st_mtime_ns]
        return found

    def entries(self) -> dict[str, list[Any]]:
        """Return what a seal says of the records, after reading them: size, date and digest by kind."""
        return {kind: [*stamp, _digest(self.record(kind))] for kind, stamp in self.stamps().items()}


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
    beaten = JsonFile(BEATEN)
    whole = JsonFile(WHOLE)
    _seal = JsonFile(_SEAL)

    @property
    def was_stopped(self) -> bool:
        """Whether the records are whole, and of a run that was stopped as it could not win any more."""
        return os.path.exists(self.path / BEATEN) and self.finished

    @property
    def finished(self) -> bool:
        """Whether the run has ended as a result or a finding, and its records are whole."""
        return self.has_record and self.damage() is None

    @property
    def has_record(self) -> bool:
        """Whether there is a record of the run, whole or not."""
        return os.path.lexists(self.record())

    def damage(self, trust_dates: bool = True) -> str | None:
        """Return why the records do not count, naming the file; None: they are whole, or there are none.

        A file that has the size and date of the seal is whole, one with another date if it has the digest; without
        `trust_dates` every file is read. Of records without a seal only the footer is looked at.
        """
        if not self.has_record:
            return None
        found, sealed = self.stamps(), self.sealed
        for kind in sealed or dict.fromkeys(("run", "steps", *found) if len(found) > 1 else ("run",)):
            given, expected = found.get(kind), sealed.get(kind)
            if trust_dates and expected and given == expected[:2]:
                continue
            if cause := _fault(self.record(kind), given, expected):
                return f"{self.record(kind)} {cause}"
        if any(found[kind] != entry[:2] and entry[1] for kind, entry in sealed.items()):  # a copy: it is read once
            with suppress(OSError):
                self.sealed = {kind: [*found[kind], entry[2]] for kind, entry in sealed.items()}
        return None

    @property
    def sealed(self) -> dict[str, list[Any]]:
        """Size, date and digest of each record as it was put in place, by kind; empty if that is not known.

        The date is 0 in what was published: no copy has it, and none may change the seal.
        """
        seal = self._seal
        entries = seal.get("records", {}) if seal.get("run") == self.path.name else {}
        whole = all(isinstance(entry, list) and [*map(type, entry)] == [int, int, str] for entry in entries.values())
        return entries if whole and entries.keys() >= set(RECORDS) else {}

    @sealed.setter
    def sealed(self, entries: dict[str, list[Any]]) -> None:
        self._seal = {"run": self.path.name, "records": entries}

    def make_way(self) -> None:
        """Move aside what stands where something of the run belongs: folders for files, files for folders, damage."""
        files = (PLAN, REQUEST, _SEAL, *(f"{kind}.parquet" for kind in (*RECORDS, _TRACE)))
        for name in (".", _ATTEMPTS, _CHECKPOINT, _TRACE, *files):
            place = self.path / name
            if os.path.lexists(place) and place.is_dir() == (name in files):
                put_aside(place)
        if self.damage():
            put_aside(self.record())

    def go_on(self) -> None:
        """Move the record of a run that was stopped aside: it is to go on, from its checkpoint."""
        put_aside(self.record())
        self.beaten = {}

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
        folder, found = self.path / _ATTEMPTS, []
        try:
            for entry in os.scandir(folder):
                if re.fullmatch("[1-9][0-9]{0,8}", entry.name) and entry.is_dir():
                    found.append(Attempt(Path(entry.path)))
                else:
                    leave_out(Path(entry.path), "expected: a folder, the number of an attempt")
        except FileNotFoundError:
            return []
        except OSError as error:
            leave_out(folder, f"cannot be read: {error.strerror}")
        return sorted(found, key=lambda attempt: attempt.number)

    def new_attempt(self) -> "Attempt":
        """Make the folder of the next attempt, which no other process has made."""
        number = max((attempt.number for attempt in self.attempts), default=0)
        while True:
            number += 1
            folder = self.path / _ATTEMPTS / str(number)
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
        shutil.rmtree(self.path / GROUP, ignore_errors=True)
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
        found = [read_json(file, _wrong) for file in self.path.glob("rank-*.json")]
        told = [report for report in found if {"rank", "host", "message"} <= report.keys()]
        return sorted(told, key=lambda report: at if isinstance(at := report.get("at"), int | float) else 0)

    @property
    def is_complete(self) -> bool:
        """Whether the ranks have left all their records."""
        return bool(self.summary) and all(self.record(kind).exists() for kind in RECORDS)

    def trace_file(self, rank: int | None) -> Path:
        """Return the file of the traced steps of one rank; None: of all together."""
        return self.path / _TRACE / ("merged.json.gz" if rank is None else f"rank-{rank}.json.gz")

    def publish(self) -> None:
        """Put records and traces in their place in the folder of the run, under a new seal; the record of it last."""
        try:
            self.run.sealed = self.entries()
        except OSError:  # on a full disk: a result without a seal is a result
            (self.run.path / _SEAL).unlink(missing_ok=True)
        if traced := self.record(_TRACE).exists():
            shutil.rmtree(self.run.path / _TRACE, ignore_errors=True)
            os.replace(self.path / _TRACE, self.run.path / _TRACE)
        if self.weights.exists():
            os.replace(self.weights, self.run.weights)
        else:  # those of another training, whose record this one's replaces
            self.run.weights.unlink(missing_ok=True)
        for kind in (_TRACE,) * traced + RECORDS:
            os.replace(self.record(kind), self.run.record(kind))


class Faults(_Folder):
    """What runs of one `ddp-hpc run` tell each other: a file of each that crashed as others with its fields would."""

    def tell(self, run: str, shared_by: dict[str, Any], reason: str | None) -> None:
        """Tell how a run has crashed, and that all with these fields do so."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / f"{run}.json", {"run": run, "shared_by": shared_by, "reason": reason})

    def met_by(self, spec: Mapping[str, Any]) -> str | None:
        """Return what a run with this canonical spec would meet, as another one did; None: nothing is known."""
        for told in map(read_json, sorted(self.path.glob("*.json"))):
            if told and all(spec.get(name) == value for name, value in told["shared_by"].items()):
                return f"{told['run']}, with the same {' and '.join(told['shared_by'])}, has crashed: {told['reason']}"
        return None


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
    """Return the runs in a folder of runs that have ended as result or finding, by name; damaged ones are named."""
    found = []
    for run in (RunFolder(file.parent) for file in sorted(runs.glob(f"*/{_RECORD}"))):
        if damage := run.damage():
            leave_out(run.path, damage)
        else:
            found.append(run)
    return found


def _fault(file: Path, given: list[int] | None, expected: list[Any] | None) -> str | None:
    """Return what is wrong with a record of the size and date `given`, by what the seal has of it, if there is one."""
    if not given:
        return "is missing, or no file"
    if expected and given[0] != expected[0]:
        return f"is damaged: given {given[0]} bytes, expected: {expected[0]}"
    try:
        if not expected:
            return _misshapen(file)
        if _digest(file) == expected[2]:
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if given == expected[:2]:
        with suppress(OSError):
            os.utime(file)  # nobody is to trust its date again
    return "is damaged: it has other content than its run has left"


def _misshapen(file: Path) -> str | None:
    """Return why a record without a seal is none, or none of the run in whose folder it lies, as its footer says."""
    with open(file, "rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - 8))
        length, magic = opened.read(4), opened.read()
        start = size - 8 - int.from_bytes(length, "little")
        if magic != b"PAR1" or start < 4:
            return f"is damaged: its {size} bytes are no Parquet file"
        opened.seek(start)
        footer = opened.read()
    owned = file.name == _RECORD or b"ddp_hpc.run" in footer
    return "is the record of another run" if owned and file.parent.name.encode() not in footer else None


def _digest(file: Path) -> str:
    import hashlib

    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _date(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
