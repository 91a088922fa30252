"""Exchanges through shared memory on any number of ranks."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exchange import make, replica_of, step
from mpi4py import MPI

from ddp_hpc.bench import exchange as sweep_of
from ddp_hpc.bench import sweep
from ddp_hpc.config import spec
from ddp_hpc.config.spec import Component
from ddp_hpc.exchange import _shared_window
from ddp_hpc.training import placement, trainer

ONE_EACH = {"ranks_per_group": 1}
SHARING = [("shared_memory", {}), ("hierarchical", {}), ("hogwild", {})]
DIGITS = {
    "model": {"name": "mlp", "widths": [16]},
    "dataset": "digits",
    "batch_size": 12,
    "device": "cpu",
    "threads_per_rank": 1,
}


def run(comm, exchange, **fields):
    given = spec.load(DIGITS | {"exchange": exchange, "world_size": comm.size} | fields)
    training = trainer.Trainer(given, comm, placement.survey(given, comm), Path("unused"))
    return training.run(), training.components.replica


def changes_seen(comm, weights):
    """What this rank finds in the weights after each rank has written its number to a place of its own there."""
    comm.Barrier()
    weights[comm.rank] = 100.0 + comm.rank
    comm.Barrier()
    found = weights[: comm.size].tolist()
    comm.Barrier()
    return found


@pytest.mark.parametrize(("name", "options"), SHARING)
def test_weights_are_one_memory_during_training_and_everyones_own_after_it(comm, name, options):
    replica = replica_of(1000, 7)
    exchange = make(name, replica, comm, **options)
    assert changes_seen(comm, replica.weights) == [100.0 + rank for rank in range(comm.size)]
    assert replica.weights.data_ptr() % 64 == replica.gradients.data_ptr() % 64 == 0

    exchange.close()

    before = replica.weights[0].item()
    assert before == 100.0  # what was there is kept
    found = changes_seen(comm, replica.model.parts[0].data)
    others = [100.0 + rank for rank in range(comm.size)]
    assert found == others  # which were written before
    replica.weights[0] = comm.rank
    comm.Barrier()
    assert replica.model.parts[0][0].item() == comm.rank


@pytest.mark.parametrize("length", [0, 1, 7, 600_011])  # the last: several blocks
@pytest.mark.parametrize("ranks_per_group", [1, 2, 3])
@pytest.mark.parametrize("within", ["shared_memory", "gloo"])
def test_groups_of_different_sizes_give_the_mean_over_all_ranks(comm, length, ranks_per_group, within):
    """3 = 2 + 1 and 4 = 3 + 1: the mean of the groups' means would be another."""
    if ranks_per_group > comm.size:
        pytest.skip("more than there are")
    replica = replica_of(length, 3)
    exchange = make("hierarchical", replica, comm, ranks_per_group=ranks_per_group, within=within)
    for _ in range(2):
        mine = torch.arange(length, dtype=torch.float64) % 1000 + 10.0**comm.rank
        step(replica, exchange, mine, torch.full((3,), 10.0**comm.rank))
    exchange.close()

    mean = sum(10.0**rank for rank in range(comm.size)) / comm.size
    first, second = (part.detach() for part in replica.model.parts)
    np.testing.assert_allclose(first, 1 - 2 * (np.arange(length) % 1000 + mean), rtol=1e-13)
    np.testing.assert_allclose(second, np.full(3, 1 - 2 * mean), rtol=1e-13)


@pytest.mark.parametrize("rule", [{"learning_rate": 0.3}, {"optimizer": "adam", "learning_rate": 0.01}])
def test_any_grouping_follows_one_rank_with_the_whole_batch(comm, rule):
    whole = spec.load(
        DIGITS
        | rule
        | {"exchange": "none", "world_size": 1, "budget": {"steps": 20}}
        | {"batch_size": 12 * comm.size, "dtype": "float64"}
    )
    alone = placement.survey(whole, MPI.COMM_SELF)
    training = trainer.Trainer(whole, MPI.COMM_SELF, alone, Path("unused"))
    training.run()
    expected = training.components.replica
    for ranks_per_group in range(1, comm.size + 1):
        exchange = {"name": "hierarchical", "ranks_per_group": ranks_per_group}
        runs = [run(comm, exchange, dtype="float64", budget={"steps": 20}, **rule) for _ in range(2)]
        np.testing.assert_allclose(runs[0][1].weights, expected.weights, rtol=0, atol=1e-11)
        assert len({weights.tobytes() for weights in comm.allgather(runs[0][1].weights.numpy())}) == 1
        assert runs[0][0].losses == runs[1][0].losses  # bit for bit


def test_what_sums_within_a_group_must_be_for_the_device(comm):
    with pytest.raises(placement.LaunchError, match="within=nccl on cpu; expected there: shared_memory and gloo"):
        make("hierarchical", replica_of(5), comm, within="nccl")


@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9}])
def test_a_shared_model_is_put_back_after_the_warm_up(comm, optimizer, monkeypatch):
    expected = run(comm, "shared_memory", learning_rate=0.1, budget={"steps": 5}, **optimizer)[0].losses[3:]
    monkeypatch.setattr(trainer, "WARM_UP_STEPS", 1)
    assert run(comm, "shared_memory", learning_rate=0.1, budget={"steps": 5}, **optimizer)[0].losses[1:] == expected


