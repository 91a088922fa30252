"""Exchanges, trainings and their checkpoints on several ranks; the facts are in tests/mpi, one launch per number of
ranks."""

import pytest

FACTS = ("exchange.py", "training.py")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_facts_hold_on(on_ranks, ranks):
    up_to_three = ("odd_models.py", "resuming.py", "checkpoints.py") if ranks < 4 else ()
    up_to_two = ("gradient_norms.py",) if ranks < 3 else ()
    of_rivals = ("beaten.py",) if ranks == 2 else ()
    on_ranks(ranks, *FACTS, *up_to_three, *up_to_two, *of_rivals)
