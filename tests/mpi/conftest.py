"""The files here run under mpiexec, one pytest per rank; a test elsewhere starts them with `on_ranks`."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from catalogued import installed
from mpi4py import MPI

from ddp_hpc.config import catalog
from ddp_hpc.data import digits

digits.build = functools.cache(digits.build)  # hundreds of short trainings read it: half the time of each


@pytest.fixture(scope="session")
def comm() -> Iterator[MPI.Intracomm]:
    threaded = [name for name in catalog.names("exchange") if "THREADS" in catalog.constants("exchange", name)]
    # as a rank does for the one exchange that it is started for; here come all that are installed, in one process
    MPI.Init_thread(MPI.THREAD_MULTIPLE if any(map(installed, threaded)) else MPI.THREAD_FUNNELED)
    yield MPI.COMM_WORLD
    MPI.Finalize()


@pytest.fixture
def folder(comm: MPI.Intracomm, tmp_path: Path) -> Iterator[Path]:
    """One folder for all ranks; what a test left there is removed."""
    chosen = Path(comm.bcast(str(tmp_path / "checkpoint")))
    yield chosen
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(chosen, ignore_errors=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A rank that fails ends all: the others would wait for it in the next collective."""
    if report.failed:
        print(f"\nrank {MPI.COMM_WORLD.rank}: {report.nodeid}\n{report.longreprtext}", flush=True)
        MPI.COMM_WORLD.Abort(1)
