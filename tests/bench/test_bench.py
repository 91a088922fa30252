"""`ddp-hpc bench`: every part runs, in its smallest form."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_hpc.bench import idle_rank, publishing
from ddp_hpc.execution import rank
from ddp_hpc.runs.project import Project

PROJECT = Path(__file__).parents[2]


def test_the_idle_rank_is_called_as_the_rank_is():
    taken = inspect.signature(rank.main).parameters
    assert list(inspect.signature(idle_rank.main).parameters.values()) == list(taken.values())


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (
            ["planning", "--points", "3", "--runs", "2"],
            ["snakemake -n", "times_empty", "the workflow adds to each run", "times_bare"],
        ),
        (["meters", "--ranks", "2", "--rounds", "2", "--steps", "5"], ["longer_percent"]),
        (["exchange", "--ranks", "2", "--exchanges", "ring", "--sizes", "64", "256", "--rounds", "2"], ["ring"]),
        (["realign", "--shapes", "4x6x5", "--rounds", "2"], ["4x6x5"]),
    ],
    ids=lambda value: value[0] if value[0].isalpha() else "",
)
def test_every_part_runs(arguments, rows, tmp_path):
    out = ["--out", str(tmp_path)] if arguments[0] in ("exchange", "realign") else []
    command = [str(Path(sys.executable).with_name("ddp-hpc")), "bench", *arguments, *out]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert all(row in done.stdout for row in rows), done.stdout


def test_made_up_runs_are_finished_and_what_is_made_of_them_is_measured(monkeypatch):
    point = "name: bench\nbase: {{dataset: digits, model: mlp, exchange: none, world_size: 1, batch_size: 16}}\n"
    monkeypatch.setattr(publishing, "_STUDY", point + "repeats: {repeats}\nbudget: {{steps: {steps}}}\n")
    monkeypatch.setattr(publishing, "VERBS", ("status", "table"))
    status, table = publishing.publishing(Project(PROJECT), [1])

    assert (status["runs"], status["what"], table["what"]) == (1, "status", "table")
    assert table["cpu_s"] > status["cpu_s"] > 0
    assert table["peak_mb"] > 10
    assert table["times_first"] == 1
