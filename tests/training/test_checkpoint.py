"""Checkpoints on several ranks; the facts are in tests/mpi, one launch per number of ranks."""

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_facts_hold_on(on_ranks, ranks):
    on_ranks(ranks, "resuming.py", "checkpoints.py", timeout_s=290)
