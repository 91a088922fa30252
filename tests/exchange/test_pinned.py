"""Gradients of a GPU on their way through host memory: nothing is read before it is there."""

import fake_cuda
import numpy as np
import pytest
import torch
from fake_cuda import Stream, current

from ddp_hpc.exchange import _pinned
from ddp_hpc.exchange._compression import _host_like
from ddp_hpc.exchange._pinned import Pinned, PinnedPieces
from ddp_hpc.exchange.async_server import Message


class Said:
    """A clock that remembers that the gradients have arrived."""

    times = 0

    def arrived(self):
        self.times += 1


def computed(gradients, values):
    """Queue the work that makes the gradients."""
    current[-1].add(lambda: gradients.as_subclass(torch.Tensor).add_(values))


@pytest.fixture
def gradients(monkeypatch):
    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(_pinned, "PIECE_BYTES", 4 * 10)  # of float32: 10 numbers
    return fake_cuda.on_device(torch.zeros(35))


def test_pieces_arrive_when_they_are_waited_for_and_go_back_when_they_are_done(gradients):
    values, clock = torch.arange(35.0), Said()
    staged = PinnedPieces(gradients)
    assert [len(piece) for piece in staged.pieces] == [10, 10, 10, 5]
    for step in (1, 2, 3):
        computed(gradients, values)  # on top of what the last step left
        staged.begin(clock)
        assert clock.times == step
        assert torch.equal(gradients.as_subclass(torch.Tensor), values)  # they are complete when it is said
        for number in range(4):
            piece = staged.ready(number)
            expected = values[10 * number : 10 * number + 10].numpy()
            assert np.array_equal(piece, expected)
            later = staged.array[10 * number + 10 :]
            assert step > 1 or not later.any()  # nobody has waited for them yet
            piece *= 0
            staged.give_back(number)
        staged.join()
        current[-1].synchronize()  # as if the optimiser were queued there
        assert torch.equal(gradients.as_subclass(torch.Tensor), torch.zeros(35))


def test_one_piece_after_another(gradients):
    values, clock = torch.arange(35.0), Said()
    staged = PinnedPieces(gradients)
    computed(gradients, values)
    for piece in staged.in_pieces(clock):
        assert clock.times == 1
        piece += 1
    assert np.array_equal(staged.array, values.numpy() + 1)
    current[-1].synchronize()
    assert torch.equal(gradients.as_subclass(torch.Tensor), values + 1)


def test_the_caller_says_which_piece_is_needed_first(gradients):
    staged = PinnedPieces(gradients, [slice(20, 35), slice(0, 20)])
    computed(gradients, torch.arange(35.0))
    staged.begin(Said())
    assert np.array_equal(staged.ready(0), np.arange(20, 35))
    assert not staged.array[:20].any()


def test_a_piece_that_is_complete_goes_round_while_the_others_are_computed(gradients):
    staged = PinnedPieces(gradients, [slice(20, 35), slice(0, 20)], one_stream=True)
    for number, part in enumerate([slice(20, 35), slice(0, 20)]):  # as a backward pass does
        current[-1].add(lambda part=part: gradients.as_subclass(torch.Tensor)[part].add_(1))
        staged.fetch([number])
        piece = staged.ready(number)
        assert (piece == 1).all()
        assert number == 1 or not gradients.as_subclass(torch.Tensor)[:20].any()
        piece += 1
        staged.give_back(number)
    staged.join()
    current[-1].synchronize()
    assert torch.equal(gradients.as_subclass(torch.Tensor), torch.full((35,), 2.0))


def test_the_fake_shows_a_wait_that_is_missing(gradients, monkeypatch):
    monkeypatch.setattr(Stream, "wait_stream", lambda self, other: None)
    staged = PinnedPieces(gradients)
    computed(gradients, torch.ones(35))
    current[-1].done += 1  # not done when the copy starts
    staged.begin(Said())
    assert not staged.ready(0).any()


@pytest.mark.parametrize("make", [Pinned, _host_like, Message])
def test_pinned_memory_is_the_hosts_though_cuda_speaks_of_it(gradients, monkeypatch, make):
    def fail(words):
        def take(*_, pin_memory, **__):
            assert pin_memory
            raise RuntimeError(words)

        for name in ("empty_like", "zeros"):
            monkeypatch.setattr(torch, name, take)

    fail("CUDA error: out of memory")
    with pytest.raises(MemoryError, match="too little pinned host memory"):
        make(gradients)
    fail("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        make(gradients)


def test_on_a_cpu_they_are_the_tensors_own_memory():
    for length in (0, 1, 1000):
        gradients, clock = torch.ones(length), Said()
        staged = PinnedPieces(gradients)
        staged.begin(clock)
        for number in range(len(staged.pieces)):
            piece = staged.ready(number)
            piece += 1
            staged.give_back(number)
        staged.join()
        assert clock.times == 1
        assert torch.equal(gradients, torch.full((length,), 2.0))
        assert len(staged.pieces) == min(1, length)


@pytest.mark.gpu
def test_a_gpus_gradients_come_and_go_whatever_is_queued():
    gradients = torch.zeros(5 * _pinned.PIECE_BYTES // 4 + 3, device="cuda")
    staged, work = PinnedPieces(gradients), torch.randn(4096, 4096, device="cuda")
    for step in range(1, 6):
        for _ in range(5):
            work @ work
        gradients += 1
        staged.begin(Said())
        for number in range(len(staged.pieces)):
            piece = staged.ready(number)
            assert (piece == 2 * step - 1).all()
            piece += 1
            staged.give_back(number)
        staged.join()
        assert bool((gradients == 2 * step).all())
