"""Bytes and messages that ranks truly send, by Open MPI's count, against theory and `perfmodel`."""

import json
from functools import cache
from math import ceil, log2
from pathlib import Path

import pytest

from ddp_hpc import perfmodel
from ddp_hpc.config import catalog
from ddp_hpc.exchange._server import PIECE_BYTES

RANKS = [2, 3, 4]
LENGTH = 240_000  # float32: several pieces, and every part of 2, 3 and 4 is whole
STEPS = 4
EXCHANGES = {
    "ring": "ring",
    "ring_overlapped": "ring_overlapped",
    "mpi_allreduce": "mpi_allreduce",
    "mpi_allreduce float16": {"name": "mpi_allreduce", "compression": "float16"},
    "mpi_allreduce top_k": {"name": "mpi_allreduce", "compression": "top_k", "kept": 0.01},
    "shared_memory": "shared_memory",
    "hogwild": "hogwild",
    "hierarchical 1": {"name": "hierarchical", "ranks_per_group": 1},
    "hierarchical 2": {"name": "hierarchical", "ranks_per_group": 2},
    "parameter_server": "parameter_server",
    "gather_server": "gather_server",
    "parameter_server float16": {"name": "parameter_server", "compression": "float16"},
    "parameter_server top_k": {"name": "parameter_server", "compression": "top_k", "kept": 0.01},
    "sharded_server 1": {"name": "sharded_server", "servers": 1},
    "sharded_server 2": {"name": "sharded_server", "servers": 2},
    "sharded_server": "sharded_server",
    "weight_average": "weight_average",
    "weight_average 2": {"name": "weight_average", "period": 2},
    "async_server": "async_server",
}


@cache
def all_sent(mpiexec, ranks):
    """Per exchange: bytes and messages of each rank and step, and the bytes of the buffer."""
    arguments = Path(__file__).parents[1] / "mpi" / "traffic.py", json.dumps(EXCHANGES), LENGTH, STEPS
    # what would count one-sided calls, of which there are none, gives no shared windows
    done = mpiexec(ranks, *arguments, OMPI_MCA_pml_monitoring_enable="1", OMPI_MCA_osc="^ucx,monitoring")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if "no monitoring" in found:
        pytest.skip(f"this MPI does not count what it sends: {found['no monitoring']}")
    return {
        name: ([sent / STEPS for sent in one["bytes"]], [sent / STEPS for sent in one["messages"]], one["buffer"])
        for name, one in found.items()
    }


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["ring", "ring_overlapped"])
def test_each_rank_of_a_ring_sends_two_buffers_less_two_nths(mpiexec, ranks, name):
    sent, messages, buffer = all_sent(mpiexec, ranks)[name]
    assert sent == [2 * (ranks - 1) / ranks * buffer] * ranks
    assert sent[0] == perfmodel.cost(catalog.cost_model(name)[0], buffer, ranks).sent
    rounds = 2 * (ranks - 1)
    assert all(count >= rounds and count % rounds == 0 for count in messages)  # a chunk may go in several pieces


@pytest.mark.parametrize("ranks", RANKS)
def test_everything_of_a_parameter_server_goes_through_rank_0(mpiexec, ranks):
    sent, messages, buffer = all_sent(mpiexec, ranks)["parameter_server"]
    assert sum(sent) == 2 * (ranks - 1) * buffer  # (n-1) gradients in, (n-1) copies of the model out
    assert buffer <= sent[0] <= perfmodel.cost("parameter_server", buffer, ranks).sent  # others may pass weights on
    assert all(one >= buffer for one in sent[1:])
    assert min(messages[1:]) >= ceil(buffer / PIECE_BYTES)


@pytest.mark.parametrize("ranks", RANKS)
def test_gathered_by_mpi_nothing_less_is_sent_and_rank_0_sends_the_weights_alone(mpiexec, ranks):
    """Ranks within a tree of MPI's may pass on what others have sent."""
    sent, _, buffer = all_sent(mpiexec, ranks)["gather_server"]
    assert sum(sent) >= 2 * (ranks - 1) * buffer
    assert buffer <= sent[0] <= (ranks - 1) * buffer
    assert all(one >= buffer for one in sent[1:])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("compression", "part"), [("float16", 1 / 2), ("top_k", 2 * 0.01)])  # an index per value
