"""Which samples the ranks take."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp_hpc.config import spec
from ddp_hpc.training import sampler

CPU = torch.device("cpu")


def make_spec(world_size=1, batch_size=4, **fields):
    base = {"model": "mlp", "dataset": "digits", "exchange": "ring", "learning_rate": 0.1, "budget": {"steps": 1}}
    return spec.load(base | {"world_size": world_size, "batch_size": batch_size} | fields)


def batches(one, samples, steps):
    """Steps x ranks x batch: all sample numbers that are taken."""
    ranks = [sampler.make_batches(one, rank, samples, CPU) for rank in range(one.world_size)]
    return np.array([[batch(step).tolist() for batch in ranks] for step in range(steps)])


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 40))
def test_every_world_size_sees_the_same_global_batches(samples, split, batch):
    many = batches(make_spec(split, batch, seed=5), samples, 7)
    one = batches(make_spec(1, split * batch, seed=5), samples, 7)
    assert np.array_equal(many.reshape(7, -1), one.reshape(7, -1))


def test_each_epoch_takes_every_sample_once_in_another_order():
    taken = batches(make_spec(2, 5), 30, 12).reshape(4, 30)  # 3 steps of 10 each are an epoch
    assert all(sorted(epoch) == list(range(30)) for epoch in taken.tolist())
    assert len(set(map(tuple, taken.tolist()))) == 4


def test_seeds_give_different_orders():
    first, second = (batches(make_spec(seed=seed), 100, 10) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_a_batch_may_be_larger_than_the_dataset():
    taken = batches(make_spec(1, 25), 10, 1).ravel()
    assert sorted(np.bincount(taken, minlength=10)) == [2] * 5 + [3] * 5  # two and a half epochs


def test_going_back_in_the_stream_finds_the_same_batch():
    batch = sampler.make_batches(make_spec(), 0, 10, CPU)
    early = batch(0).tolist()
    batch(100)
    assert batch(0).tolist() == early


def test_partitioned_ranks_cycle_their_own_slice_in_the_order_of_the_data():
    taken = batches(make_spec(4, 3, sampling="partitioned"), 400, 100)  # the published neuron: 400/N points each
    for rank in range(4):
        assert taken[:, rank].ravel().tolist() == [100 * rank + position % 100 for position in range(300)]


@pytest.mark.parametrize("sampling", ["global", "partitioned"])
def test_rows_are_the_batches_of_steps_in_a_row(sampling):
    batch = sampler.make_batches(make_spec(3, sampling=sampling), 2, 25, CPU)
    assert batch.rows(7, 40).tolist() == [batch(step).tolist() for step in range(7, 47)]


def test_partitioned_needs_a_sample_per_rank():
    with pytest.raises(ValueError, match="needs at least 4 samples, the dataset has 3"):
        [sampler.make_batches(make_spec(4, sampling="partitioned"), rank, 3, CPU) for rank in range(4)]


def test_the_mean_over_all_samples_is_not_the_mean_of_the_ranks_means():
    assert sampler.weighted_mean([2.0, 90.0], [1, 9]) == pytest.approx(9.2)  # the means' mean would be 6.0


@pytest.mark.parametrize("batch", [16, 32, 64, 128, 256, 512])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_307200_samples_are_exact(batch, ranks):
    one = make_spec(ranks, batch, budget={"samples_seen": 307_200})
    assert one.steps_asked * batch * ranks == 307_200
