"""Steps from graphs are the steps that would have been taken one kernel at a time."""

import gc
from pathlib import Path

import fake_graphs
import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn

from ddp_hpc.config import catalog, spec
from ddp_hpc.exchange import _torch_distributed as group
from ddp_hpc.models import mlp
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.profiling.timers import CudaClock
from ddp_hpc.training import components, cuda_graphs, trainer
from ddp_hpc.training.checkpoint import Checkpoints
from ddp_hpc.training.placement import survey
from ddp_hpc.training.step import whole_step

pytestmark = pytest.mark.usefixtures("comm")

BASE = {
    "model": {"name": "mlp", "widths": [16]},
    "dataset": "digits",
    "exchange": "none",
    "world_size": 1,
    "batch_size": 12,
    "learning_rate": 0.25,  # exact in float32, as the device keeps it
    "budget": {"steps": 102},
    "device": "cpu",
    "threads_per_rank": 1,
}


def run(monkeypatch, mode, comm=MPI.COMM_SELF, ask_at=None, clocks=None, **fields):
    """Train on the ranks of `comm`, asked to end at a step if at all; return result and replica.

    When the exchange is closed no graph is alive, for NCCL would wait for it for ever.
    """
    monkeypatch.setattr(cuda_graphs, "mode", lambda spec, device: mode)
    fake_graphs.install(monkeypatch, clocks)
    given, asked = spec.load(BASE | fields), []
    training = trainer.Trainer(
        given,
        comm,
        survey(given, comm),
        Path("unused"),
        checkpoints=Checkpoints(asked=asked),
        report=lambda step, loss, t_s: asked.extend([1] if step == ask_at else []),
    )
    exchange, alive = training.components.exchange, []
    close = exchange.close

    def close_watched():
        alive.append(len(fake_graphs.alive()))
        close()

    exchange.close = close_watched
    result = training.run()
    assert alive == [0]
    return result, training.components.replica


RULES = [
    {},
    {"momentum": 0.75, "weight_decay": 2.0**-7},
    {"optimizer": "adam", "learning_rate": 2.0**-7, "learning_rate_warm_up_steps": 4},
    {"precision": "bfloat16"},
    {"evaluate_every_steps": 20},
    {
        "model": {"name": "transformer", "layers": 1, "width": 16, "heads": 2, "dropout": 0.25},
        "dataset": {"name": "markov_text", "samples": 100, "context": 8, "alphabet": 8},
        "optimizer": "adam",
        "learning_rate": 2.0**-7,
    },
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ["whole step", "forward and backward"])
def test_losses_and_weights_are_those_without_capture(monkeypatch, mode, rule):
    expected, weights = run(monkeypatch, "off", **rule)
    result, replica = run(monkeypatch, mode, **rule)
    assert result.losses == expected.losses
    assert result.evaluations == expected.evaluations
    assert torch.equal(replica.weights, weights.weights)
    assert expected.losses[-1] < 0.9 * expected.losses[0]


@pytest.mark.parametrize("mode", ["whole step", "forward and backward"])
def test_no_graph_is_alive_at_the_end_however_it_comes(monkeypatch, mode):
    result, _ = run(monkeypatch, mode, ask_at=20)
    assert (result.steps, result.interrupted) == (30, True)  # asked after the ranks had agreed
    result, _ = run(monkeypatch, mode, learning_rate=2.0**100)
    assert result.diverged
    result, _ = run(monkeypatch, mode, budget={"seconds": 0.01})
    assert result.steps > 0


