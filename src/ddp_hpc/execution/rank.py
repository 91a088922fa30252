"""The process of one rank: `python -m ddp_hpc.execution.rank ATTEMPT_DIR`, started by an MPI launcher, once per rank.

It reads there what was launched, trains, and leaves its records there. Whatever goes wrong on one rank ends all of
them: it leaves a report and aborts the launch.
"""

import gc
import os
import re
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from ddp_hpc.execution import mpi_environment
from ddp_hpc.runs.attempt import PLAN, Attempt, CheckpointFolder, Store
from ddp_hpc.runs.statuses import PEER_FAILURE
from ddp_hpc.system.deadlines import PEER_S
from ddp_hpc.system.files import write_json
from ddp_hpc.system.process import DONE_FD, rank_from_environment, remember

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp_hpc.config.spec import RunSpec
    from ddp_hpc.execution.clock_sync import ClockReading
    from ddp_hpc.execution.node_meter import Metered, NodeMeter
    from ddp_hpc.execution.progress_file import StepProgress
    from ddp_hpc.execution.trace_steps import Tracer
    from ddp_hpc.runs.machine_lease import Entry
    from ddp_hpc.training.placement import Placement
    from ddp_hpc.training.result import TrainResult
    from ddp_hpc.training.trainer import StepTracer, Trainer

EXIT_ERROR, EXIT_LAUNCH = 1, 3
MOST_WARNINGS, WARNING_LENGTH = 20, 300  # that a record keeps of a rank
# how torch, NCCL, Triton and NVIDIA's libraries say that the memory of a GPU, or of the host, does not suffice
NO_MEMORY = re.compile(
    r"out[ _]of[ _]memory|\w*MemoryError\b|bad_alloc\b|can(no|')t allocate memory|cuda failure 2\b"
    r"|CU[A-Z]+_\w*ALLOC\w*FAILED|CUBLAS_STATUS_NOT_INITIALIZED",
    re.IGNORECASE,
)
OF_GPU = re.compile(r"cuda|nccl|cublas|cudnn|cusolver|cusparse|cufft|triton", re.IGNORECASE)
BUSY = "busy or unavailable"  # CUDA's words for a GPU that another process has for itself
LOST = ("Connection closed by peer", "Connection reset by peer", "remote process exited")  # Gloo's words, and NCCL's


def main(arguments: list[str], asked: list[int] | None = None) -> NoReturn:
    """Be one rank of the attempt whose folder is the argument, from the first import to the end of the process.

    `asked` gets an entry when a signal asks the training to end; None: SIGUSR1 is such a signal.
    """
    attempt = Attempt(Path(arguments[0]))
    asked = remember(signal.SIGUSR1) if asked is None else asked
    rank = Rank(attempt, asked)
    try:
        if attempt.launch.get("spec", {}).get("program"):
            from ddp_hpc.execution.program_rank import ProgramRank

            rank = ProgramRank(attempt, asked)
        rank.run()
    except BaseException as error:  # whatever it is, the other ranks must not wait for this one
        _fail(attempt, error, rank.curve)
    if os.environ.get(DONE_FD):
        os.write(int(os.environ[DONE_FD]), b"done")
    _flush()
    os._exit(0)  # without waiting for threads that a model or library has left behind


