"""Trainings metered by a stand-in of NVML, whatever it does: the same losses, and records with their reasons."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from catalogued import usable
from metered import STAND_INS, stand_in

from ddp_hpc.config import spec
from ddp_hpc.execution import node_meter, run_record
from ddp_hpc.profiling import flops, provenance
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.system.process import boot_id
from ddp_hpc.training import placement, trainer

A, B, C = stand_in().UUIDS
FIELDS = {
    "model": {"name": "mlp", "widths": [64]},
    "dataset": "digits",
    "exchange": "ring",
    "batch_size": 16,
    "learning_rate": 0.1,
    "device": "cpu",
    "threads_per_rank": 1,
    "evaluate_every_steps": 150,
    "share_gpu": True,
}


@pytest.fixture
def folder(comm, tmp_path):
    return Path(comm.bcast(str(tmp_path), root=0))


def trained(comm, folder, monkeypatch, mode, uuids, steps=160, wait_s=0.0):
    """Train on CPU ranks that say they use these GPUs; return the losses. Rank 0 leaves the records in `folder`."""
    given = spec.load(FIELDS | {"world_size": comm.size, "budget": {"steps": steps}})
    place, meter = placement.survey(given, comm), node_meter.NodeMeter(comm)
    mine = uuids[comm.rank % len(uuids)]
    visible = [mine] if mode == "own only" else uuids
    gpu = lambda device: SimpleNamespace(
        uuid=visible[device] if isinstance(device, int) else mine, name="Tesla T4", total_memory=1
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), *sys.path]))
    monkeypatch.setenv("FAKE_NVML", mode)

    start = meter.start

    def begin(device):
        start(torch.device("cuda") if uuids != [None] else device)
        time.sleep(wait_s)  # the sampler starts beside the training, which may be short

    monkeypatch.setattr(meter, "start", begin)
    training = trainer.Trainer(given, comm, place, Path("unused"), meter=meter)
    result = training.run()
    metered = node_meter.with_work(meter.stop(), training.components.replica, result.example)
    facts = {"gpu": provenance.of_rank(torch.device("cuda"))["gpu"]} if uuids != [None] else {"gpu": None}
    monkeypatch.setattr(provenance, "of_rank", lambda device: facts)
    parts = run_record.gather(result, place, {"import_s": 0.0}, comm, metered)
    monkeypatch.undo()
    if comm.rank == 0:
        launch = {"run": "r", "spec_hash": "s", "code_hash": "c"}
        launch |= {"launched_on": boot_id(), "launched_ns": result.time_zero_ns}
        run_record.write(Attempt(folder), launch, given, result, parts, "MPI")
    return list(result.losses)


def test_the_losses_are_the_same_whatever_the_meter_does(comm, folder, monkeypatch):
    plain = trained(comm, folder, monkeypatch, "", [None])
    if comm.rank == 0:
        row, nulls = read(folder)
        assert row["energy_j"] is row["gpu_utilisation_mean"] is row["mfu"] is None
        assert nulls["energy_j"] == nulls["gpu_utilisation_mean"] == "no GPU is used"
        assert records.read("gpu", folder / "gpu.parquet").num_rows == 0
    for mode in stand_in().MODES:
        assert trained(comm, folder, monkeypatch, mode, [A, B]) == plain, mode
        if comm.rank == 0:
            row, nulls = read(folder)
            assert row["gpus"] == min(2, comm.size)
            for name in ("energy_j", "gpu_utilisation_mean", "sm_clock_mean_mhz", "mfu"):
                assert (row[name] is None) == (name in nulls), (mode, name)
            if mode in ("no driver", "no permission", "hangs at once", "not there", "neither"):
                assert row["energy_j"] is None


def test_ranks_that_share_a_gpu_count_it_once(comm, folder, monkeypatch):
    for uuids, watts in (([C], 300), ([A, C], 400 if comm.size > 1 else 100)):
        trained(comm, folder, monkeypatch, "", uuids, steps=800, wait_s=3)
        if comm.rank == 0:
            row, nulls = read(folder)
            frame = records.read("gpu", folder / "gpu.parquet").to_pandas()
            assert row["gpus"] == frame["uuid"].nunique() == len(set(uuids[: comm.size]))
            # both ends of a window fall between samples, at which the machine may have been slow
            assert row["energy_j"] == pytest.approx(watts * row["train_s"], rel=0.3), nulls
            assert frame["t_s"].min() < 0 < row["train_s"] < frame["t_s"].max()
            assert frame["trained_s"].max() <= 1.1 * row["train_s"]


def test_ranks_that_may_open_their_own_gpu_alone_meter_it_themselves(comm, folder, monkeypatch):
    """So it is where Slurm gives each task its GPU, by control groups."""
    uuids = [A, C]
    monkeypatch.setenv("FAKE_NVML_SEES", uuids[comm.rank % 2])
    trained(comm, folder, monkeypatch, "own only", uuids, steps=20, wait_s=1.5)
    if comm.rank == 0:
        row, nulls = read(folder)
        frame = records.read("gpu", folder / "gpu.parquet").to_pandas()
        assert row["gpus"] == frame["uuid"].nunique() == min(2, comm.size)
        assert row["energy_j"] is not None, nulls
        assert set(frame["power_w"]) == ({100.0} if comm.size == 1 else {100.0, 300.0})


def test_one_rank_alone_counts_the_work_of_a_model_whatever_exchange_listens_to_its_gradients(comm):
    counted = set()
    for name in usable(comm.size, OVERLAPS=True):
        fields = {"world_size": comm.size, "budget": {"steps": 4}, "exchange": name, "evaluate_every_steps": None}
        given = spec.load(FIELDS | fields)
        training = trainer.Trainer(given, comm, placement.survey(given, comm), Path("unused"))
        training.run()
        replica = training.components.replica
        if comm.rank == 0:
            weights, gradients = replica.weights.clone(), replica.gradients.clone()
            trained = [span.parameter for span in replica.spans]
            counted.add(flops.per_sample(replica.model, trained, torch.zeros(2, 64)))
            assert torch.equal(replica.weights, weights)
            assert torch.equal(replica.gradients, gradients)
        comm.Barrier()
    assert counted == ({6 * (64 * 64 + 64 * 10) - 2 * 64 * 64} if comm.rank == 0 else set())


def read(folder):
    row = records.read("run", folder / "run.parquet").to_pylist()[0]
    return row, records.read_metadata(folder / "run.parquet")["provenance"]["null_columns"]
