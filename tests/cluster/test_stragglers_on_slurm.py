"""A late rank on another node: known by clocks of two hosts."""

import pandas as pd
import pytest
from faulty import FAULTY

pytestmark = pytest.mark.slurm

STUDY = """\
base:
  dataset: digits
  model: {name: faulty, fault: late, on_rank: 1}
  exchange: ring
  batch_size: 16
  learning_rate: 0.1
  threads_per_rank: 1
  placement: spread
  world_size: 2
  ranks_per_node: 1
budget: {steps: 8}
tables: [stragglers, runs]
figures: [loss_curves]
"""


def test_a_late_rank_is_named_with_its_node(project):
    (project.package / "models" / "faulty.py").write_text(FAULTY)
    project.study("late_there", STUDY)

    done = project.call("ddp-hpc", "run", "late_there", "--profile", "profiles/slurm")

    assert done.returncode == 0, done.stdout + done.stderr
    tables = project.root / "results" / "studies" / "late_there" / "tables"
    (run,) = pd.read_parquet(tables / "runs.parquet").to_dict("records")
    assert run["hosts"] == 2
    (row,) = pd.read_parquet(tables / "stragglers.parquet").to_dict("records")
    assert (row["straggler"], row["rank"], row["host"], row["slow_phase"]) == (True, 1, "node2", "forward")
    assert row["costs_s"] > 0.9 * 8 * 0.2
