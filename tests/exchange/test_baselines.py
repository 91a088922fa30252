"""Exchanges over torch.distributed, and baselines: where they cannot work."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddp_hpc.config import spec
from ddp_hpc.runs import identity
from ddp_hpc.system.process import boot_id
from ddp_hpc.training.placement import LaunchError, check_exchange

SPEC = {
    "model": "mlp",
    "dataset": "digits",
    "world_size": 1,
    "batch_size": 8,
    "learning_rate": 0.1,
    "budget": {"steps": 1},
}


def test_two_launches_at_once_need_no_two_ports_to_be_free(on_ranks):
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: on_ranks(2, "baselines.py::test_two_groups_at_once_do_not_meet"), range(2)))


def test_nccl_is_refused_on_a_cpu_at_planning_if_that_is_known_and_else_at_the_start():
    with pytest.raises(ValueError, match=r"'nccl' works on cuda, given device=cpu; expected: .*gloo"):
        spec.load(SPEC | {"exchange": "nccl", "device": "cpu"})
    with pytest.raises(LaunchError, match=r"'nccl' works on cuda, and this run is on cpu: expected here: .*gloo"):
        check_exchange(spec.load(SPEC | {"exchange": "nccl"}), SimpleNamespace(hosts=1), torch.device("cpu"))


def test_horovod_that_is_not_there_is_an_error_that_says_what_to_do(monkeypatch):
    from ddp_hpc.exchange import horovod

    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with pytest.raises(LaunchError, match=r"needs the package horovod, built with MPI.*pip install.*or take torch_ddp"):
        horovod.make(None, None, None, None)


@pytest.mark.parametrize(("exchange", "level"), [("horovod", "multiple"), ("ring", "funneled"), ("gloo", "funneled")])
def test_mpi_is_told_of_threads_only_where_the_exchange_has_some(mpiexec, tmp_path, exchange, level):
    given = spec.load(SPEC | {"exchange": exchange})
    launch = {
        "run": identity.run_id(given),
        "spec": given.canonical,
        "world_size": 1,
        "spec_hash": given.hash,
        "code_hash": identity.code_hash(given),
        "launched_on": boot_id(),
        "launched_ns": time.monotonic_ns(),
        "data_dir": str(tmp_path),
        "command": [],
    }
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    mpiexec(1, Path(__file__).parents[1] / "mpi" / "thread_level.py", tmp_path)
    assert json.loads((tmp_path / "rank-0.json").read_text())["message"] == f"threads: {level}"
