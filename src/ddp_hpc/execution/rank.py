"""The process of one rank: `python -m ddp_hpc.execution.rank ATTEMPT_DIR`, started by an MPI launcher, once per rank.

It reads ATTEMPT_DIR/launch.json, trains, and leaves its records there, run.parquet and others. Whatever
goes wrong on one rank ends all of them: it leaves ATTEMPT_DIR/rank-<r>.json and aborts the launch.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ddp_hpc.execution import mpi_environment
from ddp_hpc.system.files import read_json, write_json
from ddp_hpc.system.process import DONE_FD, INTERRUPTED, rank_from_environment, remember

if TYPE_CHECKING:
    from ddp_hpc.training.result import TrainResult

EXIT_ERROR, EXIT_LAUNCH = 1, 3
LOST = ("Connection closed by peer", "Connection reset by peer", "remote process exited")  # Gloo's words, and NCCL's
LOST_S = 1.0  # after which whoever watches over the rank that has died has said so


def main(arguments: list[str], asked: list[int] | None = None) -> NoReturn:
    """Be one rank, from the first import to the end of the process.

    Args:
        arguments: the folder of the attempt.
        asked: gets an entry when a signal asks the training to end; None: SIGUSR1 is such a signal.
    """
    folder = Path(arguments[0])
    known: dict[str, Any] = {}
    asked = remember(signal.SIGUSR1) if asked is None else asked
    try:
        _work(folder, known, asked)
    except BaseException as error:  # whatever it is, the other ranks must not wait for this one
        _fail(folder, error, known.get("outcome"))
    _leave()


def _work(folder: Path, known: dict[str, Any], asked: list[int]) -> None:
    """Train, and write the records, or say that the training was `asked` to end; `known` gets the outcome early."""
    launch = read_json(folder / "launch.json")
    if not launch:
        raise FileNotFoundError(f"{folder}/launch.json is missing or no JSON: a rank is started by `ddp-hpc train`")
    startup: dict[str, float] = {}

    with _timed(startup, "import_s"):
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False  # done below, so that it can be timed
        from mpi4py import MPI

        from ddp_hpc.config import catalog
        from ddp_hpc.config import spec as specs
        from ddp_hpc.config.errors import LaunchError
        from ddp_hpc.runs import identity
        from ddp_hpc.training import placement
    spec = specs.load(launch["spec"])
    level = catalog.constants("exchange", spec.exchange.name).get("THREADS", "funneled")
    with _timed(startup, "mpi_init_s"):
        MPI.Init_thread({"funneled": MPI.THREAD_FUNNELED, "multiple": MPI.THREAD_MULTIPLE}[level])
        comm = MPI.COMM_WORLD
    place = placement.survey(spec, comm, launch.get("request"))
    _claim(folder / f"rank-{place.rank}.pid", LaunchError)
    if spec.hash != launch["spec_hash"]:
        raise LaunchError(
            f"spec.json holds another spec (hash {spec.hash}) than its run was planned with ({launch['spec_hash']}): "
            "delete that file and plan again"
        )
    with _timed(startup, "code_hash_s"):
        found = identity.code_hash(spec)
    if found != launch["code_hash"]:
        raise LaunchError(
            f"code changed since planning: planned {launch['code_hash']}, on {place.host} it is {found}; plan again"
        )
    note = mpi_environment.set_threads(os.environ, place.threads, place.core_set)
    if note and place.rank == 0:
        print(note, file=sys.stderr)
    with _timed(startup, "import_s"):
        from ddp_hpc.execution import node_meter
        from ddp_hpc.execution.clock_sync import reading
        from ddp_hpc.training.checkpoint import Checkpoints
        from ddp_hpc.training.trainer import Trainer

    tracer = None
    if launch.get("trace"):
        from ddp_hpc.execution.trace_steps import Tracer

        tracer = Tracer(launch["trace"], spec, comm)
    clock = None if place.on_one_host else reading(comm)
    meter, progress = node_meter.NodeMeter(comm), None
    if comm.rank == 0:
        from ddp_hpc.execution.progress_file import ProgressFile, ProgressLine, heading

        file = ProgressFile(folder / "progress.json", spec)
        progress = ProgressLine(spec, file, heading=lambda: heading(place, outcome.device))
    trainer = Trainer(
        spec,
        comm,
        place,
        Path(launch["data_dir"]),
        checkpoints=Checkpoints.of(launch, place.on_one_host, startup, asked),
        report=progress,
        meter=meter.start,
        tracer=tracer,
    )
    known["outcome"] = outcome = trainer.result
    trainer.run()
    if progress:
        progress.close()
    metered = meter.stop()

    if outcome.interrupted:
        if comm.rank == 0:
            content = {"steps": outcome.steps, "saved": outcome.saved, "signal": next(iter(asked), None)}
            write_json(folder / INTERRUPTED, content)
        comm.Barrier()
        MPI.Finalize()
        return

    from ddp_hpc.execution import run_record

    if tracer is not None:
        tracer.write(folder, place)
    parts = run_record.gather(outcome, place, startup, comm, metered, clock)
    if comm.rank == 0:
        # only now: it takes memory, whose peak is in the parts
        worked = node_meter.with_work(metered, trainer.components.replica, outcome.example)
        parts[0] = replace(parts[0], metered=worked)
        nulls = run_record.write(folder, launch, spec, outcome, parts, MPI.Get_library_version())
        if outcome.device == "cuda" and "energy_j" in nulls:
            print(f"GPU metering: energy_j is null: {nulls['energy_j']}", flush=True)
    comm.Barrier()  # nobody is through before the records are written
    MPI.Finalize()


def _claim(file: Path, error: type[Exception]) -> None:
    """Be the only process of this rank in this attempt.

    Raises:
        error: another one was here first.
    """
    try:
        file.open("x").write(f"{os.getpid()}\n")
    except FileExistsError:
        raise error(f"two processes claim to be {file.stem}: the launcher started the run more than once") from None


@contextmanager
def _timed(startup: dict[str, float], part: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    startup[part] = startup.get(part, 0.0) + time.perf_counter() - began


def _leave() -> NoReturn:
    """End the process as done, without waiting for threads that a model or library has left behind."""
    if os.environ.get(DONE_FD):
        os.write(int(os.environ[DONE_FD]), b"done")
    _flush()
    os._exit(0)


def _fail(folder: Path, error: BaseException, outcome: "TrainResult | None") -> NoReturn:
    """Say what happened, and end all ranks."""
    mpi = sys.modules.get("mpi4py.MPI")
    comm = mpi.COMM_WORLD if mpi and mpi.Is_initialized() and not mpi.Is_finalized() else None
    rank = comm.rank if comm else rank_from_environment()
    host, kind, text = socket.gethostname(), _kind_of(error), traceback.format_exc()
    report = {
        "rank": rank,
        "host": host,
        "pid": os.getpid(),
        "error": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "at": time.time(),
        "kind": kind,
    }
    try:
        write_json(folder / f"rank-{rank}.json", report | _curve_of(outcome))
    except Exception as problem:  # a full disk, a broken device: nothing must keep the other ranks waiting
        print(f"rank {rank} on {host}: cannot leave a report: {problem}", file=sys.stderr)
    print(f"{text}rank {rank} on {host}: {type(error).__name__}: {error}", file=sys.stderr)
    _flush()
    if kind == "lost":
        time.sleep(LOST_S)
    code = EXIT_LAUNCH if kind == "launch" else EXIT_ERROR
    if comm:
        comm.Abort(code)
    os._exit(code)


def _kind_of(error: BaseException) -> str:
    """Return `launch`, `oom_gpu`, `oom_host`, `lost` (another rank has gone) or `error`.

    By name and words, because torch may not be there yet.
    """
    names, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
    if "LaunchError" in names:
        return "launch"
    if "OutOfMemoryError" in names or "CUDA error: out of memory" in text or "CUBLAS_STATUS_ALLOC_FAILED" in text:
        return "oom_gpu"
    if "MemoryError" in names or "can't allocate memory" in text:  # the second is torch's, a RuntimeError
        return "oom_host"
    return "lost" if any(words in text for words in LOST) else "error"


def _curve_of(outcome: "TrainResult | None") -> dict[str, Any]:
    """Return the steps of this rank that are known, and their losses up to the first that is not finite."""
    if outcome is None or outcome.clock is None:
        return {"steps": 0, "curve": None}
    from ddp_hpc.execution.rank_series import finite_curve

    t_s, losses = finite_curve(outcome)
    return {"steps": len(losses), "curve": {"t_s": t_s, "rank_loss": losses}}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # whoever read it has gone; a model may have closed it
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
