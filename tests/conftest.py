"""What tests share: running a file on several MPI ranks."""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import mpi4py
import pytest
from hypothesis import settings
from launching import MPI_ENVIRONMENT, SLEEPING_WAITS

gc.disable()  # until all modules and tests are there, which stay: `pytest_collection_finish`
mpi4py.rc.initialize = mpi4py.rc.finalize = False  # this process starts launchers: it must be no MPI process itself

# trainings of tests that run side by side do not wait for each other
os.environ["DDP_HPC_TRAININGS"] = tempfile.mkdtemp(prefix="ddp-hpc-trainings-")
atexit.register(shutil.rmtree, os.environ["DDP_HPC_TRAININGS"], ignore_errors=True)

os.environ |= SLEEPING_WAITS  # for the ranks of `ddp-hpc train`, too

settings.register_profile("untimed", deadline=None)  # no test asserts how long anything takes
settings.load_profile("untimed")

MPI_TESTS = Path(__file__).parent / "mpi"

# minutes each: they start first, those that wait beside those that compute, so that none is left alone at the end
LONGEST_FILES = [
    "cluster/test_ends.py",
    "training/test_trainings_on_ranks.py",
    "execution/test_graceful_stop.py",
    "workflow/test_driver.py",
    "exchange/test_exchanges_on_ranks.py",
    "cluster/test_on_slurm.py",
    "execution/test_statuses.py",
    "cluster/test_checkpoints.py",
    "workflow/test_crashes.py",
    "workflow/test_reruns.py",
    "cluster/test_cluster.py",
    "test_documented_commands.py",
    "cluster/test_allocation.py",
    "analysis/figures/test_figures.py",
    "cluster/test_memory.py",
    "training/test_torch_compile.py",
    "bench/test_gpu_check.py",
    "profiling/test_trace.py",
    "publication/test_published_packs.py",
    "workflow/test_new_project.py",
    "execution/test_node_meter.py",
    "analysis/compare/test_synthetic.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Never look through modules and tests for garbage: in every process of tests that takes seconds."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Nor at the end, when pytest looks five times."""
    gc.freeze()


Finished = subprocess.CompletedProcess[str]
Mpiexec = Callable[..., Finished]


def _mpiexec(ranks: int, *arguments: object, timeout_s: float = 60, **environment: str) -> Finished:
    """Run `python ARGUMENTS` on so many ranks; end all of its processes, whatever happens.

    Raises:
        TimeoutExpired: it takes longer: a wrong collective hangs rather than fails.
    """
    launcher = Path(sys.executable).with_name("mpiexec")
    command = [
        str(launcher) if launcher.exists() else "mpiexec",
        "-n",
        str(ranks),
        sys.executable,
        *map(str, arguments),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | MPI_ENVIRONMENT | environment,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # mpiexec then ends the ranks, which lead groups of their own
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return subprocess.CompletedProcess(command, process.returncode, output)


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from this process and all that it starts, unless tests on a GPU are asked for: `-m gpu`."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU, and `-m gpu`")


@pytest.fixture
def mpiexec() -> Mpiexec:
    """Start `python ARGUMENTS` on n ranks: `mpiexec(n, ...)`."""
    return _mpiexec


@pytest.fixture
def on_ranks() -> Callable[..., None]:
    """Run the tests of files in tests/mpi on n ranks, each of which runs pytest: `on_ranks(n, "exchange.py")`."""

    def run(ranks: int, *files: str, timeout_s: float = 500) -> None:
        quiet = ("-q", "-x", "--color=no", "-p", "no:cacheprovider", f"--timeout={timeout_s:.0f}")
        paths = [MPI_TESTS / file for file in files]
        done = _mpiexec(ranks, "-m", "pytest", *quiet, *paths, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout
        assert " passed" in done.stdout, done.stdout

    return run