def test_compression_makes_gradients_smaller_and_leaves_weights_whole(mpiexec, ranks, compression, part):
    sent, _, buffer = all_sent(mpiexec, ranks)[f"parameter_server {compression}"]
    assert sum(sent) == (ranks - 1) * (part * buffer + buffer)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("compression", "part"), [("float16", 1 / 2), ("top_k", 2 * 0.01)])
def test_without_a_server_each_rank_sends_its_compressed_gradients_to_all_others(mpiexec, ranks, compression, part):
    sent, _, buffer = all_sent(mpiexec, ranks)[f"mpi_allreduce {compression}"]
    assert sent == [(ranks - 1) * part * buffer] * ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["shared_memory", "hogwild"])
def test_ranks_that_share_memory_send_no_byte(mpiexec, ranks, name):
    sent, _, buffer = all_sent(mpiexec, ranks)[name]
    assert sent == [perfmodel.cost(catalog.cost_model(name)[0], buffer, ranks).sent] * ranks == [0] * ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("group", [1, 2])
def test_only_the_leaders_of_groups_send_and_they_as_in_a_ring_of_their_own(mpiexec, ranks, group):
    sent, _, buffer = all_sent(mpiexec, ranks)[f"hierarchical {group}"]
    groups = ceil(ranks / group)
    for rank in range(ranks):
        leads = rank % group == 0
        assert sent[rank] == (2 * (groups - 1) / groups * buffer if leads else 0)
        if leads or group > 1:
            known = perfmodel.cost("hierarchical", buffer, ranks, ranks_per_group=group)
            assert sent[rank] == (known.sent if leads else known.sent_by_others)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("servers", [1, 2, None])
def test_servers_share_what_goes_through_them(mpiexec, ranks, servers):
    sent, messages, buffer = all_sent(mpiexec, ranks)[f"sharded_server {servers}" if servers else "sharded_server"]
    number = servers or ranks
    serving = [place * ranks // number for place in range(number)]
    for rank in range(ranks):
        serves = rank in serving
        others = number - serves
        assert sent[rank] == (others + (ranks - 1) * serves) * buffer / number
        known = perfmodel.cost("sharded_server", buffer, ranks, servers=number)
        assert sent[rank] == (known.sent if serves else known.sent_by_others)
        assert messages[rank] == others * ceil(buffer / number / PIECE_BYTES) + (ranks - 1) * serves
    if servers is None:
        assert sent == [2 * (ranks - 1) / ranks * buffer] * ranks  # as in a ring


@pytest.mark.parametrize("ranks", RANKS)
def test_an_allreduce_lies_between_the_least_possible_and_recursive_doubling(mpiexec, ranks):
    sent, _, buffer = all_sent(mpiexec, ranks)["mpi_allreduce"]
    assert 2 * (ranks - 1) * buffer <= sum(sent) <= (ranks * ceil(log2(ranks)) + 2) * buffer


@pytest.mark.parametrize("ranks", RANKS)
def test_averaging_weights_sends_as_much_as_an_allreduce_in_every_periodth_step(mpiexec, ranks):
    found = all_sent(mpiexec, ranks)
    assert found["weight_average"] == found["mpi_allreduce"]
    sent, messages, buffer = found["mpi_allreduce"]
    assert found["weight_average 2"] == ([one / 2 for one in sent], [one / 2 for one in messages], buffer)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_worker_of_an_asynchronous_server_sends_one_message_in_each_step(mpiexec, ranks):
    sent, messages, buffer = all_sent(mpiexec, ranks)["async_server"]
    header = 64
    assert sent[1:] == [buffer + header] * (ranks - 1)
    assert messages[1:] == [1] * (ranks - 1)
    assert sent[0] <= perfmodel.cost("async_server", buffer + header, ranks).sent  # an answer to each gradient at most
