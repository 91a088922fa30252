"""Exchanges with servers and weight averaging: what one process can tell of them."""

import pytest

from ddp_hpc.config import spec

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