@pytest.mark.parametrize("mode", ["whole step", "forward and backward"])
def test_losses_that_wait_to_be_read_have_room(monkeypatch, mode):
    """Room for 40 of 102 steps, in which no more than 20 wait."""
    expected = run(monkeypatch, "off")[0].losses
    monkeypatch.setattr(cuda_graphs, "LOSSES", 40)
    monkeypatch.setattr(trainer, "MOST_UNREAD", 20)
    monkeypatch.setattr(trainer, "AGREE_EVERY_S", 1e6)
    make = trainer.Trainer.__init__

    def on_a_gpu(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self._seldom = True

    monkeypatch.setattr(trainer.Trainer, "__init__", on_a_gpu)
    assert run(monkeypatch, mode)[0].losses == expected


def test_the_place_of_a_loss_is_used_again():
    assert trainer.MOST_UNREAD % trainer.AGREE_EVERY_STEPS == 0
    assert 0 < trainer.MOST_UNREAD <= cuda_graphs.LOSSES // 2


@pytest.mark.parametrize("mode", ["off", "whole step", "forward and backward"])
def test_the_loader_of_torch_changes_no_loss(monkeypatch, mode):
    expected, _ = run(monkeypatch, "off")
    assert run(monkeypatch, mode, data_placement="loader")[0].losses == expected.losses


def test_ranks_agree_the_more_seldom_the_shorter_their_captured_steps_are(monkeypatch):
    expected, told = run(monkeypatch, "whole step", budget={"steps": 170})[0], []
    monkeypatch.setattr(trainer, "AGREE_EVERY_S", 1e6)
    make = trainer.Trainer.__init__

    def on_a_gpu(self, *args, **kwargs):
        make(self, *args, **kwargs | {"report": lambda step, loss, t_s: told.append(step)})
        self._seldom = True

    monkeypatch.setattr(trainer.Trainer, "__init__", on_a_gpu)
    assert run(monkeypatch, "whole step", budget={"steps": 170})[0].losses == expected.losses
    assert told == [10, 20, 40, 80, 160, 170]


@pytest.mark.parametrize("exchange", ["ring", "mpi_allreduce", "parameter_server"])
def test_ranks_exchange_between_graphs(monkeypatch, comm, exchange):
    fields = {"exchange": exchange, "world_size": comm.size, "momentum": 0.75}
    expected, weights = run(monkeypatch, "off", comm, **fields)
    result, replica = run(monkeypatch, "forward and backward", comm, **fields)
    assert result.losses == expected.losses
    assert torch.equal(replica.weights, weights.weights)


TUNED = {"name": "torch_ddp", "tuned": True}
CAPTURED = TUNED | {"captured": True}


def on_ranks(monkeypatch, comm):
    """Let what needs GPUs train on these ranks, over Gloo; return fields of specs."""
    monkeypatch.setattr(trainer, "check_exchange", lambda *given: None)
    return {"world_size": comm.size, "device": None}


@pytest.mark.parametrize("rule", [*RULES[:3], {"data_placement": "host"}, {"evaluate_every_steps": 20}])
def test_ddp_in_a_graph_takes_the_steps_of_ddp(monkeypatch, comm, rule):
    fields = on_ranks(monkeypatch, comm) | rule
    expected, weights = run(monkeypatch, "off", comm, exchange=TUNED, **fields)
    result, replica = run(monkeypatch, "whole step", comm, exchange=CAPTURED, **fields)
    assert result.losses == expected.losses
    assert result.evaluations == expected.evaluations
    assert torch.equal(replica.weights, weights.weights)
    assert expected.losses[-1] < 0.9 * expected.losses[0]
    timings = result.clock.timings()
    assert timings.fused[trainer.WARM_UP_STEPS :].all()  # its phases are not told apart
    assert len(timings.fused) == len(result.losses) == trainer.WARM_UP_STEPS + 102


def test_ddp_in_a_graph_averages_over_ranks_and_sends_the_running_means_of_rank_0(monkeypatch, comm):
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: Noisy())
    fields = on_ranks(monkeypatch, comm)
    expected, weights = run(monkeypatch, "off", comm, exchange=TUNED, **fields)
    result, replica = run(monkeypatch, "whole step", comm, exchange=CAPTURED, **fields)
    assert result.losses == expected.losses
    everywhere = comm.allgather(replica.weights)
    assert all(torch.equal(one, weights.weights) for one in everywhere)
    for mine, theirs in zip(replica.buffers(), weights.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_ddp_in_a_graph_goes_on_until_it_is_asked_to_end(monkeypatch, comm):
    result, _ = run(monkeypatch, "whole step", comm, exchange=CAPTURED, ask_at=20, **on_ranks(monkeypatch, comm))
    assert result.interrupted
    assert result.steps % 10 == 0
    assert 20 < result.steps < 102


def leave(comm):
    """Leave the group of a training that has failed, DDP first."""
    gc.collect()
    group.stop(comm)


def test_ddp_that_a_gpu_could_not_capture_is_refused(monkeypatch, comm):
    fields = on_ranks(monkeypatch, comm) | {"exchange": CAPTURED}
    constants, assemble = catalog.constants, trainer.assemble
    too_early = lambda kind, name: constants(kind, name) | {"WARM_UP_STEPS": 10}
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "constants", too_early)
        with pytest.raises(RuntimeError, match=r"(?s)times of its first ten steps.*cannot be captured in a CUDA graph"):
            run(monkeypatch, "whole step", comm, **fields)
    leave(comm)

    def elsewhere(*given):
        with fake_graphs.stream(None):
            return assemble(*given)

    monkeypatch.setattr(trainer, "assemble", elsewhere)
    with pytest.raises(RuntimeError, match="in a stream that is not captured, that in which DDP was made"):
        run(monkeypatch, "whole step", comm, **fields)
    leave(comm)


