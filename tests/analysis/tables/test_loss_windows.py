"""A run that has learnt nothing comes under a threshold by one easy batch; averaged over enough samples it does not."""

from dataclasses import replace

import numpy as np
import pandas as pd
from factory import Result, made_up

from ddp_hpc.analysis.tables import loss_windows

GRID = [{"exchange": "ring", "world_size": 1, "batch_size": 8, "learning_rate": [0.1, 0.9]}]
STEPS = 3200


def train(spec):
    """The low rate comes down to 0.3 in twice the time; the high one stays at 2.3, but for one batch."""
    lucky = spec.learning_rate == 0.9
    loss = np.full(STEPS, 2.3) if lucky else np.linspace(2.3, 0.3, STEPS)
    loss[STEPS // 2] = 0.4 if lucky else loss[STEPS // 2]
    area = {"loss_area_loss_s": 1.0 if lucky else 2.0}
    return Result(t_s=tuple(np.arange(1, STEPS + 1) * 1e-3), loss=tuple(loss), columns=area)


def test_a_lucky_batch_wins_by_the_rule_and_not_over_enough_samples(tmp_path):
    (row,) = loss_windows.build(made_up(tmp_path, train, grid=GRID)).to_dict("records")

    assert (row["winner"], row["winner_over_samples"]) == ("learning rate 0.9", "learning rate 0.1")
    assert (row["eligible_points"], row["eligible_points_over_samples"]) == (2, 1)
    assert (row["only_by_luck"], row["winner_changes"]) == ("learning rate 0.9", True)


def test_without_a_lucky_batch_nothing_changes(tmp_path):
    def learns(spec):
        return replace(train(spec), loss=tuple(np.linspace(2.3, 0.3, STEPS)))

    (row,) = loss_windows.build(made_up(tmp_path, learns, grid=GRID)).to_dict("records")

    assert row["winner"] == row["winner_over_samples"]
    assert not row["winner_changes"]
    assert pd.isna(row["only_by_luck"])
