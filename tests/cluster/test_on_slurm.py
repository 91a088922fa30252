"""A study on a real Slurm: every run a job, to the page."""

import pandas as pd
import pytest
from metered import STAND_INS

pytestmark = pytest.mark.slurm

RUN = ("ddp-hpc", "run")
ON_SLURM = ("--profile", "profiles/slurm")
BASE = """\
base:
  {dataset: digits, model: {name: mlp, widths: [8]}, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1}
"""


def logs(project):
    """What the trainings and the workflow said last."""
    files = sorted((project.root / "logs").glob("*/*.log"))
    return "".join(f"\n{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)


def test_one_two_and_four_ranks_packed_and_spread_end_with_the_page(project, cluster):
    """N tasks and n GPUs in all, on the nodes that the placement says; one rank gives the same columns."""
    project.study(
        "ranks",
        BASE + "budget: {steps: 20}\ntables: [runs]\nfigures: [loss_curves]\ngrid:\n"
        "  - {exchange: none, world_size: 1}\n"
        "  - {exchange: ring, world_size: [2, 4], placement: packed}\n"
        "  - {exchange: ring, placement: spread, zip: {world_size: [2, 4], ranks_per_node: [1, 2]}}\n",
    )

    before = cluster.jobs()
    done = project.call(*RUN, "ranks", *ON_SLURM)

    assert done.returncode == 0, done.stdout + done.stderr + logs(project)
    assert "5 of 5 runs finished" in done.stdout
    assert (project.root / "results" / "studies" / "ranks" / "report" / "index.html").exists()
    table = pd.read_parquet(project.root / "results" / "studies" / "ranks" / "tables" / "runs.parquet")
    assert set(table["status"]) == {"ok"}
    assert set(table["placement_verified"].dropna()) == {True}
    assert list(table["placement_verified"].isna()) == list(table["placement"].isna())
    jobs = {
        job["Comment"]: number for number, job in cluster.jobs().items() if number not in before
    }  # the last of each
    granted = {}  # by ranks and placement: tasks, nodes, GPUs
    for row in table.astype({"placement": object}).fillna({"placement": "alone"}).itertuples():
        number = jobs.pop(f"rule_train_wildcards_{row.run}")
        job = cluster.jobs()[number]
        granted[row.world_size, row.placement] = job["NumTasks"], job["NumNodes"], cluster.gpus(number)
    assert granted == {
        (1, "alone"): ("1", "1", 1),
        (2, "packed"): ("2", "1", 2),
        (4, "packed"): ("4", "1", 4),
        (2, "spread"): ("2", "2", 2),
        (4, "spread"): ("4", "2", 4),
    }
    assert jobs == {}  # tables, figures and page are no jobs


def test_mpiexec_within_a_job_starts_ranks_on_all_its_nodes(project):
    """The plugin takes from a job the variables in which mpiexec finds its nodes."""
    project.study(
        "ranks",
        BASE + "budget: {steps: 20}\ntables: [runs]\nfigures: []\n"
        "grid: {exchange: ring, world_size: 2, placement: spread}\n",
    )

    done = project.call(*RUN, "ranks", *ON_SLURM, "--launcher", "mpiexec")

    assert done.returncode == 0, done.stdout + done.stderr + logs(project)
    table = pd.read_parquet(project.root / "results" / "studies" / "ranks" / "tables" / "runs.parquet")
    assert list(table["placement_verified"]) == [True]


def test_a_launcher_that_mpi_does_not_understand_ends_the_run_before_it_trains(project):
    """Without PMI each process would be rank 0 of 1, and all would write the same record."""
    project.append("config/machines/test.yaml", "retries: {launch_failed: 0}\n")
    project.study(
        "ranks", BASE + "budget: {steps: 20}\ntables: []\nfigures: []\ngrid: {exchange: ring, world_size: 2}\n"
    )

    done = project.call(*RUN, "ranks", *ON_SLURM, "--launcher", "srun --mpi=none")

    assert done.returncode == 1
    (row,) = project.status("ranks").values()
    assert row["status"] == "launch_failed"
    assert "expected 2 ranks, MPI reports 1 (launcher or MPI build mismatch)" in row["reason"]


PROGRAM = """
import os, socket, time
import ddp_hpc

rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:  # the others find it over the network, as torch's process groups do
    with socket.create_server(("", port)) as server:
        other, _ = server.accept()
else:
    while True:
        try:
            other = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except OSError:
            time.sleep(0.05)
time.sleep(1.5)  # as an import of torch would take
with ddp_hpc.recorder() as record:
    for step in range(12):
        with record.phase("exchange"):
            other.sendall(b"x")
            assert other.recv(1) == b"x"
        time.sleep(0.05)
        record.step(loss=1 / record.steps if record.steps else 2.0)
"""


def test_a_program_of_ones_own_is_started_by_srun_on_two_nodes_and_its_gpus_are_metered(project):
    """By a stand-in of NVML: on each node the GPU of its rank draws 300 W."""
    (project.root / "train.py").write_text(PROGRAM)
    per_node = '("abc" if os.uname().nodename == "node1" else "def")'
    stand_in = (STAND_INS / "pynvml.py").read_text().replace('in "abc"]', f"in {per_node}]")
    assert per_node in stand_in
    (project.root / "src" / "pynvml.py").write_text(stand_in)
    project.study(
        "own",
        "base: {program: {command: python train.py, files: [train.py]}, batch_size: 8, learning_rate: 0.1,\n"
        "  threads_per_rank: 1, world_size: 2, placement: spread}\n"
        "budget: {steps: 12}\ntables: [runs]\nfigures: []\n",
    )

    done = project.call(*RUN, "own", *ON_SLURM)

    assert done.returncode == 0, done.stdout + done.stderr + logs(project)
    (row,) = pd.read_parquet(project.root / "results" / "studies" / "own" / "tables" / "runs.parquet").to_dict(
        "records"
    )
    assert (row["status"], row["hosts"], row["placement_verified"], row["gpus"]) == ("ok", 2, True, 2)
    assert row["energy_j"] == pytest.approx(2 * 300 * row["train_s"], rel=0.3)
    assert 0 < row["exchange_exposed_s"] < row["train_s"]
