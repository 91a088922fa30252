"""A training that was interrupted, and one that was not, are the same bit for bit."""

import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from catalogued import usable
from torch import nn

from ddp_hpc import checkpoint, placement, recording, spec, train
from ddp_hpc import curves as measured
from ddp_hpc._process import boot_id
from ddp_hpc.models import mlp
from ddp_hpc.outcome import WARM_UP_STEPS, Outcome

BASE = {
    "model": {"name": "mlp", "widths": [16]},
    "dataset": "digits",
    "exchange": "ring",
    "batch_size": 12,
    "learning_rate": 0.1,
    "budget": {"steps": 54},
    "device": "cpu",
    "threads_per_rank": 1,
}
RULES = [
    {"momentum": 0.9, "weight_decay": 0.01, "evaluate_every_steps": 8},
    {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "learning_rate_warm_up_steps": 45,
        "sampling": "partitioned",
        "dtype": "float64",
    },
]
# choices of an exchange in which more is kept, or ranks differ between the steps
OPTIONS = [
    {"name": "mpi_allreduce", "compression": "top_k", "kept": 0.1},
    {"name": "parameter_server", "compression": "top_k", "kept": 0.1},
    {"name": "weight_average", "period": 7, "different_starts": True},
    {"name": "sharded_server", "servers": 1},
    {"name": "torch_ddp", "tuned": True},
    {"name": "hierarchical", "ranks_per_group": 1},
]


LAUNCH = {"run": "r", "code_hash": "c", "launched_on": boot_id()}


class Noisy(nn.Sequential):
    """Draws random numbers, keeps running means, and puts a new buffer in the place of an old one."""

    def __init__(self):
        super().__init__(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 10))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen = self.seen + 1
        return super().forward(x) * (1 + 0.01 * random.random() + 0.01 * np.random.rand() + self.seen / 1000)  # noqa: NPY002


@pytest.fixture
def folder(comm, tmp_path):
    """One folder for all ranks; what a test left there is removed."""
    chosen = Path(comm.bcast(str(tmp_path / "checkpoint")))
    yield chosen
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(chosen, ignore_errors=True)


class KilledError(Exception):
    """The rank ends without a chance to save anything."""


def run(comm, folder=None, ask_at=None, kill_at=None, every_s=0.0, owner=(), asked=(), **fields):
    """Train on the ranks of `comm`; return the outcome, the replica, and what was said.

    Args:
        ask_at: (rank, step): that rank is asked to end then.
        asked: not empty: this rank is asked to end from the start.
        kill_at: the step at which all ranks are killed; outcome and replica are then those so far.
    """
    given, launched_ns = spec.load(BASE | {"world_size": comm.size} | fields), time.perf_counter_ns()
    place, outcome, asked, said = placement.survey(given, comm), Outcome(), list(asked), []
    kept = checkpoint.Checkpoints(
        folder=folder,
        launch=LAUNCH | {"spec_hash": given.hash, "world_size": comm.size, "launched_ns": launched_ns} | dict(owner),
        every_s=every_s,
        startup={"import_s": 1.0 + comm.rank},
        asked=asked,
        say=said.append,
    )

    def report(step, loss, elapsed_s):
        if ask_at and (comm.rank, step) == (ask_at[0] % comm.size, ask_at[1]):
            asked.append(10)
        if step == kill_at:
            raise KilledError

    try:
        replica = train.train(given, comm, place, Path("unused"), outcome, report, checkpoints=kept)
    except KilledError:
        replica = None
    return outcome, replica, said


def in_parts(comm, folder, steps, **fields):
    """Train, asked to end on one rank after the other shortly after each of `steps`, and go on; return the last."""
    for rank, step in enumerate(steps):
        outcome, _, _ = run(comm, folder, ask_at=(rank, step), **fields)
        assert outcome.interrupted
        assert outcome.saved
        assert outcome.steps == step + train.AGREE_EVERY_STEPS  # asked after the ranks had agreed
    return run(comm, folder, **fields)


def check_same(comm, one, other):
    """Losses, evaluations, weights and buffers of two trainings are the same on this rank."""
    (outcome, replica, _), (expected, weights, _) = one, other
    assert outcome.history().losses.tobytes() == expected.history().losses.tobytes()
    assert outcome.evaluations == expected.evaluations
    assert torch.equal(replica.weights, weights.weights)
    assert all(map(torch.equal, replica.buffers(), weights.buffers()))


