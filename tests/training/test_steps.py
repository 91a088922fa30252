"""Ways to take a step on a GPU, as far as a CPU can tell."""

import pytest

from ddp_hpc.training.cuda_graphs import SAMPLE_EVERY_STEPS, sampled_step
from ddp_hpc.training.step import AGREE_EVERY_STEPS


def test_captured_steps_are_those_of_one_kernel_at_a_time(on_ranks):
    on_ranks(2, "capture.py")


def test_coarser_products_are_where_they_were_asked_for(on_ranks):
    on_ranks(1, "precision.py")


@pytest.mark.parametrize("evaluate_every_steps", [None, *range(3, 61), 240, 1000])
def test_steps_are_sampled_while_the_device_has_work_queued(evaluate_every_steps):
    """The two steps after the host has waited for the device, and the one before, have its waiting in their phases."""
    for block in range(40):
        number = sampled_step(block, evaluate_every_steps)
        assert number // SAMPLE_EVERY_STEPS == block
        assert 1 < number % AGREE_EVERY_STEPS < AGREE_EVERY_STEPS - 1
        assert evaluate_every_steps is None or number % evaluate_every_steps > 1


@pytest.mark.parametrize("evaluate_every_steps", [1, 2])
def test_one_step_of_a_block_is_sampled_even_if_the_host_always_waits(evaluate_every_steps):
    assert sampled_step(2, evaluate_every_steps) // SAMPLE_EVERY_STEPS == 2
