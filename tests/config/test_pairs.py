"""Pairs: two settings side by side in every round, in turns, and their ratio."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up, planned, study_file

from ddp_hpc.analysis.tables import pairs
from ddp_hpc.config import grid
from ddp_hpc.config.errors import StudyError
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow.targets import StudyTargets

PAIRS = {"axis": "exchange", "values": ["mpi_allreduce", "ring"]}
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": 0.1},
    {"exchange": ["ring", "shared_memory", "mpi_allreduce"], "world_size": [2, 4], "batch_size": 16,
     "learning_rate": 0.1},
]  # fmt: skip
STUDY = {"grid": GRID, "budget": {"steps": 100}, "repeats": 4, "pairs": PAIRS}


def order(folder, **keys):
    targets = StudyTargets(Project(folder), planned(folder, **(STUDY | keys)), settled=False)
    return [(one.spec.exchange.name, one.spec.world_size, one.spec.seed) for one in targets.in_rounds]


def test_runs_of_a_pair_stand_side_by_side_and_take_turns(tmp_path):
    runs = order(tmp_path)
    rounds = [[run[:2] for run in runs if run[2] == seed] for seed in range(4)]
    a, b, other = "mpi_allreduce", "ring", "shared_memory"

    assert [run[2] for run in runs] == sorted(run[2] for run in runs)  # round by round
    assert rounds[0] == [("none", 1), (a, 2), (b, 2), (a, 4), (b, 4), (other, 2), (other, 4)]
    assert rounds[1] == [("none", 1), (b, 2), (a, 2), (b, 4), (a, 4), (other, 2), (other, 4)]
    assert rounds[2:] == rounds[:2]  # A B B A A B B A


def test_pairs_change_the_order_only(tmp_path):
    assert sorted(order(tmp_path / "a")) == sorted(order(tmp_path / "b", pairs=None))
    assert order(tmp_path / "c") != order(tmp_path / "d", pairs=None)


def trained(factor, noise=0.01, wild=1.0):
    """A trainer on a machine whose speed differs from round to round by `wild`; ring is slower by `factor`."""

    def train(spec):
        speed = np.exp(wild * np.random.default_rng(spec.seed).normal())
        rng = np.random.default_rng([spec.seed, spec.world_size, len(spec.exchange.name)])
        step_s = 0.01 / speed * np.exp(noise * rng.normal()) * (factor if spec.exchange.name == "ring" else 1.0)
        return Result(t_s=tuple(np.cumsum(step_s * np.exp(0.05 * rng.normal(size=100)))), loss=(0.5,) * 100)

    return train


def test_what_slows_both_of_a_pair_is_not_in_their_ratio(tmp_path):
    """The rounds differ by a factor of e, the two settings by 10 %, which is found to 3 %."""
    frame = pairs.build(made_up(tmp_path, trained(1.1), **STUDY))
    row = frame[frame["world_size"] == 2].iloc[0]

    assert frame["world_size"].tolist() == [2, 4]
    assert (row["first"], row["second"], row["rounds"], row["interval_from"]) == (
        "mpi_allreduce",
        "ring",
        4,
        "4 rounds",
    )
    assert row["ratio"] == pytest.approx(1 / 1.1, rel=0.03)
    assert row["ratio_low"] < 1 / 1.1 < row["ratio_high"] < 1
    assert row["told_apart"]
    assert len(row["ratios"].split()) == 4
    assert np.median([float(ratio) for ratio in row["ratios"].split()]) == pytest.approx(row["ratio"], abs=1e-3)


def test_equal_settings_are_told_apart_as_rarely_as_the_interval_says(tmp_path):
    frame = pairs.build(made_up(tmp_path, trained(1.0), **(STUDY | {"repeats": 2})))
    assert not frame["told_apart"].any()


def test_one_round_tells_nothing_of_how_rounds_differ(tmp_path):
    row = pairs.build(made_up(tmp_path, trained(2.0), **(STUDY | {"repeats": 1}))).iloc[0]

    assert row["interval_from"] == "1 run: within it only"
    assert row["ratio_low"] < 0.5 < row["ratio_high"]
    assert pd.isna(row["told_apart"])


def test_a_round_that_lacks_one_of_its_runs_does_not_count(tmp_path):
    def train(spec):
        return Result("crashed", "boom") if (spec.seed, spec.world_size) == (1, 2) else trained(1.1)(spec)

    frame = pairs.build(made_up(tmp_path, train, **STUDY))
    assert frame["rounds"].tolist() == [3, 4]
    assert frame["reason"].iloc[0] == "only 3 of 4 rounds"
    none = pairs.build(made_up(tmp_path / "none", lambda spec: Result("crashed", "boom"), **STUDY))
    assert none["reason"].tolist() == ["not complete: crashed"] * 2


def test_rounds_whose_runs_had_different_hosts_are_said_to_have_had_them(tmp_path):
    def on(host):
        def train(spec):
            ranks = [{"host": host(spec)}] * spec.world_size
            return replace(trained(1.1)(spec), provenance={"ranks": ranks})

        return train

    same = pairs.build(made_up(tmp_path / "a", on(lambda spec: f"node{spec.seed}"), **STUDY))
    other = pairs.build(made_up(tmp_path / "b", on(lambda spec: spec.exchange.name), **STUDY))
    unknown = pairs.build(made_up(tmp_path / "c", trained(1.1), **STUDY))
    assert [frame["same_hosts"].tolist() for frame in (same, other)] == [[True, True], [False, False]]
    assert unknown["same_hosts"].isna().all()


def test_settings_may_be_numbers_or_choices_with_options(tmp_path):
    by_batch = {"axis": "batch_size", "values": [32, 16]}
    grids = [{"exchange": "ring", "world_size": 2, "batch_size": [16, 32], "learning_rate": 0.1}]
    frame = pairs.build(made_up(tmp_path / "a", trained(1.0), **(STUDY | {"grid": grids, "pairs": by_batch})))
    assert frame[["first", "second"]].values.tolist() == [["32", "16"]]
    assert frame["ratio"].iloc[0] == pytest.approx(0.5, rel=0.05)  # a step of half as many samples

    large = {"name": "mlp", "widths": [256]}
    options = {"axis": "model", "values": ["mlp", large]}
    grids = [{"model": ["mlp", large], "exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": 0.1}]
    keys = STUDY | {"grid": grids, "pairs": options, "base": {"dataset": "digits", "threads_per_rank": 1}}
    frame = pairs.build(made_up(tmp_path / "b", trained(1.0), **keys))
    assert frame[["first", "second", "rounds"]].values.tolist() == [["mlp", "mlp (widths 256)", 4]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"axis": "exchang", "values": ["ring", "none"]}, "exchang"),
        ({"axis": "seed", "values": [0, 1]}, "seed"),
        ({"axis": "exchange", "values": ["ring"]}, "values"),
        ({"axis": "exchange", "values": ["ring", "rign"]}, "did you mean 'ring'"),
        ({"axis": "exchange", "values": ["ring", "ring"]}, "given 'ring' twice"),
        ({"axis": "batch_size", "values": [16, "many"]}, "given 'many'"),
        ({"axis": "exchange", "values": ["ring", "gloo"]}, "no two points of the grid differ in exchange alone"),
        ({"axis": "world_size", "values": [1, 2]}, "no two points of the grid differ in world_size alone, 1 and 2"),
    ],
)
def test_pairs_that_cannot_be_are_told_before_anything_runs(tmp_path, given, words):
    with pytest.raises(StudyError) as error:
        grid.expand(study_file(tmp_path, **(STUDY | {"pairs": given})))

    assert "pairs" in str(error.value)
    assert words in str(error.value)
    assert "made_up.yaml:" in str(error.value)


def test_the_table_is_made_where_there_are_pairs(tmp_path):
    assert "pairs" in planned(tmp_path / "a", **STUDY).study.table_names
    assert "pairs" not in planned(tmp_path / "b", **(STUDY | {"pairs": None})).study.table_names


def test_what_was_trained_on_another_day_is_no_neighbour_and_told_apart_from_nothing(tmp_path):
    """The second side was trained again a day later, on a machine that had become twice as fast."""

    def train(spec):
        ring = spec.exchange.name == "ring"
        ended_at = f"2026-01-0{1 + ring}T00:{10 + spec.seed:02}:00+00:00"
        result = trained(0.5)(spec)
        return replace(result, columns={"ended_at": ended_at, "wall_s": 5.0})

    row = pairs.build(made_up(tmp_path, train, **STUDY)).iloc[0]

    assert row["apart_s"] == 24 * 3600 - 5
    assert pd.isna(row["told_apart"])
    assert row["reason"].startswith("in 4 of 4 rounds the two are no neighbours, up to 23 h 59 min lie between them")
    assert row["ratio_low"] > 1


def test_of_many_equal_settings_a_twentieth_is_not_told_apart_by_chance(tmp_path):
    """Forty points that are equal: by themselves some are told apart, beside the others none; a factor of two is."""

    def table(folder, factor):
        grids = [{"exchange": ["ring", "mpi_allreduce"], "world_size": 2, "batch_size": 16}]
        rates = [round(0.01 * n, 2) for n in range(1, 41)]

        def train(spec):
            rng = np.random.default_rng([spec.seed, round(spec.learning_rate * 100), len(spec.exchange.name)])
            slow = factor if spec.exchange.name == "ring" and spec.learning_rate == 0.01 else 1.0
            return Result(t_s=tuple(np.cumsum([0.01 * slow * np.exp(0.01 * rng.normal())] * 60)), loss=(0.5,) * 60)

        return pairs.build(made_up(folder, train, **(STUDY | {"grid": [grids[0] | {"learning_rate": rates}]})))

    equal, one_slow = table(tmp_path / "a", 1.0), table(tmp_path / "b", 2.0)

    alone = equal[(equal["ratio_low"] > 1) | (equal["ratio_high"] < 1)]
    assert len(alone) > 0
    assert equal["told_apart"].sum() == 0
    assert set(alone["reason"]) == {"told apart only if it were the only point, not as one of 40"}
    assert one_slow["told_apart"].tolist() == [True] + [False] * 39
