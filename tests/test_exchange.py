"""Every exchange against MPI's own answer; the facts are in tests/mpi/exchange.py."""

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_exchanges_agree_with_mpi(on_ranks, ranks):
    on_ranks(ranks, "exchange.py")
