"""Checkpoints of a training: written by all ranks together, and where the next attempt goes on.

There is one file per rank. They count only once the manifest says so, which names the step and holds their checksums;
it comes last, by rename: what was half written is never read.
Nothing here decides a result: a training that was interrupted ends with the bits of one that was not.
"""

import math
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from mpi4py import MPI

from ddp_hpc.profiling.timers import Timings
from ddp_hpc.runs.attempt import MANIFEST, CheckpointFolder
from ddp_hpc.system.files import clock_of
from ddp_hpc.training.components import Components
from ddp_hpc.training.result import History, TrainResult

FORMAT = 2
_PRINT = partial(print, flush=True)
_PIECE_BYTES = 1 << 22
_KEPT = (  # of the result
    *("evaluations", "own_metrics", "gradient_norms", "compile_s", "warm_up_s", "startup_s", "trained_s"),
    *("evaluation_s", "traced_s", "checkpoint_s", "resumes", "lost_s"),
)


@dataclass
class Checkpoints:
    """The checkpoints of one run, as one rank sees them."""

    folder: CheckpointFolder | None = None  # where they lie; None: none is kept
    # What was launched. A checkpoint of another run, code or world size is not read.
    launch: Mapping[str, Any] = field(default_factory=dict)
    every_s: float = 0.0  # seconds from one to the next; 0: only when the training is asked to end
    one_host: bool = True  # the ranks sit on one, so their clocks can be compared
    # Seconds by part that the start of this attempt took; what a checkpoint holds replaces it.
    startup: dict[str, float] = field(default_factory=dict)
    asked: Sequence[int] = ()  # gets an entry when somebody asks the training to end
    say: Callable[[str], object] = _PRINT  # told, on rank 0, what the user must know
    _next_at: float = math.inf  # of the monotonic clock

    def wait(self) -> None:
        """Count the seconds to the next checkpoint from here."""
        self._next_at = time.monotonic() + self.every_s if self.folder and self.every_s else math.inf

    def due(self) -> bool:
        """Return whether this rank wants a checkpoint now."""
        return time.monotonic() >= self._next_at

    def save(self, step: int, components: Components, result: TrainResult, comm: MPI.Intracomm) -> bool:
        """Write a checkpoint after `step`; return whether there is one now. All ranks of `comm` must call.

        What goes wrong, such as a full disk, is said, and the checkpoint before stays; training can go on.
        """
        if self.folder is None:
            return False
        began = time.perf_counter()
        components.clock.resolve()
        part = self.folder.part(comm.bcast(step), comm.rank)
        problem, file = _write(part, lambda: self._content(step, components, result))
        answers = comm.gather((problem, file))
        if answers is not None:
            problems = (f"rank {rank}: {text}" for rank, (text, _) in enumerate(answers) if text)
            problem = next(problems, None) or self._publish(step, [file for _, file in answers])
            if problem:
                self.folder.remove_parts(step)
                self.say(f"no checkpoint of step {step}, training does not need it: {problem}")
        problem = comm.bcast(problem)
        result.checkpoint_s += time.perf_counter() - began
        self.wait()
        return problem is None

    def _now(self) -> float:
        """Return the time by a clock that the hosts share of which one may go on where another left."""
        return clock_of(self.folder.path.parent) if self.folder else time.time()

    def _content(self, step: int, components: Components, result: TrainResult) -> dict[str, Any]:
        history, known = result.history(), {name: getattr(result, name) for name in _KEPT}
        if not result.resumes:
            known["startup_s"] = result.passed_s(self.launch, result.time_zero_ns)
        return {
            "step": step,
            "state": components.snapshot(to=torch.device("cpu")).values(),
            "losses": torch.from_numpy(history.losses),
            "timings": {name: torch.from_numpy(values) for name, values in asdict(history.timings).items()},
            "outcome": known | {"left_s": result.passed_s(self.launch, time.perf_counter_ns()), "left_at": self._now()},
            "startup": self.startup,
            "one_host": self.one_host,
        }

    def _publish(self, step: int, files: list[dict[str, int]]) -> str | None:
        """Let the files count, and remove those before; return what went wrong."""
        assert self.folder is not None
        try:
            self.folder.manifest = {**self._owner(), "step": step, "files": files}
        except OSError as error:
            return str(error)
        self.folder.remove_parts_but(step)
        return None

    def _owner(self) -> dict[str, Any]:
        owner = {name: self.launch[name] for name in ("run", "spec_hash", "code_hash", "world_size")}
        return {"format": FORMAT, "torch": torch.__version__, **owner}

    def resume(self, components: Components, result: TrainResult, comm: MPI.Intracomm) -> int:
        """Go back to the state of the last checkpoint; return its step on this rank, 0 if there is none.

        All ranks of `comm` must call. One that is not of this run, or not whole, is not used, and why is said.
        """
        if self.folder is None:
            return 0
        there = comm.rank == 0 and (self.folder.path / MANIFEST).exists()
        manifest = comm.bcast(self.folder.manifest if there else None)
        if manifest is None:
            return 0
        problem, content, snapshot = self._stranger(manifest), {}, components.snapshot()
        if problem is None:
            try:
                content = _read(self.folder.part(manifest["step"], comm.rank), manifest["files"][comm.rank])
                snapshot.take_over(content["state"])
            except (OSError, ValueError) as error:
                problem = f"rank {comm.rank}: {error}"
        problems = [text for text in comm.allgather(problem) if text]
        if problems:
            if comm.rank == 0:
                self.say(f"the checkpoint in {self.folder.path} is not used, training starts anew: {problems[0]}")
            return 0
        snapshot.restore()
        self._take_over(content, result)
        if comm.rank == 0:
            self.say(f"training goes on after step {content['step']}, from {self.folder.path}")
        return int(content["step"])

    def _stranger(self, manifest: dict[str, Any]) -> str | None:
        """Return what in a manifest does not belong to this run."""
        for name, value in self._owner().items():
            if manifest.get(name) != value:
                return f"its {name} is {manifest.get(name)}, not {value}"
        complete = isinstance(manifest.get("step"), int) and len(manifest.get("files", ())) == self.launch["world_size"]
        return None if complete else f"{MANIFEST} is not whole"

    def _take_over(self, content: dict[str, Any], result: TrainResult) -> None:
        timings = Timings(**{name: values.numpy() for name, values in content["timings"].items()})
        if not (content["one_host"] and self.one_host):
            timings.arrived_ns[:] = -1  # nobody knows who waited for whom
        result.before = History(content["losses"].numpy(), timings)
        for name, value in content["outcome"].items():
            setattr(result, name, value)
        shared = self._now()  # read first: what passes between the two is not taken for lost
        result.left_at += time.time() - shared
        result.resumes += 1
        self.startup.clear()
        self.startup.update(content["startup"])