@pytest.mark.parametrize("rule", RULES)
def test_every_deterministic_exchange_ends_with_the_bits_of_an_uninterrupted_training(comm, folder, rule):
    for name in usable(comm.size, DETERMINISTIC=True, SYNCHRONOUS=True):
        whole = run(comm, exchange=name, **rule)
        check_same(comm, in_parts(comm, folder, (10, 30), exchange=name, **rule), whole)
        assert whole[0].steps == 54


@pytest.mark.parametrize("exchange", OPTIONS, ids=lambda options: options["name"])
def test_so_do_exchanges_that_keep_something_from_step_to_step(comm, folder, exchange):
    whole = run(comm, exchange=exchange, momentum=0.9)
    check_same(comm, in_parts(comm, folder, (10, 30), exchange=exchange, momentum=0.9), whole)


@pytest.mark.parametrize("exchange", ["ring", "weight_average"])
def test_so_do_models_that_draw_numbers_and_keep_running_means(comm, folder, monkeypatch, exchange):
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: Noisy())
    whole = run(comm, exchange=exchange, momentum=0.9)
    check_same(comm, in_parts(comm, folder, (20, 40), exchange=exchange, momentum=0.9), whole)


def test_ranks_that_are_killed_go_on_from_the_last_whole_checkpoint(comm, folder):
    whole = run(comm, momentum=0.9, evaluate_every_steps=15)
    killed, _, _ = run(comm, folder, kill_at=50, every_s=1e-6, momentum=0.9, evaluate_every_steps=15)
    comm.Barrier()
    assert killed.steps == 50
    again = run(comm, folder, momentum=0.9, evaluate_every_steps=15)
    check_same(comm, again, whole)
    if comm.rank == 0:
        assert again[2] == [f"training goes on after step 40, from {folder}"]


def test_a_checkpoint_after_the_last_one_takes_its_place(comm, folder):
    run(comm, folder, every_s=1e-6)
    comm.Barrier()
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == ["checkpoint.json", *(f"step-50/rank-{rank}.pt" for rank in range(comm.size))]


def test_a_training_that_is_through_when_it_is_asked_to_end_is_through(comm, folder):
    outcome, _, _ = run(comm, folder, ask_at=(0, 54))
    assert not outcome.interrupted
    assert len(outcome.evaluations) == 1


