"""Exchanges on several ranks; the facts are in tests/mpi, one launch per number of ranks."""

import pytest

FACTS = ("baselines.py", "servers.py", "async_server.py", "shared.py")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_facts_hold_on(on_ranks, ranks):
    options = ("messages.py",) if ranks < 4 else ()
    on_ranks(ranks, *FACTS, *options)
