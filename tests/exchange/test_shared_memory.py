"""Exchanges through memory that ranks share: what one process can tell of them."""

import os
import re
import subprocess
import sys

import pytest

from ddp_hpc.config import spec
from ddp_hpc.exchange import _shared_window, hierarchical
from ddp_hpc.execution import mpi_environment
from ddp_hpc.training import placement

POINT = {"model": "mlp", "dataset": "digits", "batch_size": 8, "learning_rate": 0.1, "budget": {"steps": 1}}


def test_parts_cover_the_model_once_and_begin_on_cache_lines():
    for length, parts, itemsize in [(0, 3, 4), (5, 3, 8), (153_441, 7, 4), (1000, 2, 8)]:
        found = _shared_window.slices(length, parts, itemsize)
        assert len(found) == parts
        assert [number for part in found for number in range(length)[part]] == list(range(length))
        assert all(part.start * itemsize % 64 == 0 for part in found if part.start < part.stop)


def test_a_group_on_two_nodes_is_refused_by_name():
    hierarchical.check_groups([(0, 0), (0, 0), (1, 2), (1, 2), (2, 2)], ranks_per_group=2)
    with pytest.raises(placement.LaunchError, match=r"ranks_per_group=2: ranks 2 to 3 .* on 2 nodes.* divides"):
        hierarchical.check_groups([(0, 0), (0, 0), (1, 0), (1, 3), (2, 3)], ranks_per_group=2)


def test_more_ranks_per_group_than_ranks_is_an_error_before_any_job():
    given = POINT | {"world_size": 4, "exchange": {"name": "hierarchical", "ranks_per_group": 5}}
    with pytest.raises(ValueError, match="ranks_per_group=5 with world_size=4, expected: 1 to 4"):
        spec.load(given)


DIES = """
import os, sys, torch
from mpi4py import MPI
from ddp_hpc.exchange._shared_window import share
rows = share(MPI.COMM_WORLD, 1 << 20, torch.float32)
if MPI.COMM_WORLD.rank == 0:
    maps = open("/proc/self/maps").read()
    print("mapped:", *sorted({line.split()[5] for line in maps.splitlines() if "/dev/shm/" in line}), flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), 9)
MPI.COMM_WORLD.Barrier()
"""


def test_a_rank_that_dies_leaves_no_window_behind(mpiexec):
    done = mpiexec(2, "-c", DIES)
    assert done.returncode != 0
    mapped = re.search(r"mapped: (.*)", done.stdout)
    assert mapped, done.stdout
    windows = [name for name in mapped[1].split() if "sm_segment" not in name]  # those are Open MPI's, for messages
    assert windows, mapped[1]
    assert not [name for name in windows if os.path.exists(name)]


def test_a_rank_alone_takes_no_file_that_nobody_would_remove(monkeypatch):
    """Without a launcher Open MPI leaves in /dev/shm what a rank would send to others through, of each run."""
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    look = "from mpi4py import MPI\nprint('maps', *(line for line in open('/proc/self/maps') if '/dev/shm/' in line))"
    environment = mpi_environment.of_launcher(1)
    done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["maps"]
