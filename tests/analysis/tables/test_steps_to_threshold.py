"""Steps to the threshold of made-up runs that follow the law of the noise scale."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import words
from factory import Result, made_up, phases

from ddp_hpc.analysis import predict
from ddp_hpc.analysis.figures import steps_to_threshold as figure
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.analysis.tables import cost, noise_scale, steps_to_threshold
from ddp_hpc.config.spec import noise_parts

NOISE_SCALE, LEAST = 100.0, 40.0
RULES = {"loss_threshold": 0.5}
BASE = {"dataset": "digits", "model": "mlp", "threads_per_rank": 1, "noise_scale_every_steps": 2}
BEST = 0.5
RATES = [0.1, BEST, 2.0]
ALONE = {"exchange": "none", "world_size": 1, "batch_size": [64, 256], "learning_rate": RATES}
RING = {"exchange": "ring", "world_size": [1, 2, 4], "batch_size": 64, "learning_rate": RATES}
KEYS = {"base": BASE, "grid": [ALONE, RING], "rules": RULES, "budget": {"samples_seen": 25600}, "repeats": 3}


def law(batch):
    return LEAST * (1 + NOISE_SCALE / batch)


def follows(spec):
    """Return a run that comes to the threshold by the law, or later with another rate."""
    rng, batch, n = np.random.default_rng(int(spec.hash, 16) % 2**32), spec.global_batch_size, spec.world_size
    there = law(batch) * (1 if spec.learning_rate == BEST else 1.5) * np.exp(0.01 * rng.normal())
    step = np.arange(1, spec.steps_asked + 1)
    t_s = 1e-3 * (1 + spec.batch_size / 64 + 0.1 * (n - 1)) * step * np.exp(0.01 * rng.normal())
    parts, samples = noise_parts(spec.world_size, spec.batch_size)

    def of_rank(step, rank):
        found = {"step_s": t_s[0], **phases(spec, t_s[0])}
        if step % 2 == 0:
            norms = [1 + NOISE_SCALE / size for size in (samples, parts * samples)]
            found |= dict(zip(("part_gradient_norm2", "gradient_norm2"), norms, strict=True))
        return found

    return Result(t_s=tuple(t_s), loss=tuple(0.5 * there / step), of_rank=of_rank)


@pytest.fixture(scope="module")
def study_runs(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("follows"), follows, **KEYS)


def test_batches_that_were_not_measured_take_the_steps_of_the_law(study_runs):
    table = steps_to_threshold.build(study_runs).set_index("global_batch_size")
    assert table.index.tolist() == [32, 64, 128, 256, 512, 1024, 2048]
    assert table["runs"].tolist() == [
        0,
        3,
        3,
        3,
        0,
        0,
        0,
    ]  # ranks and exchange make no other training: a seed counts once
    assert table["learning_rate"].dropna().unique().tolist() == [BEST]
    for batch, row in table.iterrows():
        assert row["predicted_steps"] == pytest.approx(law(batch), rel=0.03)
    assert table["critical_batch"].unique() == pytest.approx([NOISE_SCALE], rel=1e-6)
    assert table["held_out_batch"].unique().tolist() == [256]
    assert abs(table["held_out_error_percent"].iloc[0]) < 4
    assert table["doubt"].isna().all()


def test_each_run_says_its_noise_scale(study_runs):
    table = noise_scale.build(study_runs)
    assert len(table) == len(study_runs.planned)
    for name in ("noise_scale", "critical_batch"):
        assert table[name].dropna().to_numpy() == pytest.approx(NOISE_SCALE, rel=1e-6)
    assert table["gradient_norm2"].to_numpy() == pytest.approx(1.0)


def test_the_cost_of_the_way_to_the_threshold_at_more_ranks_is_predicted_with_its_error(study_runs):
    table = cost.costs(study_runs, [8])
    to_loss = table[(table["kind"] == "weak") & (table["world_size"] == 8) & (table["goal"] == "loss 0.5")]
    (row,) = to_loss.to_dict("records")
    assert row["from"] == "predicted"
    assert row["steps"] == pytest.approx(law(512), rel=0.03)
    assert row["steps_low"] < row["steps"] < row["steps_high"]
    assert row["steps_held_out_batch"] == 256
    assert row["time_low_s"] < row["time_s"] < row["time_high_s"]
    said = "\n".join(predict.lines(predict.answer(study_runs, predict.Wanted([8]), None, predict.WhatIf())))
    assert "to loss 0.5, 8 ranks take" in said
    assert "of a global batch of 512, by the noise scale; predicted from the others, 256 are" in said


def test_a_batch_that_was_not_measured_has_its_way_to_the_threshold(study_runs):
    found = predict.answer(study_runs, predict.Wanted([2, 4], (128,)), None, predict.WhatIf())
    rows = [row for row in found["cost"] if row["goal"] == "loss 0.5"]

    for row in rows:
        assert row["steps"] == pytest.approx(law(128 * row["world_size"]), rel=0.03)
        assert row["time_low_s"] < row["time_s"] < row["time_high_s"]
    assert len(rows) == 2
    assert "to loss 0.5, 4 ranks take" in "\n".join(predict.lines(found))


def test_the_figure_has_points_curve_and_critical_batch(study_runs):
    with style():
        drawn = figure.draw({"steps_to_threshold": steps_to_threshold.build(study_runs)}, study_runs.study, "")
    assert "100" in words(drawn)
    assert "a batch of 256, predicted from the others" in str(drawn.get_label())
    (points,) = [line for line in drawn.axes[0].lines if line.get_marker() == "o"]
    assert np.array(points.get_xdata())[np.isfinite(points.get_ydata())].tolist() == [64, 128, 256]


def test_the_legend_names_what_is_drawn(study_runs):
    table = steps_to_threshold.build(study_runs)
    fitted = [column for column in table if column.startswith("predicted_steps")]
    with style():
        whole, bare = (
            figure.draw({"steps_to_threshold": one}, study_runs.study, "")
            for one in (table, table.assign(**dict.fromkeys(fitted, float("nan"))))
        )
    labels = [[text.get_text() for text in drawn.legends[0].get_texts()] for drawn in (whole, bare)]
    assert labels == [
        ["measured", "from the noise scale", "95 %", "critical batch", "perfect scaling"],
        ["measured", "perfect scaling"],
    ]


def test_what_was_not_sampled_or_never_came_there_says_so(tmp_path):
    few = KEYS | {"grid": ALONE | {"batch_size": 64}, "base": {**BASE, "noise_scale_every_steps": None}}
    none = made_up(tmp_path / "none", follows, **few)
    assert noise_scale.build(none)["reason"].str.contains("set `noise_scale_every_steps`").all()
    row = steps_to_threshold.build(none).set_index("global_batch_size").loc[64]
    assert row["measured_steps"] == pytest.approx(law(64), rel=0.03)
    assert "no gradients were sampled" in row["reason"]
    never = made_up(tmp_path / "never", lambda spec: replace(follows(spec), loss=(3.0,) * spec.steps_asked), **few)
    assert "no learning rate" in steps_to_threshold.build(never)["reason"].iloc[0]
    with style():
        empty = figure.draw({"steps_to_threshold": steps_to_threshold.build(never)}, never.study, "")
    assert "no learning rate comes there" in words(empty).replace("\n", " ")


def test_a_best_rate_at_the_edge_of_those_that_were_tried_is_told(tmp_path):
    edge = made_up(tmp_path, follows, **KEYS | {"grid": ALONE | {"learning_rate": [0.1, BEST]}})
    assert steps_to_threshold.build(edge)["doubt"].dropna().unique().tolist() == [
        "the best learning rate is the largest that was tried"
    ]
