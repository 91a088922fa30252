"""To add an exchange, add its file: nothing else registers it."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from launching import MPI_ENVIRONMENT
from sandbox import Sandbox

NEW = '''"""Made up by a test: a ring of its own, which may pack gradients."""

from typing import Literal

from mpi4py import MPI

from ddp_hpc.config.catalog import PositiveInt
from ddp_hpc.exchange import mpi_allreduce
from ddp_hpc.exchange._protocol import Exchange, MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "made up"
COMPUTES = "all ranks"
MOVES_GRADIENTS = "each rank to all k at once"
MOVES_MODEL = "nobody"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = True
EXACT = True
DETERMINISTIC = True
OVERLAPS = False
CAPTURABLE = False
COST = "sharded_server"
COST_OPTIONS = ("servers",)
COMPRESSES = {"packed": (True,)}
CUDA_AWARE = {"memory": ("device",)}
UP_TO_WORLD_SIZE = ("servers",)


def make(
    replica: Replica,
    comm: MPI.Intracomm,
    timers: Timers,
    make_optimizer: MakeOptimizer,
    *,
    servers: PositiveInt = 2,
    packed: bool = False,
    memory: Literal["host", "device"] = "host",
) -> Exchange:
    return mpi_allreduce.make(replica, comm, timers, make_optimizer)
'''
STUDY = """
description: An exchange that a test has added
base: {dataset: digits, model: mlp, batch_size: 16, learning_rate: 0.1}
grid:
  - {exchange: none, world_size: 1}
  - {exchange: [ring, made_up, {name: made_up, packed: true}, {name: made_up, memory: device}], world_size: 4}
budget: {steps: 20}
tables: [schemes]
"""
SCHEMES = """
from pathlib import Path
from factory import Result, made_up
from ddp_hpc.analysis.tables import schemes

those = ["ring", "made_up", {"name": "made_up", "packed": True}, {"name": "made_up", "memory": "device"}]
grid = [{"exchange": those, "world_size": 4, "batch_size": 16, "learning_rate": 0.1}]
trained = Result(t_s=(1.0,), loss=(0.1,), columns={"move_s": 0.1})
print(schemes.build(made_up(Path("made"), lambda spec: trained, grid=grid)).to_json(orient="records"))
"""
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Sandbox.make(tmp_path_factory.mktemp("project"))
    (project.package / "exchange" / "made_up.py").write_text(NEW)
    project.study("with_it", STUDY)
    return project


def test_it_is_listed_planned_and_asked_for_by_its_options(project):
    assert "made_up" in project.call("ddp-hpc", "list", "exchanges").stdout
    runs = [item["run"] for item in project.plan("with_it")]
    assert sum(run.startswith("made-up-w4") for run in runs) == 3
    devices = "from ddp_hpc.config import catalog; print(catalog.devices('made_up', {'memory': 'device'}))"
    assert project.call(sys.executable, "-c", devices).stdout.strip() == "('cuda',)"


def test_a_run_of_it_tries_gpu_memory_first_if_its_options_give_that_to_mpi(project):
    project.call("ddp-hpc", "plan", "with_it", "--write")
    plans = [json.loads(file.read_text()) for file in project.root.glob("results/runs/made-up-*/spec.json")]
    asked = {json.dumps(plan["spec"]["exchange"]): plan["cuda_aware_mpi"] for plan in plans}
    assert len(asked) == 3
    assert [exchange for exchange, direct in asked.items() if direct] == ['{"name": "made_up", "memory": "device"}']


def test_the_table_of_schemes_has_its_words_and_its_bytes(project):
    """Each of two servers sends its half of the model to three ranks, and half of its gradients to the other: 2 S."""
    said = project.call(sys.executable, "-c", f"import sys; sys.path.append({str(SUPPORT)!r})\n{SCHEMES}")
    assert said.returncode == 0, said.stderr
    rows = {row["exchange_options"]: row for row in json.loads(said.stdout) if row["exchange"] == "made_up"}
    plain, packed, direct = rows["{}"], rows['{"packed":true}'], rows['{"memory":"device"}']
    assert plain["scheme"] == packed["scheme"] == "made up"
    assert (plain["gpu_data_path"], direct["gpu_data_path"]) == ("host memory", "direct")
    assert plain["sent_bytes"] == 2 * plain["parameter_bytes"]
    assert packed["sent_bytes"] is None


def test_it_is_benched_and_fitted(project):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ddp_hpc.cli.main", "bench", "exchange", "--ranks", "2", "--rounds", "1"),
            *("--exchanges", "made_up", "--sizes", "4", "4096", "65536", "--out", "bench"),
        ],
        cwd=project.root,
        env=project.environment | MPI_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (fitted,) = pq.read_table(project.root / "bench" / "fits.parquet").to_pylist()
    assert (fitted["exchange"], fitted["points"]) == ("made_up", 3)
