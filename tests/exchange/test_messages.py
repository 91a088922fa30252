"""Options of the exchanges over plain messages; the facts are in tests/mpi, one launch per number of ranks."""

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_options_keep_what_they_promise_on(on_ranks, ranks):
    on_ranks(ranks, "messages.py")
