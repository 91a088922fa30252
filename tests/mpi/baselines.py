"""Exchanges over torch.distributed, and baselines, on several ranks: what the tests of all exchanges do not ask."""

import os
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from catalogued import installed
from exchange import make, replica_of, step
from mpi4py import MPI
from training import run

from ddp_hpc.exchange import _torch_distributed as group
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.training import components, trainer
from ddp_hpc.training.placement import LaunchError

VARIANTS = [
    {"name": "torch_ddp", "tuned": True},
    {"name": "torch_ddp", "find_unused_parameters": True},
    {"name": "torch_ddp", "bucket_mb": 0.001},
]
MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01, "learning_rate": 0.1}
ADAM = {"optimizer": "adam", "learning_rate": 0.01}


@pytest.mark.parametrize("rule", [MOMENTUM, ADAM])
@pytest.mark.parametrize("exchange", VARIANTS)
def test_every_form_of_ddp_follows_one_rank_with_the_whole_batch(comm, exchange, rule):
    _, expected, _ = run(MPI.COMM_SELF, exchange="none", batch_size=12 * comm.size, dtype="float64", **rule)
    _, replica, _ = run(comm, exchange=exchange, dtype="float64", **rule)
    np.testing.assert_allclose(replica.weights, expected.weights, rtol=0, atol=1e-11)


@pytest.mark.parametrize("rule", [MOMENTUM, ADAM])
def test_warm_up_leaves_no_trace_in_a_baseline(comm, monkeypatch, rule):
    # steps must be equal to the last bit, so a baseline that adds in another order each time shows it within rounding
    baselines = [
        "gloo",
        "torch_ddp",
        {"name": "torch_ddp", "tuned": True},
        *(["horovod"] if installed("horovod") else []),
    ]
    for exchange in baselines:
        monkeypatch.setattr(trainer, "WARM_UP_STEPS", 3)
        warmed = run(comm, exchange=exchange, dtype="float64", **rule)[0].losses[3:]
        monkeypatch.setattr(trainer, "WARM_UP_STEPS", 1)
        np.testing.assert_allclose(run(comm, exchange=exchange, dtype="float64", **rule)[0].losses[1:], warmed, 1e-12)


@pytest.mark.parametrize(("wire", "step_of_grid"), [("float16", 2**-10), ("bfloat16", 2**-7)])
def test_gradients_travel_in_halves_and_come_back_as_the_mean_of_what_was_sent(comm, wire, step_of_grid):
    replica = replica_of(4)
    exchange = make("gloo", replica, comm, wire=wire)
    # of these, divided by the ranks, a half has room for: all of it; all; nothing beyond its grid; a sum over 65504
    mine = torch.tensor([comm.size * (1.0 + comm.rank), -comm.size, comm.size * (1 + step_of_grid / 8), 32768.0])
    step(replica, exchange, mine)
    exchange.close()
    mean = 1 - replica.model.parts[0].detach()
    ranks = comm.size
    assert mean[:3].tolist() == [ranks * (ranks + 1) / 2, -ranks, ranks]
    assert mean[3] == pytest.approx(32768, rel=4 * step_of_grid)


def test_two_groups_at_once_do_not_meet(comm):
    half = comm.Split(comm.rank % 2)
    group.start("gloo", half)
    total = torch.tensor(float(comm.rank))
    dist.all_reduce(total)
    group.stop(half)
    half.Free()
    assert total == sum(range(comm.rank % 2, comm.size, 2))


def test_a_rank_that_is_told_a_wrong_port_says_what_to_check_and_nobody_waits_for_ever(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("a rank that is alone connects to nobody")
    monkeypatch.setattr(group, "CONNECT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    misled = SimpleNamespace(
        rank=comm.rank,
        size=comm.size,
        Split_type=comm.Split_type,
        allreduce=comm.allreduce,
        bcast=lambda told: told if comm.rank == 0 else ("127.0.0.1", nobody),
    )
    with pytest.raises(LaunchError, match=r"cannot join gloo at 127\.0\.0\.1:\d+ within 2 s .*no firewall"):
        group.start("gloo", misled)
    comm.Barrier()


def test_a_gpu_joins_nccl_at_the_start_and_what_goes_wrong_is_told_with_what_to_do(comm, monkeypatch):
    joined = []

    def refuse(backend, device_id, **how):
        joined.append((backend, device_id))
        raise dist.DistBackendError("NCCL error: no socket interface found")

    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", refuse)
    with pytest.raises(LaunchError, match=r"cannot join nccl .*no socket interface found.*NCCL_SOCKET_IFNAME"):
        group.start("nccl", comm, torch.device("cuda", 0))
    assert joined == [("nccl", torch.device("cuda", 0))]


HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@pytest.mark.parametrize(("options", "user", "told"), [({}, None, None), (True, None, "0"), (True, "3", "3")])
def test_ddp_in_a_graph_starts_nccl_without_its_handling_of_errors(comm, monkeypatch, options, user, told):
    """As torch's notes on CUDA graphs say; a user's choice is kept."""
    monkeypatch.delenv(HANDLING, raising=False)
    if user:
        monkeypatch.setenv(HANDLING, user)
    said, start = [], group.start
    monkeypatch.setattr(group, "start", lambda *given: (said.append(os.environ.get(HANDLING)), start(*given)))
    given = {"tuned": True, "captured": True} if options else {}
    make("torch_ddp", replica_of(4), comm, **given).close()
    assert (said, os.environ.get(HANDLING)) == ([told], user)


def test_a_users_choice_of_network_is_kept(comm, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_network")
    with pytest.raises(LaunchError, match="GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME choose the network"):
        group.start("gloo", comm)
    comm.Barrier()


def test_time_in_which_ddp_waits_for_a_slow_rank_is_exchange_and_not_backward(comm, monkeypatch):
    delay_s, make_batches = 0.1, components.sampler.make_batches

    def slow(given, rank, samples, device):
        batch = make_batches(given, rank, samples, device)
        return lambda step: (time.sleep(delay_s), batch(step))[1]

    if comm.rank == 0:
        monkeypatch.setattr(components.sampler, "make_batches", slow)
    _, _, curves = run(comm, exchange="torch_ddp", budget={"steps": 10})
    if comm.rank == 0 and comm.size > 1:
        of = lambda phase: np.median(curves.phases_s[curves.counted, :, PHASES.index(phase)], axis=0)
        assert (of("exchange_exposed_s")[1:] > 0.5 * delay_s).all()
        assert (of("backward_s") < 0.5 * delay_s).all()
        assert (np.median(curves.wait_s[curves.counted], axis=0)[1:] > 0.5 * delay_s).all()