class _Out:
    """A file that takes everything: what it cannot write it remembers, for torch would end the process over it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes, self.crc32 = 0, 0
        self.problem: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write, and add to the checksum."""
        if self.problem is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.problem = error
        self.bytes, self.crc32 = self.bytes + len(data), zlib.crc32(data, self.crc32)
        return len(data)

    def flush(self) -> None:
        """Nothing: this is done at the end."""


def _write(file: Path, content: Callable[[], dict[str, Any]]) -> tuple[str | None, dict[str, int]]:
    """Write one rank's part to the disk; return what went wrong, and its length and checksum."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "wb") as opened:
            out = _Out(opened)
            torch.save(content(), out)  # type: ignore[arg-type]
            if out.problem:
                raise out.problem
            opened.flush()
            os.fsync(opened.fileno())
    except (OSError, MemoryError, RuntimeError) as error:  # the last is what torch raises without memory
        return f"{type(error).__name__}: {error}", {}
    return None, {"bytes": out.bytes, "crc32": out.crc32}


def _read(file: Path, expected: Mapping[str, int]) -> dict[str, Any]:
    """Return one rank's part; an OSError or a ValueError says that it cannot be read, or is not what was written."""
    length, checksum = 0, 0
    with open(file, "rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            length, checksum = length + len(piece), zlib.crc32(piece, checksum)
    if (found := {"bytes": length, "crc32": checksum}) != expected:
        raise ValueError(f"{file.name} is {found}, {expected} was written: it is broken, or of another checkpoint")
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content
