"""Exchanges and trainings on several ranks; the facts are in tests/mpi, one launch per number of ranks."""

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_facts_hold_on(on_ranks, ranks):
    on_ranks(ranks, "exchange.py", "training.py", "odd_models.py")