def test_steps_are_counted_once_and_what_lies_between_is_lost_not_trained(comm, folder):
    began_ns, given = time.perf_counter_ns(), spec.load(BASE | {"world_size": comm.size})
    outcome, _, _ = in_parts(comm, folder, (20, 40), evaluate_every_steps=10)
    parts = recording.gather(outcome, placement.survey(given, comm), {"import_s": 1.0}, comm)
    assert outcome.resumes == 2
    assert [step for step, _, _ in outcome.evaluations] == [10, 20, 30, 40, 50, 54]
    wall_s = outcome.passed_s({}, outcome.ended_ns)
    if comm.rank == 0:
        assert 0 < wall_s < (outcome.ended_ns - began_ns) / 1e9
        curve = measured.curves(parts)
        columns = recording.step_columns(curve)
        pairs = list(zip(columns["step"].tolist(), columns["rank"].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs) == comm.size * (WARM_UP_STEPS + 54)
        assert (np.diff(curve.t_s) > 0).all()
        assert outcome.lost_s > 0
        assert outcome.startup_s > 0
        known_s = curve.t_s[-1] + outcome.lost_s + outcome.startup_s + outcome.evaluation_s
        assert known_s == pytest.approx(wall_s, rel=0.2)  # nothing is left out, or there twice


def break_manifest(folder, **fields):
    file = folder / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


FOREIGN = [
    ("another world size", lambda folder: break_manifest(folder, world_size=77), "its world_size is 77, not "),
    ("another code", lambda folder: break_manifest(folder, code_hash="d"), "its code_hash is d, not c"),
    ("another spec", lambda folder: break_manifest(folder, spec_hash="0"), "its spec_hash is 0, not "),
    ("another torch", lambda folder: break_manifest(folder, torch="1.0"), "its torch is 1.0, not "),
    (
        "half a manifest",
        lambda folder: (folder / "checkpoint.json").write_text('{"format": 1, "ru'),
        "its format is None",
    ),
    ("no files", lambda folder: break_manifest(folder, files=[]), "checkpoint.json is not whole"),
    ("a file is gone", lambda folder: next(folder.rglob("rank-0.pt")).unlink(), "rank 0: [Errno 2]"),
    ("half a file", lambda folder: halve(folder), "rank 0: rank-0.pt is {'bytes': "),
    ("a bit is wrong", lambda folder: flip(folder), "it is broken, or of another checkpoint"),
]


def halve(folder):
    file = next(folder.rglob("rank-0.pt"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(folder):
    file = next(folder.rglob("rank-0.pt"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(("how", "damage", "told"), FOREIGN, ids=[how for how, _, _ in FOREIGN])
def test_a_checkpoint_that_is_broken_or_of_another_run_is_named_and_not_used(comm, folder, how, damage, told):
    whole = run(comm)
    run(comm, folder, ask_at=(0, 10))
    comm.Barrier()
    if comm.rank == 0:
        damage(folder)
    comm.Barrier()
    again = run(comm, folder)
    check_same(comm, again, whole)
    assert again[0].resumes == 0
    if comm.rank == 0:
        (said,) = again[2]
        assert said.startswith(f"the checkpoint in {folder} is not used, training starts anew: ")
        assert told in said


def test_a_checkpoint_of_ranks_that_shared_the_work_otherwise_is_not_used(comm, folder):
    """As if they had come to sit on other nodes: each updates another part of the model."""
    if comm.size == 1:
        pytest.skip("one rank has it all")
    groups = {"name": "hierarchical", "ranks_per_group": 1}
    run(comm, folder, ask_at=(0, 10), momentum=0.9, exchange=groups, owner={"spec_hash": "s"})
    outcome, _, said = run(comm, folder, momentum=0.9, exchange="hierarchical", owner={"spec_hash": "s"})
    assert outcome.resumes == 0
    if comm.rank == 0:
        assert "ranks sit otherwise on nodes" in said[0]


@pytest.mark.parametrize("guilty", [0, -1])
def test_a_full_disk_on_one_rank_ends_no_training_and_leaves_the_checkpoint_before(comm, folder, monkeypatch, guilty):
    whole = run(comm, momentum=0.9)
    run(comm, folder, ask_at=(0, 10), momentum=0.9)
    comm.Barrier()

    class Full(checkpoint._Out):
        def __init__(self, file):
            super().__init__(full if comm.rank == guilty % comm.size else file)

    monkeypatch.setattr(checkpoint, "_Out", Full)
    with open("/dev/full", "wb", buffering=0) as full:
        again = run(comm, folder, every_s=1e-6, momentum=0.9)
    check_same(comm, again, whole)
    comm.Barrier()
    if comm.rank == 0:
        assert f"no checkpoint of step 30, training does not need it: rank {guilty % comm.size}: OSError" in again[2][1]
        assert "No space left on device" in again[2][1]
        assert json.loads((folder / "checkpoint.json").read_text())["step"] == 20
        assert [path.name for path in folder.glob("step-*")] == ["step-20"]


def test_ranks_that_wait_for_nobody_settle_before_they_leave_and_go_on_from_there(comm, folder):
    for name in usable(comm.size, SYNCHRONOUS=False):
        given = {"exchange": name, "learning_rate": 0.1 / comm.size, "budget": {"steps": 200}}
        # the last rank is not asked, if there are several: it is through with its steps when the others leave
        alone = comm.size > 1 and comm.rank == comm.size - 1
        outcome, replica, _ = run(comm, folder, asked=[] if alone else [10], **given)
        assert outcome.interrupted
        assert outcome.saved
        assert outcome.steps == (200 if alone else 10)
        assert all(np.array_equal(replica.weights, other) for other in comm.allgather(replica.weights.numpy())), name

        again, replica, said = run(comm, folder, **given)
        assert (again.steps, again.resumes) == (200, 1)
        assert again.history().losses[: WARM_UP_STEPS + outcome.steps].tobytes() == outcome.history().losses.tobytes()
        assert all(np.array_equal(replica.weights, other) for other in comm.allgather(replica.weights.numpy())), name
        if comm.rank == 0:
            assert said == [f"training goes on after step 10, from {folder}"]
            shutil.rmtree(folder)
        comm.Barrier()
