"""Ranks and GPUs fit together, or there is an error before training."""

import pytest

from ddp_hpc.placement import LaunchError, _check_one_gpu_each


def test_ranks_with_a_gpu_each_pass_on_one_node_and_on_several():
    _check_one_gpu_each([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-3")])
    _check_one_gpu_each([("a", None), ("b", None)])


def test_two_ranks_on_one_gpu_are_refused_by_name():
    with pytest.raises(LaunchError, match="ranks 1 and 3 share GPU GPU-2 on a"):
        _check_one_gpu_each([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-2"), ("a", "GPU-2")])


def test_gpus_on_some_ranks_only_are_refused():
    with pytest.raises(LaunchError, match=r"ranks \[1\] of 3 see no GPU"):
        _check_one_gpu_each([("a", "GPU-1"), ("b", None), ("a", "GPU-2")])
