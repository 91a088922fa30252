"""Training on several ranks; the facts are in tests/mpi/training.py."""

import pytest


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_training_on_several_ranks(on_ranks, ranks):
    on_ranks(ranks, "training.py")
