"""One rank of a training program of one's own: it runs the command beside meters, and leaves what that recorded.

MPI, torch and the GPU are left to the program: ranks find each other by files, and the variables are torchrun's.
"""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_hpc.execution import mpi_environment
from ddp_hpc.execution.file_group import FileGroup, size_from_environment
from ddp_hpc.execution.program_recording import Reader, Recording, RecordingError
from ddp_hpc.execution.rank import Rank
from ddp_hpc.profiling import contention, nvml, provenance
from ddp_hpc.profiling.contention import Contention
from ddp_hpc.profiling.telemetry import NodeSamples, NodeTelemetry, metered_by
from ddp_hpc.runs.attempt import GROUP, CheckpointFolder
from ddp_hpc.runs.recorder import FILE, FOLDER
from ddp_hpc.system.process import DONE_FD, die_with_parent, path_with_own_scripts, rank_from_environment
from ddp_hpc.training.placement import Placement

if TYPE_CHECKING:
    from ddp_hpc.execution.progress_file import StepProgress

LOOK_S, TELL_S = 0.02, 1.0  # how often it looks whether the program has ended, and how far it is
LAST_LINES = 12  # of what the program said, in the reason of a failure


class ProgramError(RuntimeError):
    """The program did not end well, or recorded nothing."""


@dataclass(frozen=True, kw_only=True)
class ProgramPart:
    """What is known of one rank's program."""

    recording: Recording
    placement: Placement
    peak_memory_bytes: int  # of its process, the most
    began_s: float  # the process, on the host's monotonic clock
    ended_s: float
    crowding: Contention  # of its whole life
    samples: NodeSamples | None  # of the first rank of a node, and of those whose GPU that does not see
    ranks: tuple[int, ...]  # of the node
    facts: dict[str, Any]
    startup: dict[str, float]


