"""What libraries of threads read from the environment as they are loaded: a rank has as many threads as it is given.

It imports nothing heavy: torch must come after it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # a quick start
    from collections.abc import Collection, MutableMapping

_NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_FEWER = ("OMP_THREAD_LIMIT", "OMP_DYNAMIC")
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def arrange(environment: MutableMapping[str, str], threads: int, cores: Collection[int]) -> str | None:
    """Set the numbers of threads, and take out what would give the rank fewer; return a note on that, or None.

    With OMP_PROC_BIND=true GNU's OpenMP binds the first thread to the first of the cores that its process may use.
    Ranks to which no launcher has given cores of their own would then all share that one, while the others idle.

    Args:
        environment: of the rank; is changed.
        threads: that it is to have.
        cores: that it may use; as many as its threads: they are its own, and binding to them does no harm.
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
