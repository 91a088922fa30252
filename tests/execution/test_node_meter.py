"""Trainings that are metered by a stand-in of NVML; the facts are in tests/mpi."""

import pytest


@pytest.mark.parametrize("ranks", [1, 2])
def test_facts_hold_on(on_ranks, ranks):
    on_ranks(ranks, "meters.py")
