"""Exchanges with servers and weight averaging: what one process can tell of them."""

from unittest.mock import Mock

import pytest
import torch

from ddp_hpc.config import spec
from ddp_hpc.exchange import async_server
from ddp_hpc.runs import schema

POINT = {"model": "mlp", "dataset": "digits", "batch_size": 8, "learning_rate": 0.1, "budget": {"steps": 1}}


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        ({"name": "sharded_server", "servers": 5}, "servers=5 with world_size=4, expected: 1 to 4"),
        ({"name": "sharded_server", "servers": 0}, "given 0, expected: an integer > 0 or null"),
        ({"name": "weight_average", "period": 0}, "given 0, expected: an integer > 0"),
    ],
)
def test_options_that_cannot_be_are_errors_before_any_job(exchange, said):
    with pytest.raises(ValueError, match=said):
        spec.load(POINT | {"exchange": exchange, "world_size": 4})


def test_staleness_counts_updates_of_any_rank_and_its_column_says_so():
    """Two gradients of the only rank, both on the first weights: the second is stale by the first."""
    replica = Mock(weights=torch.zeros(1), gradients=torch.zeros(1))
    server = async_server.Server(replica, Mock(size=1), Mock(), Mock())
    for _ in range(2):
        server._apply(0)

    assert server.metrics() == {"staleness": 0.5, "staleness_max": 1.0}
    meaning = schema.RUN.field("staleness").metadata[b"meaning"].decode()
    assert meaning == "mean; of any rank, between a gradient's weights and its use"
