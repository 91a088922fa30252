"""`ddp-hpc bench`: its stand-ins fit. Every part is run, in its smallest form, by `test_documented_commands.py`."""

import inspect
from pathlib import Path

from ddp_hpc.bench import idle_rank, publishing
from ddp_hpc.execution import rank
from ddp_hpc.runs.project import Project

PROJECT = Path(__file__).parents[2]


def test_the_idle_rank_is_called_as_the_rank_is():
    taken = inspect.signature(rank.main).parameters
    assert list(inspect.signature(idle_rank.main).parameters.values()) == list(taken.values())


def test_made_up_runs_are_finished_and_what_is_made_of_them_is_measured(monkeypatch):
    point = "name: bench\nbase: {{dataset: digits, model: mlp, exchange: none, world_size: 1}}\n"
    point += "grid: {{batch_size: 16, learning_rate: 0.1}}\n"
    monkeypatch.setattr(publishing, "_STUDY", point + "repeats: {repeats}\nbudget: {{steps: {steps}}}\n")
    monkeypatch.setattr(publishing, "VERBS", ("status", "table"))
    status, table = publishing.publishing(Project(PROJECT), [1])

    assert (status["runs"], status["what"], table["what"]) == (1, "status", "table")
    assert table["cpu_s"] > status["cpu_s"] > 0
    assert table["peak_mb"] > 10
    assert table["times_first"] == 1
