"""The learning rate."""

import pytest

from ddp_hpc.config import spec
from ddp_hpc.training import lr_schedule

BASE = {"model": "mlp", "dataset": "digits", "exchange": "ring", "budget": {"steps": 1}}


def make_spec(batch_size=75, world_size=1, learning_rate=4.7331e-4, **fields):
    return spec.load(
        BASE | {"batch_size": batch_size, "world_size": world_size, "learning_rate": learning_rate} | fields
    )


@pytest.mark.parametrize(
    ("global_batch", "published"),
    [(75, 4.733e-4), (150, 6.694e-4), (300, 9.466e-4), (600, 1.339e-3), (2000, 2.444e-3), (5000, 3.865e-3)],
)
@pytest.mark.parametrize("ranks", [1, 5, 25])
def test_the_root_rule_is_the_same_however_the_batch_is_split(global_batch, published, ranks):
    """P. Orlob (2022) scales 4.7331e-4 at batch 75 by the root of k; values to four digits."""
    one = make_spec(global_batch // ranks, ranks, learning_rate_scaling="sqrt", base_batch_size=75)
    assert lr_schedule.scaled_learning_rate(one) == pytest.approx(published, rel=5e-4)


def test_the_linear_rule():
    one = make_spec(250, 4, learning_rate_scaling="linear", base_batch_size=75)
    assert lr_schedule.scaled_learning_rate(one) == pytest.approx(6.31e-3, rel=2e-4)


def test_no_rule_leaves_the_rate_alone():
    assert lr_schedule.scaled_learning_rate(make_spec(250, 4)) == 4.7331e-4


def test_warm_up_rises_linearly_to_the_full_rate():
    rate = lr_schedule.learning_rate_rule(make_spec(learning_rate=0.8, learning_rate_warm_up_steps=4))
    assert [rate(step) for step in range(1, 7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert lr_schedule.learning_rate_rule(make_spec(learning_rate=0.8))(1) == 0.8
