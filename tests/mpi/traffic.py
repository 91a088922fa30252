"""What ranks send, by Open MPI's own count: `python traffic.py EXCHANGES LENGTH STEPS`, printed by rank 0 as JSON.

EXCHANGES is a JSON object of exchanges, by any name, as a study writes them. The count is that of Open MPI's component
`pml monitoring`, read through MPI's tools interface (MPI_T, chapter 15 of MPI 4.1), so that nothing before the first
step or after the last is in it. Messages under collectives count too.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
import torch
from exchange import make, replica_of, step
from mpi4py import MPI

CLASS_SIZE = 2  # MPI_T_PVAR_CLASS_SIZE in Open MPI


class NoMonitoringError(RuntimeError):
    """This MPI does not count, or was not told to."""


class Counter:
    """A variable of the tools interface that has one number per rank of `comm`: what was sent there."""

    def __init__(self, name, comm):
        mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
        self._library = ctypes.CDLL(next(path for path in mapped if Path(path).name.startswith("libmpi.so")))
        index, length, provided = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._session, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._comm = ctypes.c_void_p(MPI._handleof(comm))
        self._call("MPI_T_init_thread", MPI.THREAD_SINGLE, ctypes.byref(provided))
        self._call("MPI_T_pvar_get_index", name.encode(), CLASS_SIZE, ctypes.byref(index))
        self._call("MPI_T_pvar_session_create", ctypes.byref(self._session))
        references = map(ctypes.byref, (self._comm, self._handle, length))
        self._call("MPI_T_pvar_handle_alloc", self._session, index, *references)
        self._values = np.zeros(length.value, dtype=np.uint64)
        self._call("MPI_T_pvar_start", self._session, self._handle)

    def _call(self, function, *arguments):
        code = getattr(self._library, function)(*arguments)
        if code:
            raise NoMonitoringError(f"{function} returned {code}")

    def read(self):
        """The sum over all destinations, since the counter was made."""
        self._call("MPI_T_pvar_read", self._session, self._handle, self._values.ctypes.data_as(ctypes.c_void_p))
        return int(self._values.sum())


def measure(given, length, steps, comm, counters):
    """What each rank sent in so many steps, bytes and messages by rank; and the bytes of the buffer."""
    options = {} if isinstance(given, str) else {key: value for key, value in given.items() if key != "name"}
    replica = replica_of(length, dtype=torch.float32)
    exchange = make(given if isinstance(given, str) else given["name"], replica, comm, **options)
    before = [counter.read() for counter in counters]
    for _ in range(steps):
        step(replica, exchange, torch.ones(length))
    sent = [counter.read() - start for counter, start in zip(counters, before, strict=True)]
    if hasattr(exchange, "synchronize"):
        exchange.synchronize()
    exchange.close()
    number_of_bytes, messages = zip(*comm.allgather(sent), strict=True)
    return {"bytes": number_of_bytes, "messages": messages, "buffer": replica.gradients.nbytes}


def main():
    exchanges, length, steps = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    comm = MPI.COMM_WORLD
    try:
        counters = [Counter(f"pml_monitoring_messages_{what}", comm) for what in ("size", "count")]
        found = {name: measure(given, length, steps, comm, counters) for name, given in exchanges.items()}
    except NoMonitoringError as problem:
        found = {"no monitoring": str(problem)}
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