class Noisy(nn.Sequential):
    """Draws random numbers, and keeps running means."""

    def __init__(self):
        super().__init__(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 10))


def test_dropout_and_running_means_go_on_from_step_to_step(monkeypatch):
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: Noisy())
    expected, weights = run(monkeypatch, "off")
    for mode in ("whole step", "forward and backward"):
        result, replica = run(monkeypatch, mode)
        assert result.losses == expected.losses
        for mine, theirs in zip(replica.buffers(), weights.buffers(), strict=True):
            assert torch.equal(mine, theirs)


def test_phases_are_known_of_every_fiftieth_step_and_fill_it(monkeypatch):
    result, _ = run(monkeypatch, "whole step", budget={"steps": 110})
    timings = result.clock.timings()
    fused = timings.fused[trainer.WARM_UP_STEPS :]
    assert np.flatnonzero(~fused).tolist() == [7, 57, 107]
    phases_s = timings.phases_s[trainer.WARM_UP_STEPS :]
    assert not phases_s[fused][:, :-1].any()
    assert (phases_s[fused][:, PHASES.index("rest_s")] > 0).all()
    for phase in ("data_s", "forward_s", "backward_s", "update_s"):
        assert (phases_s[~fused][:, PHASES.index(phase)] > 0).all()


def simulate(monkeypatch, **fields):
    """Train by graphs on a device that has a clock of its own; return the result, and each phase's kernels in s."""
    clocks, made = fake_graphs.Device(), []
    read = trainer.Trainer.read_losses
    captured = cuda_graphs.Captured.__init__

    def waited(self):
        clocks.wait()  # numbers go to the host
        return read(self)

    def remembered(self, *args, **kwargs):
        captured(self, *args, **kwargs)
        made.append({})
        for replay, phase, _ in self._pieces:
            kernels_s = fake_graphs.KERNEL_S * len(replay.__self__.tape.calls)
            made[-1][phase] = made[-1].get(phase, 0) + kernels_s

    monkeypatch.setattr(trainer.Trainer, "read_losses", waited)
    monkeypatch.setattr(cuda_graphs.Captured, "__init__", remembered)
    monkeypatch.setattr(components, "make_clock", lambda device: CudaClock())
    result, _ = run(monkeypatch, "whole step", clocks=clocks, **fields)
    return result, made[-1]


@pytest.mark.parametrize("evaluate", [None, 20])
def test_phases_of_a_captured_step_are_those_of_its_kernels(monkeypatch, evaluate):
    """The host is slow, and waits for the device every few steps: that is in no phase."""
    result, kernels_s = simulate(monkeypatch, evaluate_every_steps=evaluate, budget={"steps": 250})
    timings = result.clock.timings()
    sampled = timings.phases_s[trainer.WARM_UP_STEPS :][~timings.fused[trainer.WARM_UP_STEPS :]]
    assert len(sampled) == 5
    assert kernels_s.keys() == {"data_s", "forward_s", "backward_s", "update_s", "rest_s"}
    for phase, seconds in kernels_s.items():
        assert sampled[:, PHASES.index(phase)] == pytest.approx(seconds, rel=0.1)


def test_the_simulated_device_shows_a_step_that_is_sampled_when_its_queue_is_empty(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "sampled_step", lambda block, evaluate: block * cuda_graphs.SAMPLE_EVERY_STEPS)
    result, kernels_s = simulate(monkeypatch, budget={"steps": 110})
    timings = result.clock.timings()
    sampled = timings.phases_s[trainer.WARM_UP_STEPS :][~timings.fused[trainer.WARM_UP_STEPS :]]
    assert sampled[1, PHASES.index("data_s")] > 1.3 * kernels_s["data_s"]


def test_the_stand_in_refuses_what_a_gpu_would_get_wrong(monkeypatch):
    fake_graphs.install(monkeypatch)
    graphs, room, gone = cuda_graphs.CudaGraphs(torch.device("cpu")), torch.zeros(3), torch.ones(3)
    graphs.begin()
    room += gone
    left = room * 2
    replay = graphs.end()
    assert room.tolist() == [0, 0, 0]  # nothing has happened yet
    assert left.isnan().all()
    replay()
    assert (room.tolist(), left.tolist()) == ([1, 1, 1], [2, 2, 2])
    del gone
    with pytest.raises(AssertionError, match="was given back since it was recorded"):
        replay()
    graphs.begin()
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="a stream that is not captured"):
        room += 1
    graphs.end()