class ProgramRank(Rank):
    """A rank whose training is a command."""

    group: FileGroup
    kept: CheckpointFolder
    gpu: dict[str, Any] | None
    meter_of_node: NodeTelemetry | None
    node_ranks: tuple[int, ...]
    recorded: Path  # the file to which the program writes
    reader: Reader
    first_launch: dict[str, Any]  # of the first attempt that recorded something
    part: ProgramPart

    def run(self) -> None:
        """Run the program to its end, and leave the records, or that it was asked to end."""
        self.join()
        self.check_plan()
        self.set_threads()
        self.prepare()
        code, said = self.train()
        recording = self.part.recording
        steps_asked = self.spec.steps_asked
        early = recording.stopped or (steps_asked is not None and recording.steps < steps_asked)
        if code and not recording.diverged:
            raise ProgramError(f"`{self.command}` {_how(code)}; its last words: {said or 'none'}")
        if any(self.group.allgather(bool(self.asked) and early and not recording.diverged)):
            self.interrupt()
        elif not self.place.rank and not recording.steps:
            why = "with exit code 0, but recorded no step: call record.step() of ddp_hpc.recorder(), or write lines to"
            raise ProgramError(f"`{self.command}` ended {why} the file that {FILE} names; its last words: {said}")
        else:
            self.leave_record()

    def join(self) -> None:
        """Read what was launched, and find the other ranks."""
        from ddp_hpc.config import catalog
        from ddp_hpc.config import spec as specs

        self.launch = self.attempt.launch
        catalog.use_project(Path(self.launch["project"]))
        self.spec = specs.load(self.launch["spec"])
        alone = self.launch["command"][0] == sys.executable  # by no launcher: a job's variables say nothing of it
        rank, world = (0, 1) if alone else (rank_from_environment(), size_from_environment())
        self.group = FileGroup(self.attempt.path / GROUP, tuple(range(world)), rank)
        with self._timed("mpi_init_s"):
            from ddp_hpc.training import placement

            self.place = placement.survey(self.spec, self.group, self.launch.get("request"))  # type: ignore[arg-type]

    def prepare(self) -> None:
        """Find this rank's GPU, start the meter, and take over what an earlier attempt has recorded."""
        from ddp_hpc.training.placement import check_gpus

        place = self.place
        gpus = [] if self.spec.device == "cpu" else nvml.visible(os.environ)
        if self.spec.device == "cuda" and not gpus:
            from ddp_hpc.config.errors import LaunchError

            raise LaunchError(f"device: cuda, but NVML sees no GPU on {place.host}: ask for one GPU per rank")
        self.gpu = gpus[place.local_rank % len(gpus)] if gpus else None
        uuid = self.gpu["uuid"] if self.gpu else None
        check_gpus(self.group.allgather((place.host, uuid)), self.spec)
        node = self.group.Split_type(0)
        found = node.allgather((place.rank, uuid, {gpu["uuid"] for gpu in gpus}))
        self.node_ranks = tuple(rank for rank, *_ in found)
        own = metered_by(place.rank, found)
        self.meter_of_node = NodeTelemetry(own) if own or not node.rank else None
        self.kept = CheckpointFolder(Path(self.launch["checkpoint"]))
        self.recorded = self.attempt.path / f"recorded-{place.rank}.jsonl"
        earlier = [one for one in self.attempt.run.attempts if (one.path / self.recorded.name).exists()]
        self.first_launch = earlier[0].launch if earlier else self.launch
        if earlier:  # each holds what was recorded before it
            shutil.copyfile(earlier[-1].path / self.recorded.name, self.recorded)
        self.reader = Reader(self.recorded)

    @property
    def command(self) -> str:
        """The command of this run, as one would type it."""
        assert self.spec.program
        return shlex.join(self.spec.program.words(self.spec.values))

    def environment(self) -> dict[str, str]:
        """Return the environment of the program: torchrun's variables, and where it records. All ranks must call."""
        place, host = self.place, socket.gethostname()
        with socket.socket() as free:
            free.bind(("", 0))
            first = self.group.bcast((host, free.getsockname()[1]))
        kept = {name: value for name, value in os.environ.items() if name != DONE_FD}
        return kept | {
            **mpi_environment.for_session(self.attempt.started),
            "PATH": path_with_own_scripts(),
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.world_size),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(len(self.node_ranks)),
            "MASTER_ADDR": "127.0.0.1" if place.on_one_host else first[0],
            "MASTER_PORT": str(first[1]),
            FILE: str(self.recorded),
            FOLDER: str(self.kept.path / "program"),
        }

    def train(self) -> tuple[int, str]:
        """Run the program to its end; return its exit code, negative for a signal, and its last words."""
        assert self.spec.program
        words, environment = self.spec.program.words(self.spec.values), self.environment()
        before, began_s = contention.read(), time.monotonic()
        try:
            process = subprocess.Popen(
                words,
                cwd=self.launch["project"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,  # who signals a rank by its group, as Slurm does, leaves the program to us
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            why = f"{error.strerror}; expected: a program in PATH, or a path from {self.launch['project']}"
            raise ProgramError(f"`{self.command}` cannot be started: {why}") from None
        said: deque[str] = deque(maxlen=LAST_LINES)
        reader = threading.Thread(target=_copy, args=(process, said), daemon=True)
        reader.start()
        code, used = self._wait(process)
        reader.join(timeout=2)
        ended_s = time.monotonic()
        cores = contention.between(before, contention.read(), ended_s - began_s)
        own_s = used.ru_utime + used.ru_stime
        self.part = ProgramPart(
            recording=self.reader.read(),
            placement=self.place,
            peak_memory_bytes=used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            began_s=began_s,
            ended_s=ended_s,
            crowding=Contention(None, cores.busy_s, own_s, ended_s - began_s, cores.throttled_share),
            samples=self.meter_of_node.stop() if self.meter_of_node else None,
            ranks=self.node_ranks,
            facts=provenance.processor() | {"gpu": self.gpu},
            startup=self.startup,
        )
        return code, "\n".join(said)

    def _wait(self, process: "subprocess.Popen[bytes]") -> tuple[int, Any]:
        """Wait for the program; tell it to end if we are asked to, and say how far it is."""
        from ddp_hpc.execution.progress_file import ProgressFile, StepProgress, heading

        progress, told, tell_at = None, False, time.monotonic() + TELL_S
        if not self.place.rank:
            first_line = lambda: heading(self.place, "cuda" if self.gpu else "cpu")
            progress = StepProgress(self.spec, ProgressFile(self.attempt, self.spec), first_line)
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if self.asked and not told:
                told = True
                with suppress(RecordingError, ProcessLookupError):
                    if listens := self.reader.read().listens:
                        os.kill(*listens)
            if progress and time.monotonic() > tell_at:
                tell_at = time.monotonic() + TELL_S
                _tell(progress, self.reader)
            time.sleep(LOOK_S)
        process.returncode = os.waitstatus_to_exitcode(status)
        if progress:
            _tell(progress, self.reader)
            progress.close()
        return process.returncode, used

    def interrupt(self) -> None:
        """Say that the ranks were asked to end, and have left."""
        if self.place.rank:
            return
        steps = self.part.recording.steps
        saved = any((self.kept.path / "program").glob("*"))
        if saved:
            self.kept.manifest = {"step": steps, "spec_hash": self.launch["spec_hash"]}
        self.attempt.interrupted = {"steps": steps, "saved": saved, "signal": next(iter(self.asked), None)}

    def leave_record(self) -> None:
        """Gather what the ranks have recorded; rank 0 writes the records."""
        parts = self.group.gather(self.part)
        if parts is not None:
            from ddp_hpc.execution import program_record

            program_record.write(self.attempt, self.launch, self.spec, parts, self.first_launch)
            for attempt in self.attempt.run.attempts:
                for file in attempt.path.glob("recorded-*.jsonl"):
                    file.unlink()
        self.group.Barrier()

    def curve(self) -> dict[str, Any]:
        """Return what this rank has recorded, up to the first loss that is not finite."""
        reader = vars(self).get("reader")
        return _curve(reader.recording if reader else Recording())


def _curve(recording: Recording) -> dict[str, Any]:
    from itertools import accumulate, takewhile
    from math import isfinite

    losses = list(takewhile(lambda loss: loss is not None and isfinite(loss), recording.loss))
    t_s = list(accumulate(recording.step_s))
    return {"steps": recording.steps, "curve": {"t_s": t_s[: len(losses)], "rank_loss": losses}}


def _copy(process: "subprocess.Popen[bytes]", said: "deque[str]") -> None:
    assert process.stderr is not None
    for line in process.stderr:
        with suppress(OSError):  # whoever read it has gone: keep draining, or the program waits for ever
            os.write(2, line)
        if text := line.decode(errors="replace").rstrip():
            said.append(text)


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _tell(progress: "StepProgress", reader: Reader) -> None:
    with suppress(RecordingError, OSError):  # at the end it is told
        recording = reader.read()
        if recording.steps:
            loss = recording.loss[-1]
            progress(recording.steps, float("nan") if loss is None else loss, sum(recording.step_s))
