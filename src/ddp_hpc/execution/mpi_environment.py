"""The environment of an MPI launcher and of the ranks that it starts.

Libraries of threads read theirs as they are loaded: torch must come after `set_threads`, so nothing heavy is imported.
"""

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ddp_hpc.system.process import usable_cores

TERMINAL = "DDP_HPC_TERMINAL"  # "1": somebody watches; MPI launchers give ranks a terminal even where nobody does

_SHARED = Path("/dev/shm")
_IN_SHARED = tuple(f"OMPI_MCA_{part}_backing_directory" for part in ("btl_sm", "btl_vader", "osc_sm", "osc_rdma"))
_SCRATCH = re.compile(r"ddp-hpc-[0-9a-f]{16}")  # whatever a damaged file says, nothing else is ever removed
_NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_FEWER = ("OMP_THREAD_LIMIT", "OMP_DYNAMIC")
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def of_launcher(ranks: int, threads: int | None = None) -> dict[str, str]:
    """Return the environment of a launcher of so many ranks on one node: what Open MPI needs said, unless the user has.

    Others do not read it. Without `threads`, each rank has as many as the node has cores for.
    """
    environment = dict(os.environ)
    defaults = {
        "OMPI_MCA_osc": "^ucx",
        # ofi serves one-sided calls only, which we do not make, and probing for it takes a second; a rank alone on its
        # node sends nothing through shared memory, of which Open MPI leaves a file behind where it has no launcher
        "OMPI_MCA_btl": "^ofi" if ranks > 1 else "^ofi,sm,vader",
        TERMINAL: str(int(sys.stdout.isatty())),
    }
    if os.geteuid() == 0:  # containers; refusing helps nobody there
        defaults |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if threads != 1:  # Open MPI binds each of few ranks to one core, which is right for one thread only
        defaults["PRTE_MCA_hwloc_default_binding_policy"] = "none"
    if ranks > usable_cores():  # waiting ranks must yield, and may share cores
        defaults |= {
            "PRTE_MCA_rmaps_default_mapping_policy": "slot:OVERSUBSCRIBE",  # without `slot` all go to the first node
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
    return defaults | environment


def scratch() -> dict[str, str]:
    """Return, for the journal, the name that the folders of a new launch have, and where temporary files lie."""
    return {"scratch": f"ddp-hpc-{os.urandom(8).hex()}", "tmpdir": os.environ.get("TMPDIR") or "/tmp"}


def _folders(started: Mapping[str, Any]) -> list[Path]:
    name = str(started.get("scratch"))
    return [_SHARED / name, Path(str(started.get("tmpdir"))) / name] if _SCRATCH.fullmatch(name) else []


def for_session(started: Mapping[str, Any]) -> dict[str, str]:
    """Make the folder in which MPI keeps its session on the host of the supervisor; return what tells MPI so."""
    if started.get("host") == os.uname().nodename and _folders(started):
        with suppress(OSError):  # no such place, or no room: MPI says so if it needs it
            session = _folders(started)[1]
            session.mkdir(mode=0o700, exist_ok=True)
            return {"TMPDIR": str(session)}
    return {}


@contextmanager
def session_of(started: Mapping[str, Any]) -> Iterator[None]:
    """Let MPI keep its session there as it starts in a rank; temporary files then lie where the user has them.

    A rank without a launcher, or whose launcher was just killed, starts a session of its own, of which Open MPI leaves
    a folder even when it ends well.
    """
    session = for_session(started)
    os.environ |= session
    yield
    os.environ |= {"TMPDIR": started["tmpdir"]} if session else {}


def for_rank(started: Mapping[str, Any]) -> None:
    """Let what the ranks of this node share lie in a folder of their launch: MPI removes that, but not when killed."""
    for shared in _folders(started)[:1]:
        with suppress(OSError):  # no such memory here, or it is full: MPI says so if it needs it
            shared.mkdir(mode=0o700, exist_ok=True)
            for name in _IN_SHARED:
                os.environ.setdefault(name, str(shared))


def remove_scratch(started: Mapping[str, Any], *, if_empty: bool = False) -> None:
    """Remove the folders of a launch on this host; with `if_empty`, as long as others use them they stay."""
    for folder in _folders(started):
        with suppress(OSError):
            folder.rmdir() if if_empty else shutil.rmtree(folder)


def set_threads(environment: MutableMapping[str, str], threads: int, cores: Collection[int]) -> str | None:
    """Set the numbers of threads, and take out what would give the rank fewer; return a note on that, or None.

    With OMP_PROC_BIND=true GNU's OpenMP binds the first thread to the first of the cores that its process may use.
    Ranks to which no launcher has given cores of their own would then all share that one, while the others idle. As
    many cores as threads are a rank's own, and binding to them does no harm.
    """
    found = [name for name in _FEWER if name in environment]
    if len(cores) > threads:
        found += [name for name in _BINDING if name in environment]
    for name in found:
        del environment[name]
    environment.update(dict.fromkeys(_NUMBERS, str(threads)))
    if not found:
        return None
    return f"{', '.join(found)} of the environment left out: each rank runs {threads} threads on {len(cores)} cores"
