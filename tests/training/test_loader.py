"""Every step gets its own samples, wherever the dataset lies and however late or early the device is."""

import fake_cuda
import pytest
import torch
from fake_cuda import Stream, current

from ddp_hpc.config import spec
from ddp_hpc.data._tasks import Samples
from ddp_hpc.training import sampler
from ddp_hpc.training.loader import Loaded, Resident, Staged

DEVICE = "cuda:0"
SAMPLES = Samples(torch.arange(97 * 3, dtype=torch.float32).view(97, 3), torch.arange(97))


class Marks(list):
    """A clock that remembers what it was told."""

    def mark(self, phase, part=None):
        self.append(phase)


def numbers(device="cpu", rank=1):
    given = spec.load(
        {
            "model": "mlp",
            "dataset": "digits",
            "exchange": "ring",
            "world_size": 2,
            "batch_size": 10,
            "learning_rate": 0.1,
            "budget": {"steps": 1},
        }
    )
    return sampler.make_batches(given, rank, 97, torch.device(device))


def train(batches, steps, seen):
    """Take steps whose work is queued on the computing stream, as a training would."""
    for step in steps:
        batches.load(step)
        batch = batches.batch()
        current[0].add(lambda batch=batch: seen.append((batch.inputs.clone(), batch.targets.clone())))
        batches.prefetch(step + 1)


def plain(pairs):
    return [tuple(part.as_subclass(torch.Tensor).tolist() for part in pair) for pair in pairs]


@pytest.fixture(params=[False, True], ids=["late", "early"])
def gpu(monkeypatch, request):
    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(Stream, "eager", request.param)


STEPS = [*range(3), *range(30)]  # the warm-up, and again from the start; over several epochs, whose ends batches cross


@pytest.mark.parametrize("fixed", [False, True])
def test_staged_samples_are_those_of_a_dataset_on_the_device(gpu, fixed):
    marks, expected, seen = Marks(), [], []
    resident = Resident(SAMPLES, numbers(), marks)
    for step in STEPS:
        resident.load(step)
        batch = resident.batch()
        expected.append((batch.inputs, batch.targets))
    assert len({tuple(targets.tolist()) for _, targets in expected}) == 30  # each step has its own

    marks.clear()
    staged = Staged(SAMPLES, numbers(), 10, DEVICE, marks)
    if fixed:
        train(staged, [0], [])
        staged.fix()
        marks.clear()
    train(staged, STEPS, seen)
    current[0].synchronize()
    assert plain(seen) == plain(expected)
    assert marks == ["h2d_s", "data_s"] * len(STEPS)


@pytest.mark.parametrize("waits", ["wait_event", "synchronize"])
def test_the_fake_shows_a_wait_that_is_missing(gpu, monkeypatch, waits):
    if waits == "synchronize":
        monkeypatch.setattr(Stream, "eager", False)  # else what is pinned has been copied before it is written again
        monkeypatch.setattr(fake_cuda.Event, "synchronize", lambda self: None)
    else:
        monkeypatch.setattr(Stream, "wait_event", lambda self, event: None)
    seen, whole = [], numbers()
    train(Staged(SAMPLES, whole, 10, DEVICE, Marks()), range(10), seen)
    current[0].synchronize()
    assert [pair[1].tolist() for pair in seen] != [whole(step).tolist() for step in range(10)]


@pytest.mark.parametrize("steps", [range(200), [*range(60, 70), *range(64, 69), 3, 3, 4, 500, 501]])
@pytest.mark.parametrize("whole", [True, False])
def test_captured_steps_find_their_samples_by_themselves_whatever_step_is_asked_for(steps, whole):
    drawn = numbers()
    numbers_of = drawn if whole else lambda step: drawn(step)
    resident = Resident(SAMPLES, numbers_of, Marks())
    resident.load(3)
    resident.fix()
    table, (counter,) = resident._table.data_ptr(), resident.counters
    for step in steps:
        resident.load(step)
        assert resident._table.data_ptr() == table
        assert resident.batch().targets.tolist() == numbers()(step).tolist()
        counter += 1  # as the captured step does


@pytest.mark.parametrize("fixed", [False, True])
def test_the_loader_of_torch_gives_the_samples_that_all_others_give(fixed):
    marks = Marks()
    loaded, whole = Loaded(SAMPLES, numbers(), torch.device("cpu"), marks), numbers()
    loaded.load(0)
    if fixed:
        loaded.fix()
        place = loaded.batch().inputs.data_ptr()
    marks.clear()
    for step in STEPS:
        loaded.load(step)
        batch = loaded.batch()
        assert torch.equal(batch.inputs, SAMPLES.inputs[whole(step)])
        assert torch.equal(batch.targets, SAMPLES.targets[whole(step)])
        assert not fixed or batch.inputs.data_ptr() == place
    assert marks == ["data_s", "h2d_s"] * len(STEPS)


@pytest.mark.parametrize("length", [1, 9, 11])
def test_a_batch_of_another_size_is_refused(gpu, length):
    staged = Staged(SAMPLES, lambda step: torch.arange(length), 10, DEVICE, Marks())
    with pytest.raises(ValueError, match=f"batch of step 1 has {length} samples, there is room for 10"):
        staged.load(0)


@pytest.mark.gpu
def test_a_gpu_that_is_far_behind_still_sees_each_batch():
    device, seen, work = torch.device("cuda", 0), [], torch.randn(4096, 4096, device="cuda")
    staged = Staged(SAMPLES, numbers(), 10, device, Marks())
    for step in STEPS:
        staged.load(step)
        work @ work
        seen.append(staged.batch().targets.clone())
        staged.prefetch(step + 1)
    assert [targets.tolist() for targets in seen] == [numbers()(step).tolist() for step in STEPS]