class Rank:
    """One rank, stage by stage. A stage imports what it needs: torch must not be there before the threads are set."""

    launch: dict[str, Any]
    spec: "RunSpec"
    comm: "MPI.Intracomm"
    place: "Placement"
    clock: "ClockReading | None"  # before the training, where the ranks sit on several hosts
    meter: "NodeMeter"
    tracer: "Tracer | None"
    progress: "StepProgress | None"
    trainer: "Trainer"

    def __init__(self, attempt: Attempt, asked: list[int]) -> None:
        self.attempt, self.asked = attempt, asked
        self.startup: dict[str, float] = {}  # seconds by part of the start
        self.result: TrainResult | None = None  # what the training has left so far; None: it has not begun
        self.lease: Entry | None = None  # of this node
        self.beside = 0  # other trainings on this node, at most
        self.warnings: list[str] = []  # of Python, each text once

    def run(self) -> None:
        """Train, and leave the records, or that the training was asked to end."""
        _keep_warnings(self.warnings)
        self.join()
        self.check_plan()
        self.set_threads()
        self.assemble()
        result = self.trainer.run()
        if self.progress:
            self.progress.close()
        metered = self.meter.stop()
        if result.interrupted:
            self.say_interrupted(result)
        else:
            self.record(result, metered)
        self.leave()

    def join(self) -> None:
        """Read what was launched, and join the other ranks."""
        self.launch = self.attempt.launch
        if not self.launch:
            raise FileNotFoundError(f"nothing was launched in {self.attempt.path}: `ddp-hpc train` starts ranks")
        with self._timed("import_s"):
            import mpi4py

            mpi4py.rc.initialize = mpi4py.rc.finalize = False  # done here, so that it can be timed
            from mpi4py import MPI

            from ddp_hpc.config import catalog
            from ddp_hpc.config import spec as specs
            from ddp_hpc.training import placement
        if project := self.launch.get("project"):
            catalog.use_project(Path(project))
        self.spec = specs.load(self.launch["spec"])
        level = catalog.constants("exchange", self.spec.exchange.name).get("THREADS", "funneled")
        with self._timed("mpi_init_s"), mpi_environment.session_of(self.attempt.started):
            MPI.Init_thread({"funneled": MPI.THREAD_FUNNELED, "multiple": MPI.THREAD_MULTIPLE}[level])
            self.comm = MPI.COMM_WORLD
        self.place = placement.survey(self.spec, self.comm, self.launch.get("request"))

    def check_plan(self) -> None:
        """Be the only process of this rank, with the spec and the code of the plan."""
        from ddp_hpc.config.errors import LaunchError
        from ddp_hpc.runs import identity

        mine = self.attempt.process_file(self.place.rank)
        try:
            mine.open("x").write(f"{os.getpid()}\n")
        except FileExistsError:
            why = f"two processes claim to be {mine.stem}: the launcher started the run more than once"
            raise LaunchError(why) from None
        if self.spec.hash != self.launch["spec_hash"]:
            raise LaunchError(
                f"{PLAN} holds another spec (hash {self.spec.hash}) than its run was planned with "
                f"({self.launch['spec_hash']}): delete that file and plan again"
            )
        with self._timed("code_hash_s"):
            found = identity.code_hash(self.spec)
        if found != self.launch["code_hash"]:
            raise LaunchError(
                f"code changed since planning: planned {self.launch['code_hash']}, on {self.place.host} it is {found}; "
                "plan again"
            )

    def set_threads(self) -> None:
        """Let libraries that are imported from now on use this rank's cores, and its slice of a GPU if it has one."""
        from ddp_hpc.training import placement

        placement.choose_slice(os.environ, self.place.local_rank)
        if self.spec.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS's sums vary
        note = mpi_environment.set_threads(os.environ, self.place.threads, self.place.core_set)
        if note and self.place.rank == 0:
            print(note, file=sys.stderr)

    def assemble(self) -> None:
        """Make the trainer, and the meters beside it."""
        with self._timed("import_s"), _lasting():
            from ddp_hpc.execution.clock_sync import reading
            from ddp_hpc.execution.node_meter import NodeMeter
            from ddp_hpc.execution.progress_file import ProgressFile, StepProgress, heading
            from ddp_hpc.execution.rivals import Rivals
            from ddp_hpc.execution.trace_steps import Tracer
            from ddp_hpc.training.checkpoint import Checkpoints
            from ddp_hpc.training.trainer import Trainer

        spec, comm, place, launch = self.spec, self.comm, self.place, self.launch
        self.tracer = Tracer(launch["trace"], spec, comm) if launch.get("trace") else None
        self.look_around()
        self.clock = None if place.on_one_host else reading(comm)
        self.meter = NodeMeter(comm)
        first_line = lambda: heading(place, self.trainer.result.device)
        self.progress = None if comm.rank else StepProgress(spec, ProgressFile(self.attempt, spec), first_line)
        kept = CheckpointFolder(Path(launch["checkpoint"])) if "checkpoint" in launch else None
        every_s = launch.get("checkpoint_every_s", 0.0)
        rivals = Rivals(Store(self.attempt.run.path.parents[1]), launch["rivals"]) if launch.get("rivals") else None
        self.trainer = Trainer(
            spec,
            comm,
            place,
            Path(launch["data_dir"]),
            checkpoints=Checkpoints(kept, launch, every_s, place.on_one_host, self.startup, self.asked),
            report=self.progress,
            meter=self.meter,
            tracer=self.tracer,
            limit=rivals.limit if rivals else None,
        )
        self.result = self.trainer.result
        if spec.noise_scale_every_steps and spec.global_batch_size > 1:
            from ddp_hpc.execution.noise_scale import NoiseSampler

            self.trainer.tracer = cast("StepTracer", NoiseSampler(spec, comm, self.result, self.tracer))

    def look_around(self) -> None:
        """Count who else trains on this node; one rank of each says that it does, too, for others to see."""
        from ddp_hpc.runs import machine_lease

        project = Path(self.launch.get("project", ""))
        if self.place.local_rank == 0 and self.lease is None:
            self.lease = machine_lease.enter(project, self.launch["run"])
        self.beside = max(self.beside, len(machine_lease.beside(project, self.launch["run"])))

    def say_interrupted(self, result: "TrainResult") -> None:
        """Say that the ranks were asked to end, and have left."""
        if self.comm.rank == 0:
            left = {"steps": result.steps, "saved": result.saved, "signal": next(iter(self.asked), None)}
            self.attempt.interrupted = left

    def record(self, result: "TrainResult", metered: "Metered") -> None:
        """Gather what the ranks have measured; rank 0 writes the records."""
        from mpi4py import MPI

        from ddp_hpc.execution import node_meter, run_record

        if self.tracer is not None:
            self.tracer.write(self.attempt, self.place)
        self.look_around()
        place, startup, clock, told = self.place, self.startup, self.clock, self.warnings
        parts = run_record.gather(result, place, startup, self.comm, metered, clock, warnings=told, beside=self.beside)
        if self.comm.rank == 0:
            # only now: it takes memory, whose peak is in the parts
            worked = node_meter.with_work(metered, self.trainer.components.replica, result.example)
            parts[0] = replace(parts[0], metered=worked)
            if self.launch.get("keep") and not result.diverged:
                parts[0] = replace(parts[0], warnings=(*parts[0].warnings, *self.keep_weights()))
            library = MPI.Get_library_version()
            nulls = run_record.write(self.attempt, self.launch, self.spec, result, parts, library)
            if result.device == "cuda" and "energy_j" in nulls:
                print(f"GPU metering: energy_j is null: {nulls['energy_j']}", flush=True)

    def keep_weights(self) -> list[str]:
        """Write the trained weights beside the records, or return why not: a result must not fail for them."""
        from ddp_hpc.training import weights

        try:
            model, shape = self.trainer.components.replica.model, self.trainer.components.dataset.shape
            weights.save(self.attempt.weights, self.launch["run"], self.spec, model, shape)
        except Exception as error:
            why = f"the weights are not kept: {type(error).__name__}: {error}"[:WARNING_LENGTH]
            print(why, file=sys.stderr)
            return [why]
        return []

    def leave(self) -> None:
        """Leave MPI, when all ranks are through and the records are written."""
        from mpi4py import MPI

        self.comm.Barrier()
        MPI.Finalize()
        if self.lease:
            self.lease.file.unlink(missing_ok=True)

    def curve(self) -> dict[str, Any]:
        """Return the steps of this rank that are known, and their losses up to the first that is not finite."""
        if self.result is None or self.result.clock is None:
            return {"steps": 0, "curve": None}
        from ddp_hpc.execution.rank_series import finite_curve

        t_s, losses = finite_curve(self.result)
        return {"steps": len(losses), "curve": {"t_s": t_s, "rank_loss": losses}}

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.startup[part] = self.startup.get(part, 0.0) + time.perf_counter() - began


