"""The files here run under mpiexec, one pytest per rank; a test elsewhere starts them with `on_ranks`."""

from collections.abc import Iterator

import pytest
from catalogued import installed
from mpi4py import MPI

from ddp_hpc import catalog


@pytest.fixture(scope="session")
def comm() -> Iterator[MPI.Intracomm]:
    threaded = [name for name in catalog.names("exchange") if "THREADS" in catalog.constants("exchange", name)]
    # as a rank does for the one exchange that it is started for; here come all that are installed, in one process
    MPI.Init_thread(MPI.THREAD_MULTIPLE if any(map(installed, threaded)) else MPI.THREAD_FUNNELED)
    yield MPI.COMM_WORLD
    MPI.Finalize()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A rank that fails ends all: the others would wait for it in the next collective."""
    if report.failed:
        print(f"\nrank {MPI.COMM_WORLD.rank}: {report.nodeid}\n{report.longreprtext}", flush=True)
        MPI.COMM_WORLD.Abort(1)
