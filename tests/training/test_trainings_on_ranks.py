"""Exchanges, trainings and their checkpoints on several ranks; the facts are in tests/mpi, one launch per number of
ranks."""

import pytest

FACTS = ("exchange.py", "training.py", "odd_models.py")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_facts_hold_on(on_ranks, ranks):
    of_checkpoints = ("resuming.py", "checkpoints.py") if ranks < 4 else ()
    of_rivals = ("beaten.py",) if ranks == 2 else ()
    of_noise = ("gradient_norms.py",) if ranks < 3 else ()
    on_ranks(ranks, *FACTS, *of_checkpoints, *of_rivals, *of_noise)