@contextmanager
def _lasting() -> Iterator[None]:
    """Let Python never look through what is there at the end for garbage: modules stay.

    Each look takes a tenth of a second with torch, of imports and of some steps later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _keep_warnings(kept: list[str]) -> None:
    """From now on put what Python warns of into `kept`, too."""
    show = warnings.showwarning

    def keep(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = f"{category.__name__}: {message} ({os.path.basename(filename)}:{lineno})"[:WARNING_LENGTH]
        if text not in kept and len(kept) < MOST_WARNINGS:
            kept.append(text)
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = keep


def _fail(attempt: Attempt, error: BaseException, curve: Callable[[], dict[str, Any]]) -> NoReturn:
    """Say what happened, with the `curve` up to there, and end all ranks."""
    mpi = sys.modules.get("mpi4py.MPI")
    comm = mpi.COMM_WORLD if mpi and mpi.Is_initialized() and not mpi.Is_finalized() else None
    rank = comm.rank if comm else rank_from_environment()
    host, status, text = socket.gethostname(), _status_of(error), traceback.format_exc()
    report = {
        "rank": rank,
        "host": host,
        "pid": os.getpid(),
        "error": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "at": time.time(),
        "status": status,
        "shared_by": getattr(error, "shared_by", None),  # fields of the spec: all runs with them fail so
    }
    try:
        write_json(attempt.report_file(rank), report | curve())
    except Exception as problem:  # a full disk, a broken device: nothing must keep the other ranks waiting
        print(f"rank {rank} on {host}: cannot leave a report: {problem}", file=sys.stderr)
    print(f"{text}rank {rank} on {host}: {type(error).__name__}: {error}", file=sys.stderr)
    _flush()
    if status == PEER_FAILURE:
        time.sleep(PEER_S)
    code = EXIT_LAUNCH if status == "launch_failed" else EXIT_ERROR
    if comm:
        comm.Abort(code)
    os._exit(code)


def _status_of(error: BaseException) -> str:
    """Return the status that follows from an error, by its name and words: torch may not be there yet."""
    names, text = {base.__name__ for base in type(error).__mro__}, str(error)
    if "OutOfMemoryError" in names:
        return "oom_gpu"
    if "MemoryError" in names:
        return "oom_host"
    if NO_MEMORY.search(text):
        return "oom_gpu" if OF_GPU.search(text) and "HOST_ALLOC" not in text else "oom_host"
    if "LaunchError" in names or BUSY in text:
        return "launch_failed"
    return PEER_FAILURE if any(words in text for words in LOST) else "crashed"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # whoever read it has gone; a model may have closed it
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
