"""A training that was interrupted, and one that was not, are the same bit for bit."""

import random
import shutil
import time

import fake_graphs
import numpy as np
import pytest
import torch
from catalogued import usable
from interrupted import BASE, check_same, in_parts, run
from torch import nn

from ddp_hpc.config import spec
from ddp_hpc.execution import rank_series as measured
from ddp_hpc.execution import record_columns, run_record
from ddp_hpc.models import mlp
from ddp_hpc.training import checkpoint, cuda_graphs, placement
from ddp_hpc.training.result import WARM_UP_STEPS

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


class Noisy(nn.Sequential):
    """Draws random numbers, keeps running means, puts a new buffer in the place of an old one, and changes a parameter
    that is not trained."""

    def __init__(self):
        super().__init__(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 10))
        self.register_buffer("seen", torch.zeros(1))
        self.mean = nn.Parameter(torch.zeros(10), requires_grad=False)

    def forward(self, x):
        self.seen = self.seen + 1
        self.mean.data.lerp_(self[4].bias.data, 0.01)
        y = super().forward(x) + self.mean
        return y * (1 + 0.01 * random.random() + 0.01 * np.random.rand() + self.seen / 1000)  # noqa: NPY002


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


@pytest.mark.parametrize("mode", ["whole step", "forward and backward"])
def test_graphs_are_captured_again_on_the_state_of_the_checkpoint(comm, folder, monkeypatch, mode):
    """With CUDA graphs as far as a CPU can tell: rates, weights and batches lie where the graphs read them."""
    rule = {"learning_rate": 0.25, "momentum": 0.75, "learning_rate_warm_up_steps": 32}  # exact, as devices keep it
    rule |= {"exchange": "none" if comm.size == 1 else "ring"}
    whole = run(comm, **rule)
    monkeypatch.setattr(cuda_graphs, "mode", lambda spec, device: mode if comm.size == 1 else "forward and backward")
    fake_graphs.install(monkeypatch)
    check_same(comm, in_parts(comm, folder, (10, 30), **rule), whole)
    assert fake_graphs.Stream.made == 3  # one for each part


def test_ranks_that_are_killed_go_on_from_the_last_whole_checkpoint(comm, folder):
    whole = run(comm, momentum=0.9, evaluate_every_steps=15)
    killed, _, _ = run(comm, folder, kill_at=50, every_s=1e-6, momentum=0.9, evaluate_every_steps=15)
    comm.Barrier()
    assert killed.steps == 50
    again = run(comm, folder, momentum=0.9, evaluate_every_steps=15)
    check_same(comm, again, whole)
    if comm.rank == 0:
        assert again[2] == [f"training goes on after step 40, from {folder}"]


def test_a_training_that_is_through_when_it_is_asked_to_end_is_through(comm, folder):
    result, _, _ = run(comm, folder, ask_at=(0, 54))
    assert not result.interrupted
    assert len(result.evaluations) == 1


def test_steps_are_counted_once_and_what_lies_between_is_lost_not_trained(comm, folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "clock_of", lambda folder: time.time())  # that of a file system goes in ticks
    began_ns, given = time.perf_counter_ns(), spec.load(BASE | {"world_size": comm.size})
    result, _, _ = in_parts(comm, folder, (20, 40), evaluate_every_steps=10)
    parts = run_record.gather(result, placement.survey(given, comm), {"import_s": 1.0}, comm)
    assert result.resumes == 2
    assert [step for step, _, _ in result.evaluations] == [10, 20, 30, 40, 50, 54]
    wall_s = result.passed_s({}, result.ended_ns)
    if comm.rank == 0:
        assert 0 < wall_s < (result.ended_ns - began_ns) / 1e9
        curve = measured.curves(parts)
        columns = record_columns.step_columns(curve)
        pairs = list(zip(columns["step"].tolist(), columns["rank"].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs) == comm.size * (WARM_UP_STEPS + 54)
        assert (np.diff(curve.t_s) > 0).all()
        assert result.lost_s > 0
        assert result.startup_s > 0
        known_s = curve.t_s[-1] + result.lost_s + result.startup_s + result.evaluation_s
        assert known_s == pytest.approx(wall_s, rel=0.2)  # nothing is left out, or there twice


def test_ranks_that_wait_for_nobody_synchronize_before_they_leave_and_go_on_from_there(comm, folder):
    for name in usable(comm.size, SYNCHRONOUS=False):
        given = {"exchange": name, "learning_rate": 0.1 / comm.size, "budget": {"steps": 200}}
        # the last rank is not asked, if there are several: it is through with its steps when the others leave
        alone = comm.size > 1 and comm.rank == comm.size - 1
        result, replica, _ = run(comm, folder, asked=[] if alone else [10], **given)
        assert result.interrupted
        assert result.saved
        assert result.steps == (200 if alone else 10)
        assert all(np.array_equal(replica.weights, other) for other in comm.allgather(replica.weights.numpy())), name

        again, replica, said = run(comm, folder, **given)
        assert (again.steps, again.resumes) == (200, 1)
        assert again.history().losses[: WARM_UP_STEPS + result.steps].tobytes() == result.history().losses.tobytes()
        assert all(np.array_equal(replica.weights, other) for other in comm.allgather(replica.weights.numpy())), name
        if comm.rank == 0:
            assert said == [f"training goes on after step 10, from {folder}"]
            shutil.rmtree(folder)
        comm.Barrier()