def test_phases_are_known_of_every_step_whose_exchange_is_not_captured(monkeypatch):
    result, _ = run(monkeypatch, "forward and backward")
    timings = result.clock.timings()
    assert not timings.fused.any()
    for phase in ("data_s", "forward_s", "backward_s", "update_s"):
        assert (timings.phases_s[:, PHASES.index(phase)] > 0).all()


class Replacing(nn.Module):
    """Has a new tensor for a buffer in each step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.layer(x)


class Reading(nn.Module):
    """Reads a value on the host."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x) * float(x.sum() > 0)


@pytest.mark.parametrize(("model", "told"), [(Replacing, "its buffer calls"), (Reading, "cannot be captured")])
def test_a_model_that_a_graph_would_get_wrong_is_refused(monkeypatch, model, told):
    monkeypatch.setattr(mlp, "build", lambda shape, outputs, **options: model())
    run(monkeypatch, "off", budget={"steps": 10})
    with pytest.raises(RuntimeError, match=rf"(?s){told}.*`capture: off`"):
        run(monkeypatch, "whole step", budget={"steps": 10})


def test_a_batch_of_another_size_is_refused_by_name(monkeypatch):
    given = spec.load(BASE)
    parts = components.assemble(given, MPI.COMM_SELF, Path("unused"), torch.device("cpu"))
    fake_graphs.install(monkeypatch)
    step = cuda_graphs.Captured(parts, cuda_graphs.CudaGraphs(parts.device), whole_step, whole=True)
    step(0)
    parts.batches._numbers = lambda number: torch.arange(11)
    with pytest.raises(ValueError, match="the batch of step 101 has 11 samples, there is room for 12"):
        step(100)


FLAGS = {"CAPTURABLE": False, "OVERLAPS": False}


@pytest.mark.parametrize(
    ("flags", "fields", "expected"),
    [
        ({"CAPTURABLE": True}, {}, "whole step"),
        ({"CAPTURABLE": True}, {"dtype": "float64"}, "forward and backward"),  # rates on the device are float32
        ({"CAPTURABLE": True}, {"capture": "off"}, "off"),
        ({}, {}, "forward and backward"),
        ({"OVERLAPS": True}, {}, "off"),
        ({"OVERLAPS": True, "CAPTURABLE": True}, {}, "whole step"),
        ({"OVERLAPS": True, "CAPTURED": {"captured": (False,)}}, {"exchange": "torch_ddp"}, "whole step"),
        ({"OVERLAPS": True, "CAPTURED": {"captured": (True,)}}, {"exchange": "torch_ddp"}, "off"),
    ],
)
def test_what_is_captured_follows_from_the_exchange(monkeypatch, flags, fields, expected):
    given = spec.load(BASE | {"device": "cuda"} | fields)
    monkeypatch.setattr(catalog, "constants", lambda kind, name: FLAGS | flags)
    assert cuda_graphs.mode(given, torch.device("cuda", 0)) == expected
    assert cuda_graphs.mode(given, torch.device("cpu")) == "off"


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("exchange", ["none", "mpi_allreduce"])
@pytest.mark.parametrize("placement", ["device", "host"])
def test_on_a_gpu_too(rule, exchange, placement):
    def losses(how):
        given = spec.load(
            BASE | {"device": "cuda", "capture": how, "exchange": exchange, "data_placement": placement} | rule
        )
        result = trainer.Trainer(given, MPI.COMM_SELF, survey(given, MPI.COMM_SELF), Path("unused")).run()
        assert (result.captured == "off") == (how == "off")
        return result.losses

    few = trainer.WARM_UP_STEPS + 20  # later, attention that adds in another order each time may lead elsewhere
    assert losses("auto")[:few] == pytest.approx(losses("off")[:few], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES[:3])
def test_ddp_in_a_graph_on_a_gpu_too(rule):
    def losses(exchange):
        given = spec.load(BASE | {"device": "cuda", "exchange": exchange} | rule)
        result = trainer.Trainer(given, MPI.COMM_SELF, survey(given, MPI.COMM_SELF), Path("unused")).run()
        assert (result.captured == "whole step") == (exchange == CAPTURED)
        return result.losses

    assert losses(CAPTURED) == pytest.approx(losses(TUNED), rel=1e-4)


@pytest.mark.gpu
def test_a_graph_of_nothing_is_left_out():
    graphs = cuda_graphs.CudaGraphs(torch.device("cuda", 0))
    graphs.begin()
    assert graphs.end() is None
    room = torch.zeros(3, device="cuda")
    graphs.begin()
    room += 1
    replay = graphs.end()
    for _ in range(2):
        replay()
    assert room.tolist() == [2.0, 2.0, 2.0]