def test_hogwild_comes_as_far_on_the_digits_as_one_rank(comm):
    """Each rank makes as many updates as one rank alone would in its share of the samples; 3 % of accuracy apart."""
    _, metric, _ = run(MPI.COMM_SELF, "none", learning_rate=0.1, budget={"steps": 600})[0].evaluations[-1]
    result, replica = run(comm, "hogwild", learning_rate=0.1, budget={"steps": 600 // comm.size})
    assert metric > 0.9
    assert result.evaluations[-1][1] == pytest.approx(metric, abs=0.03)
    assert len({weights.tobytes() for weights in comm.allgather(replica.weights.numpy())}) == 1


def test_hogwild_counts_the_updates_of_others_between_weights_and_use(comm):
    replica = replica_of(100)
    exchange = make("hogwild", replica, comm)
    assert exchange.metrics() == {"staleness": None, "staleness_max": None}
    for _ in range(2):  # counted anew after each `synchronize`
        comm.Barrier()  # what a rank sees when it begins
        for turn in range(comm.size):  # one after another: rank r misses the updates of those before it
            if turn == comm.rank:
                step(replica, exchange, torch.ones(100))
            comm.Barrier()
        for turn in range(comm.size):  # again: all others have updated since this one's last
            if turn == comm.rank:
                step(replica, exchange, torch.ones(100))
            comm.Barrier()
        exchange.synchronize()
        first, second = comm.rank, comm.size - 1
        assert exchange.metrics() == {"staleness": (first + second) / 2, "staleness_max": float(max(first, second))}
    exchange.close()
    assert torch.equal(replica.weights[:100], torch.full((100,), 1.0 - 4 * comm.size, dtype=torch.float64))


def test_hogwild_waits_for_nobody(comm):
    replica = replica_of(100)
    exchange = make("hogwild", replica, comm)
    for _ in range(10 * (comm.rank + 1)):  # a barrier in it would hang
        step(replica, exchange, torch.zeros(100))
    exchange.synchronize()
    assert exchange._steps.tolist() == [10 * (rank + 1) for rank in range(comm.size)]
    exchange.close()


@pytest.mark.parametrize(("name", "options"), SHARING)
def test_too_little_shared_memory_is_told_before_the_first_step(comm, name, options, monkeypatch):
    monkeypatch.setattr(
        _shared_window, "_free_bytes", lambda: 1_000_000 if comm.rank == 0 else 1 << 40
    )  # all must hear of it
    with pytest.raises(placement.LaunchError, match=r"8 MB .*has .* MB left: enlarge it .*--shm-size.* ring"):
        make(name, replica_of(8_000_000 // 8 // (1 if name == "hogwild" else comm.size)), comm, **options)


def test_shared_memory_that_mpi_does_not_give_is_told_too(monkeypatch):
    """What is free is not all that MPI asks of it; or it has no shared windows at all."""
    monkeypatch.setattr(_shared_window, "_free_bytes", lambda: None)
    with pytest.raises(placement.LaunchError, match=r"no window of 140737488 MB in shared memory .*osc.* ring"):
        _shared_window.share(MPI.COMM_SELF, 1 << 44, torch.float64)


def windows():
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/osc" in line}


@pytest.mark.parametrize(("enough", "name", "options"), [(1, "shared_memory", {}), (2, "hierarchical", ONE_EACH)])
def test_what_was_taken_is_given_back_if_more_is_not_there(comm, monkeypatch, enough, name, options):
    if comm.size == 1 and name == "hierarchical":
        pytest.skip("one group needs no third window")
    before, calls = windows(), itertools.count()
    monkeypatch.setattr(_shared_window, "_free_bytes", lambda: 1 << 40 if next(calls) < enough else 0)
    with pytest.raises(_shared_window.NoRoomError):
        make(name, replica_of(1000), comm, **options)
    assert windows() == before


def test_a_sweep_goes_on_without_what_has_too_little_shared_memory(comm, monkeypatch, folder, capsys):
    folder.mkdir(exist_ok=True)
    two = [Component(name=name) for name in ("shared_memory", "ring")]
    specs = [given.canonical for given in sweep_of.runnable(two, comm.size)[0]]
    asked = {"sizes": [4096, 262_144], "rounds": 2, "least_s": 1e-4, "specs": specs}
    if comm.rank == 0:
        (folder / "asked.json").write_text(json.dumps(asked))
    comm.Barrier()
    monkeypatch.setattr(_shared_window, "_free_bytes", lambda: 100_000)
    sweep.main(folder)
    if comm.rank == 0:
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        of = {name: [one["bytes"] for one in samples if one["exchange"] == name] for name in ("shared_memory", "ring")}
        assert of == {"shared_memory": [4096, 4096], "ring": [4096, 4096, 262_144, 262_144]}
        assert "without shared_memory from 262144 B on: " in capsys.readouterr().out


def test_groups_of_a_node_count_together(comm, monkeypatch):
    if comm.size < 2:
        pytest.skip("one group")
    monkeypatch.setattr(
        _shared_window, "_free_bytes", lambda: 8_000_000 * comm.size - 1
    )  # enough for each, not for all
    with pytest.raises(placement.LaunchError, match=rf"{8 * comm.size} MB of shared memory"):
        make("hierarchical", replica_of(1_000_000), comm, ranks_per_group=1)
