"""The environment of an MPI launcher and of the ranks that it starts.

Libraries of threads read theirs as they are loaded: torch must come after `set_threads`, so nothing heavy is imported.
"""

import os
import sys
from collections.abc import Collection, MutableMapping

from ddp_hpc.system.process import usable_cores

TERMINAL = "DDP_HPC_TERMINAL"  # "1": somebody watches; MPI launchers give ranks a terminal even where nobody does

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
