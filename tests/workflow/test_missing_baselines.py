"""A plan says which tables and figures will be empty, and the lines that fill them."""

import pytest
from ruamel.yaml import YAML

from ddp_hpc.config import grid
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.workflow import missing_baselines

BASE = {"model": "mlp", "dataset": "digits"}
SINGLE = {"exchange": "ring", "batch_size": 16, "learning_rate": 0.1}
RING = {"exchange": "ring", "world_size": [1, 2], "batch_size": [16, 32], "learning_rate": [0.1, 0.2]}
TOGETHER = {
    "exchange": "ring",
    "world_size": [2, 4],
    "zip": {"batch_size": [16, 32], "learning_rate": [0.1, 0.2]},
    "model": [{"name": "mlp", "widths": [8]}, "mlp"],
}
STRONG = {"exchange": "ring", "world_size": [1, 2, 4], "global_batch_size": [16, 64], "learning_rate": 0.1}


def notes(folder, grids, **more):
    base = BASE | more.pop("base", {})
    YAML().dump({"name": "try", "base": base, "budget": {"steps": 4}, "grid": grids} | more, folder / "try.yaml")
    found = grid.expand(folder / "try.yaml")
    planned = tuple(Planned(spec.hash, spec) for spec in found.specs)
    return missing_baselines.noted(StudyRuns(found.study, Store(folder), planned)).notes


@pytest.mark.parametrize(
    ("whole", "told", "line"),
    [
        (RING, "4 of 8 runs", "- {exchange: none, world_size: 1, batch_size: [16, 32], learning_rate: [0.1, 0.2]}"),
        (
            TOGETHER,
            "8 of 8 runs",
            "- {exchange: none, world_size: 1, zip: {model: [{name: mlp, widths: [8]}, {name: mlp, widths: [8]}, "
            "mlp, mlp], batch_size: [16, 32, 16, 32], learning_rate: [0.1, 0.2, 0.1, 0.2]}}",
        ),
        (
            STRONG,
            "4 of 6 runs",
            "- {exchange: none, world_size: 1, global_batch_size: [16, 64], learning_rate: 0.1}",
        ),
    ],
)
@pytest.mark.parametrize("repeats", [1, 3])
def test_without_a_baseline_the_lines_are_told_that_make_the_tables_full(tmp_path, whole, told, line, repeats):
    (note,) = notes(tmp_path, whole, repeats=repeats)
    assert "table scaling, table waterfall, figure speedup, figure waterfall, by_difference_s of exposed" in note
    assert f"`{line}`" in note
    assert repeats > 1 or note.startswith(told)

    assert notes(tmp_path, [whole, *YAML().load(line)], repeats=repeats) == ()


def test_a_long_list_is_no_part_of_a_note(tmp_path):
    (note,) = notes(tmp_path, RING | {"learning_rate": [0.1 + n / 1000 for n in range(100)]})
    assert len(note) < 500
    assert "with all their values of batch_size, learning_rate" in note


def test_only_what_a_study_makes_is_told(tmp_path):
    (note,) = notes(tmp_path, RING, tables=["runs"], figures=["synchronisation"])
    assert "synchronisation" in note
    assert "scaling" not in note
    assert notes(tmp_path, RING, tables=["runs"], figures=[]) == ()


def test_a_reference_that_is_not_planned_is_told_with_one_that_is(tmp_path):
    several = {"world_size": 2, "exchange": ["ring", "mpi_allreduce"], "batch_size": 16, "learning_rate": 0.1}
    whole = [several, several | {"exchange": "none", "world_size": 1}]
    (note,) = notes(tmp_path, whole)
    assert "no run has the reference exchange, torch_ddp" in note
    assert "`reference_exchange: mpi_allreduce`" in note
    assert notes(tmp_path, whole, rules={"reference_exchange": "mpi_allreduce"}) == ()


def test_a_study_of_one_rank_lacks_nothing(tmp_path):
    assert notes(tmp_path, SINGLE | {"world_size": 1, "exchange": "none", "batch_size": [8, 16]}) == ()
