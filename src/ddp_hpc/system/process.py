"""Helpers of the processes that watch over others; they import only the standard library, to start quickly."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from ddp_hpc.system.files import id_space, text_of

DONE_FD = "DDP_HPC_DONE_FD"  # number of an open file: the rank writes b"done" there when it has really finished
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)  # by which programs end themselves
_PR_SET_PDEATHSIG = 1


def rank_from_environment() -> int:
    """Return the rank that the launcher says we are, before MPI is up; 0 without a launcher."""
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name, "").isdigit()), 0)


def die_with_parent(number: signal.Signals) -> None:
    """Ask Linux to send this process `number` when its parent dies; elsewhere nothing happens."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return those signals that whoever started us does not want ignored, as `nohup` does SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


def remember(number: signal.Signals) -> list[int]:
    """Let a signal do nothing but add its number to the list that is returned."""
    asked: list[int] = []
    signal.signal(number, lambda number, frame: asked.append(number))
    signal.siginterrupt(number, False)  # what MPI is waiting for goes on
    return asked


def process_created(pid: int) -> int | None:
    """Return when a process of this host was created, in the kernel's clock ticks; None if there is none.

    With the process id it names a process for good: ids are used again, this pair is not.
    """
    stat = text_of(Path(f"/proc/{pid}/stat"))
    return int(stat.rsplit(")", 1)[1].split()[19]) if stat else None


def boot_id() -> str:
    """Return what processes that read the same monotonic clock have in common: the boot of their host's kernel."""
    return text_of(Path("/proc/sys/kernel/random/boot_id")).strip() or os.uname().nodename


def ourselves() -> dict[str, Any]:
    """Return what names this process to others, for `lives`: its host, its id, since when, and where ids are seen."""
    return _here() | {"pid": os.getpid(), "process_created": process_created(os.getpid())}


def lives(named: Mapping[str, Any]) -> bool | None:
    """Return whether the process lives that `named` is of, from `ourselves`; None: it cannot be seen from here."""
    if any(named.get(name, ours) != ours for name, ours in _here().items()):
        return None
    created = process_created(named["pid"]) if "pid" in named else None
    return created is not None and created == named.get("process_created")


def _here() -> dict[str, str]:
    """Return what processes that see each other by their ids have in common: host, kernel and namespace of ids."""
    host, space = os.uname().nodename, id_space()
    return {"host": host, "process_space": f"{boot_id()} {space}" if space else host}


def path_with_own_scripts() -> str:
    """Return PATH with the scripts of our own environment first: ddp-hpc, and an MPI that came with it."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def gpus_shown(environment: Mapping[str, str], folder: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return how many NVIDIA GPUs Linux shows here and CUDA_VISIBLE_DEVICES leaves, MIG slices too; without CUDA."""
    found = len(list(folder.iterdir())) if folder.is_dir() else 0
    named = environment.get("CUDA_VISIBLE_DEVICES")
    return found if named is None or not found else len([name for name in named.split(",") if name.strip()])


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Fork:
    """A copy of this process that goes on with `work`, to its exit; like a `subprocess.Popen`, as far as needed here.

    It saves the start of a second interpreter, which is most of what supervising a single rank costs.
    """

    def __init__(self, work: Callable[[], NoReturn], environment: Mapping[str, str]) -> None:
        end, start = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()  # of the child, which leads a session of its own and ends when we do
        if self.pid == 0:
            os.setsid()
            die_with_parent(signal.SIGTERM)
            for number in heeded(signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(start, 2)
            os.close(end)
            os.environ.clear()
            os.environ.update(environment)
            try:
                work()
            except SystemExit as ended:
                os._exit(int(ended.code or 0))
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(1)
        os.close(start)
        self.stderr: IO[bytes] = os.fdopen(end, "rb")
        self.returncode: int | None = None  # as of Popen; None while it runs
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the child runs."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # somebody else has waited for it
                    self.returncode = 1
                else:
                    self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self) -> int | None:
        """Wait until the child has ended, and return its exit code."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send the child a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)
