"""Exchanges on a GPU, as far as a CPU can tell: what overlaps, and what is copied to the host."""

from collections import Counter
from threading import Thread
from types import SimpleNamespace

import fake_cuda
import pytest
import torch
from fake_cuda import current
from torch import nn

from ddp_hpc.exchange import (
    _direct_bucket,
    _direct_gather,
    _torch_distributed,
    hierarchical,
    parameter_server,
    ring_overlapped,
)
from ddp_hpc.models._replica import Span


class Ranks:
    """A communicator of two ranks, of which the other answers at once; of each tag it gives and expects one, then other
    numbers. It reads and writes memory as it is, whatever is queued that will change it.

    Gradients are ones here and fives there, so their mean is three.
    """

    rank, size = 0, 2

    def __init__(self, said, given=(5, 3), expected=(1, 3)):
        self.said, self.given, self.expected = said, given, expected
        self.received, self.sent = Counter(), Counter()

    def Isend(self, outgoing, to, tag):  # noqa: N802
        assert set(plain(outgoing).tolist()) == {self.expected[self.sent[tag] % 2]}
        self.sent[tag] += 1
        self.said.append(("sent", tag))

    def Irecv(self, incoming, source, tag):  # noqa: N802
        plain(incoming)[:] = self.given[self.received[tag] % 2]
        self.received[tag] += 1

    def Split_type(self, *_, **__):  # noqa: N802
        return self

    def Free(self):  # noqa: N802
        pass

    def allgather(self, mine):
        return [mine] * self.size

    def bcast(self, mine):
        return mine


def plain(memory):
    return torch.as_tensor(memory).as_subclass(torch.Tensor)


class Marks(list):
    """Timers that remember when the gradients were complete."""

    def arrived(self):
        self.append("arrived")

    def overlapped(self, seconds):
        self.append("overlapped")

    def mark(self, phase, part=None):
        pass


@pytest.fixture
def replica(monkeypatch):
    """Two layers of ten numbers each on a GPU."""
    fake_cuda.install(monkeypatch)
    parameters = [nn.Parameter(torch.zeros(10)) for _ in range(2)]
    spans = [Span(parameter, 10 * number, 10 * number + 10) for number, parameter in enumerate(parameters)]
    zeros = fake_cuda.on_device(torch.zeros(20))
    return SimpleNamespace(weights=zeros, gradients=fake_cuda.on_device(zeros), spans=spans)


def optimizer(weights, gradients):
    return SimpleNamespace(step=lambda: None)


@pytest.mark.parametrize("path", ["host", "direct"])
def test_the_last_layers_gradients_go_round_while_the_gpu_computes_the_others(replica, monkeypatch, path):
    """Autograd queues all of the backward pass at once, from a thread that an MPI need not let call it."""
    request = SimpleNamespace(Testall=lambda requests: True, Waitall=lambda requests: None)
    funneled = SimpleNamespace(Request=request, Query_thread=lambda: 1, THREAD_SERIALIZED=2)
    monkeypatch.setattr(ring_overlapped, "MPI", funneled)
    monkeypatch.setattr(_direct_bucket, "MPI", funneled)
    said = Marks()
    exchange = ring_overlapped.make(replica, Ranks(said), said, optimizer, bucket_mb=1e-6, gpu_path=path)

    def backward():
        for bucket, layer in enumerate((1, 0)):
            part = replica.gradients.as_subclass(torch.Tensor)[10 * layer : 10 * layer + 10]
            for _ in range(1 if layer else 10):  # kernels
                current[-1].add(lambda part=part, layer=layer: (part.fill_(1), said.append(("computed", layer))))
            exchange._hook(exchange._buckets[bucket])(replica.spans[layer].parameter)

    autograd = Thread(target=backward)
    autograd.start()
    autograd.join()
    assert not said
    exchange.update()

    last = max(place for place, what in enumerate(said) if what == ("computed", 0))
    assert (
        said.index(("computed", 1)) < said.index(("sent", 0)) < last < said.index("overlapped") < said.index("arrived")
    )
    assert said.count("overlapped") == said.count("arrived") == 1
    current[-1].synchronize()
    assert plain(replica.gradients).tolist() == [3.0] * 20
    assert bool(fake_cuda.copied) == (path == "host")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_server_gives_the_memory_of_its_gpu_to_mpi_when_it_is_written(replica, monkeypatch, rank):
    monkeypatch.setattr(_direct_gather, "PIECE_BYTES", 5 * 4)
    answers = SimpleNamespace(Request=SimpleNamespace(Waitall=lambda requests: None))
    monkeypatch.setattr(_direct_gather, "MPI", answers)
    monkeypatch.setattr(parameter_server, "MPI", answers)
    said = Marks()
    comm = Ranks(said, given=(5, 5), expected=(1, 1))
    comm.rank, comm.Bcast = rank, lambda weights: said.append(("weights", plain(weights).tolist()))
    step = lambda weights, gradients: SimpleNamespace(step=lambda: weights.copy_(gradients))
    exchange = parameter_server.make(replica, comm, said, step, gpu_path="direct")
    replica.gradients.fill_(1)
    exchange.update()
    assert ("weights", [3.0 if rank == 0 else 0.0] * 20) in said
    assert said.count(("sent", _direct_gather.GRADIENTS)) == (4 if rank else 0)
    assert fake_cuda.copied == []


def test_one_group_of_gpus_copies_nothing_to_the_host(replica, monkeypatch):
    together = SimpleNamespace(Intracomm=lambda comm: comm, COMM_TYPE_SHARED=0)
    monkeypatch.setattr(hierarchical, "MPI", together)
    monkeypatch.setattr(_torch_distributed, "start", lambda *_: None)
    averaged = []
    for name in ("reduce", "broadcast", "all_reduce"):
        monkeypatch.setattr(hierarchical.dist, name, lambda tensor, name=name, **how: averaged.append((name, how)))
    exchange = hierarchical.make(replica, Ranks([]), Marks(), optimizer)
    exchange.update()
    current[-1].synchronize()
    assert averaged == [("all_reduce", {"op": torch.distributed.ReduceOp.AVG})]
    assert fake_cuda.copied == []
