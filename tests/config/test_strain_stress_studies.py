"""The studies of strain-stress curves ask for what the slides show, in whole epochs, with the published rates."""

from collections import Counter
from pathlib import Path

import pytest

from ddp_hpc.config import grid
from ddp_hpc.training.lr_schedule import scaled_learning_rate

STUDIES = Path(__file__).parents[2] / "config" / "studies"
FULL, SMALL = "strain_stress", "strain_stress_small"
TRAINED = {FULL: 750_000, SMALL: 18_000}  # three quarters of the curves

# P. Orlob's slides, by hand: 4.7331e-4 times the root of batch / 75
RATES = {75: 4.733e-4, 300: 9.466e-4, 1000: 1.728e-3, 2000: 2.444e-3, 5000: 3.865e-3}


def specs(name):
    expansion = grid.expand(STUDIES / f"{name}.yaml")
    return [spec for spec in expansion.specs if spec.seed == 0]


@pytest.mark.parametrize("name", [FULL, SMALL])
def test_budgets_and_evaluations_are_whole_epochs(name):
    for spec in specs(name):
        assert spec.dataset.options["samples"] * 3 // 4 == TRAINED[name]
        assert spec.samples_asked % TRAINED[name] == 0
        assert spec.evaluate_every_steps in (None, TRAINED[name] / spec.global_batch_size)
        assert spec.model.options == {"widths": (150, 200, 163)}
        assert (spec.optimizer, spec.learning_rate) == ("adam", 4.7331e-4)


def test_the_full_study_has_the_published_settings():
    """Three partitions; nodes filled one after the other, or a rank on each; batches of 75 to 5000 on one GPU."""
    found = specs(FULL)
    exchanges = {"torch_ddp", "nccl", "mpi_allreduce"}
    scaling = [spec for spec in found if spec.budget.samples_seen == 2_250_000]
    ranks = {"alpha": [2, 4, 8, 16], "gpu2": [2, 4, 8, 16], "hpdlf": [2, 3, 6, 12]}
    for partition, several in ranks.items():
        here = [spec for spec in scaling if spec.partition == partition and spec.batch_size == 75]
        alone = Counter(
            spec.exchange.name
            for spec in here
            if spec.world_size == 1 and spec.data_placement == "host" and spec.capture == "off"
        )
        assert set(alone) == exchanges | {"none"}, "a baseline, and what each exchange costs at one rank"
        for placement in ("packed", "spread"):
            for exchange in exchanges:
                line = [spec for spec in here if (spec.placement, spec.exchange.name) == (placement, exchange)]
                assert sorted(spec.world_size for spec in line) == several
                assert {(spec.capture, spec.data_placement) for spec in line} == {("off", "host")}, "as in the source"
    batches = Counter(
        (spec.data_placement, spec.capture, spec.batch_size) for spec in scaling if spec.exchange.name == "none"
    )
    assert {key[:2] for key in batches} == {(place, mode) for place in ("device", "host") for mode in ("auto", "off")}
    assert {key[2] for key in batches} == {75, 150, 300, 600, 1000, 2000, 5000}
    assert len(scaling) == 3 + 3 * 3 + 1 + 3 * 2 * 4 * 3 + 7 * 2 * 2 - 1
    assert len(found) == len(scaling) + (5 + 4) + 2 * 3


@pytest.mark.parametrize("name", [FULL, SMALL])
def test_rates_follow_the_root_of_the_batch(name):
    scaled = [spec for spec in specs(name) if spec.learning_rate_scaling == "sqrt" and spec.world_size == 1]
    assert len({spec.batch_size for spec in scaled}) == 4
    for spec in scaled:
        assert scaled_learning_rate(spec) == pytest.approx(RATES[spec.batch_size], rel=3e-4)


def test_larger_batches_are_also_trained_at_the_published_rate():
    for name in (FULL, SMALL):
        as_it_is = [spec for spec in specs(name) if spec.learning_rate_scaling == "none" and spec.evaluate_every_steps]
        assert any(spec.batch_size == 1000 for spec in as_it_is)
        assert {scaled_learning_rate(spec) for spec in as_it_is} == {4.7331e-4}
