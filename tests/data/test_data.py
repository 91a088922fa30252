"""Every dataset of the catalogue is what its constants say; each file's own facts."""

import numpy as np
import pytest
import torch

from ddp_hpc.config import catalog
from ddp_hpc.data import _tasks, cifar10, digits, random_images, step_function


def write_cifar(folder, images_per_file=3):
    """Write files in the published format; return all pixels and classes in the order of the files."""
    inside = folder / cifar10.INSIDE
    inside.mkdir(parents=True)
    draw, written = np.random.default_rng(0), {}
    for name in (*cifar10.TRAIN_FILES, *cifar10.TEST_FILES):
        classes = draw.integers(0, 10, images_per_file, dtype=np.uint8)
        pixels = draw.integers(0, 256, (images_per_file, 3, 32, 32), dtype=np.uint8)
        records = [bytes([label]) + image.tobytes() for label, image in zip(classes, pixels, strict=True)]
        (inside / name).write_bytes(b"".join(records))
        written[name] = (pixels, classes)
    return written


def samples(inputs, targets):
    part = _tasks.Samples(inputs, targets)
    return _tasks.Dataset(train=part, test=part)


INPUTS, CLASSES = torch.zeros(4, 3), torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("kind", "inputs", "targets", "said"),
    [
        ("classification", INPUTS, CLASSES + 1, "classes 1 to 3, expected: 0 to 2"),
        ("classification", INPUTS, CLASSES - 1, "classes -1 to 1, expected: 0 to 2"),
        ("classification", INPUTS, CLASSES.int(), "torch.int32 and shape (4,), expected for classification: int64"),
        ("classification", INPUTS, CLASSES.float(), "torch.float32"),
        ("classification", INPUTS, CLASSES[:, None], "shape (4, 1), expected for classification: int64 in 1 dimension"),
        ("classification", INPUTS, CLASSES[:3], "4 inputs and 3 targets"),
        ("classification", INPUTS[:0], CLASSES[:0], "0 inputs and 0 targets"),
        ("classification", INPUTS / 0, CLASSES, "inputs that are not finite (in 4 of 4)"),
        ("regression", INPUTS, torch.tensor([[0.0], [1.0], [float("inf")], [2.0]]), "not finite (in 1 of 4)"),
        ("regression", INPUTS, torch.tensor([0.0, 1.0, float("nan"), 2.0]), "targets that are not finite"),
        ("regression", INPUTS, CLASSES, "targets of torch.int64, expected for a regression: floats"),
        ("next_token", CLASSES[:, None], CLASSES, "shape (4,), expected for next_token: int64 in 2 dimensions"),
        ("next_token", CLASSES[:, None], CLASSES[:, None] + 1, "classes 1 to 3, expected: 0 to 2"),
    ],
)
def test_samples_that_cannot_be_trained_on_are_refused_by_name(kind, inputs, targets, said):
    with pytest.raises(ValueError, match="dataset mine: the train samples have") as refused:
        _tasks.check_samples("mine", kind, 3, samples(inputs, targets))
    assert said in str(refused.value)


def test_finite_samples_whose_sum_is_not_are_no_mistake():
    large = torch.full((4, 3), torch.finfo(torch.float32).max)
    _tasks.check_samples("mine", "classification", 3, samples(large, CLASSES))


@pytest.mark.parametrize(
    ("kind", "given", "targets", "fits"),
    [
        ("regression", torch.zeros(4, 1), torch.zeros(4), False),  # torch would make it 4 x 4
        ("regression", torch.zeros(4), torch.zeros(4, 1), False),
        ("regression", torch.zeros(4, 1), torch.zeros(4, 2), False),
        ("regression", torch.zeros(1, 2), torch.zeros(4, 2), False),
        ("regression", torch.zeros(4, 2), torch.zeros(4, 2), True),
        ("regression", torch.zeros(4), torch.zeros(4), True),
        ("classification", torch.zeros(4, 2), CLASSES, False),
        ("classification", torch.zeros(4), CLASSES, False),
        ("classification", torch.zeros(4, 3, 1), CLASSES, False),
        ("classification", torch.zeros(4, 3, dtype=torch.int64), CLASSES, False),
        ("classification", (torch.zeros(4, 3),), CLASSES, False),
        ("classification", torch.zeros(4, 3), CLASSES, True),
        ("next_token", torch.zeros(4, 3), CLASSES[:, None], False),
        ("next_token", torch.zeros(4, 1, 3), CLASSES[:, None], True),
    ],
)
def test_outputs_must_have_the_shape_of_the_targets_for_torch_would_broadcast(kind, given, targets, fits):
    if fits:
        _tasks.check_outputs("mine", kind, 3, given, targets)
        return
    with pytest.raises(ValueError, match=r"model mine gives .* expected for .*: floats of shape \("):
        _tasks.check_outputs("mine", kind, 3, given, targets)


@pytest.mark.parametrize("size", [8, 32])
def test_random_images_are_of_the_size_that_is_asked_and_the_same_for_a_seed(size, tmp_path):
    data, other = (random_images.build(tmp_path, samples=5, size=size, seed=seed) for seed in (0, 1))
    assert data.shape == (3, size, size)
    assert (len(data.train), len(data.test)) == (5, random_images.TEST_SAMPLES)
    _tasks.check_samples("random_images", random_images.TASK, random_images.OUTPUTS, data)
    again = random_images.build(tmp_path, samples=5, size=size)
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert not torch.equal(data.train.inputs, other.train.inputs)


@pytest.mark.parametrize("name", ["digits", "step_function"])
def test_constants_that_planning_reads_are_true(name, tmp_path):
    module = {"digits": digits, "step_function": step_function}[name]
    data, constants = module.build(tmp_path), catalog.constants("dataset", name)
    assert data.shape == constants["SHAPE"]
    outputs = torch.randn(len(data.test), constants["OUTPUTS"])
    task = _tasks.TASKS[constants["TASK"]]
    assert torch.isfinite(task.loss(outputs, data.test.targets))


def test_digits_are_those_of_scikit_learn(tmp_path):
    from sklearn.datasets import load_digits

    data = digits.build(tmp_path)
    assert (len(data.train), len(data.test)) == (1437, 360)
    ours = torch.cat([data.train.inputs, data.test.inputs]).numpy() * 16
    labels = torch.cat([data.train.targets, data.test.targets]).numpy()
    theirs = load_digits()
    both = [
        np.column_stack([pixels, target]).astype(int)
        for pixels, target in ((ours, labels), (theirs.data, theirs.target))
    ]
    assert sorted(map(tuple, both[0])) == sorted(map(tuple, both[1]))
    assert (data.train.inputs.min(), data.train.inputs.max()) == (0, 1)
    assert len(data.train.targets.unique()) == len(data.test.targets.unique()) == 10


def test_fewer_digits_are_the_first_of_all_and_the_test_set_stays(tmp_path):
    few, full = digits.build(tmp_path, train_samples=100), digits.build(tmp_path)
    assert torch.equal(few.train.inputs, full.train.inputs[:100])
    assert torch.equal(few.test.inputs, full.test.inputs)
    with pytest.raises(ValueError, match="train_samples=1438, expected: 1 to 1437"):
        digits.build(tmp_path, train_samples=1438)


def test_the_step_is_at_a_half(tmp_path):
    data = step_function.build(tmp_path)
    assert len(data.train) == 400
    assert torch.equal(data.train.targets == 1, data.train.inputs >= 0.5)
    assert 0 <= data.train.inputs.min() < 0.02
    assert 0.98 < data.train.inputs.max() < 1
    assert torch.equal(step_function.build(tmp_path).train.inputs, data.train.inputs)
    assert not torch.equal(step_function.build(tmp_path, seed=1).train.inputs, data.train.inputs)
    torch.manual_seed(1)  # as a training does
    of_the_run = step_function.build(tmp_path, seed=None).train.inputs
    assert torch.equal(of_the_run, step_function.build(tmp_path, seed=1).train.inputs)


def test_cifar_is_read_from_the_published_format(tmp_path):
    written = write_cifar(tmp_path)
    data = cifar10.build(tmp_path)
    assert data.shape == catalog.constants("dataset", "cifar10")["SHAPE"]
    pixels = np.concatenate([written[name][0] for name in cifar10.TRAIN_FILES])
    for channel, (mean, deviation) in enumerate(zip(cifar10.MEAN, cifar10.DEVIATION, strict=True)):
        expected = (pixels[:, channel] / 255 - mean) / deviation
        np.testing.assert_allclose(data.train.inputs[:, channel], expected, atol=1e-5)
    assert data.train.targets.tolist() == [int(c) for name in cifar10.TRAIN_FILES for c in written[name][1]]
    assert data.test.targets.tolist() == written["test_batch.bin"][1].tolist()
    assert len(cifar10.build(tmp_path, train_samples=4).train) == 4


def test_cifar_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`ddp-hpc data cifar10`.*`ddp-hpc data cifar10 --from PATH"):
        cifar10.build(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\0" * 3072, "no multiple of 3073"), (b"\x0a" + b"\0" * 3072, "class 10"), (b"", "0 bytes")],
)
def test_damaged_cifar_is_refused(tmp_path, content, message):
    write_cifar(tmp_path)
    (tmp_path / cifar10.INSIDE / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cifar10.build(tmp_path)


def test_accuracy_and_error_are_sums_over_the_samples():
    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert _tasks.TASKS["classification"].metric_sum(outputs, torch.tensor([1, 1, 1])) == 2
    error = _tasks.TASKS["regression"].metric_sum(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.zeros(2, 2))
    assert error == (1 + 9) / 2


@pytest.mark.parametrize(
    ("kind", "train", "test", "expected"),
    [
        ("classification", [0, 1, 1, 2], [1, 0, 1, 2], 0.5),
        ("next_token", [[1, 1], [0, 1], [2, 2], [1, 0]], [[1, 0], [2, 1], [1, 1], [0, 0]], 0.5),
        ("regression", [0.0, 2.0, 4.0, 2.0], [2.0, 3.0, 1.0, 2.0], 0.5),  # the variance about the mean of train
        ("regression", [[0.0, 1.0], [2.0, 1.0]], [[1.0, 2.0], [1.0, 0.0]], 0.5),
    ],
)
def test_chance_is_the_metric_of_the_best_constant_answer(kind, train, test, expected):
    parts = [_tasks.Samples(torch.zeros(len(part), 1), torch.tensor(part)) for part in (train, test)]
    assert _tasks.chance(_tasks.TASKS[kind], kind, 3, _tasks.Dataset(*parts)) == expected


def test_outputs_that_are_not_finite_and_widths_of_own_losses():
    with pytest.raises(ValueError, match="model mine gives outputs that are not finite"):
        _tasks.check_outputs("mine", "classification", 3, torch.full((4, 3), torch.nan), CLASSES)
    _tasks.check_outputs("mine", "classification", None, torch.zeros(4, 7), CLASSES)  # its own loss knows what they are
    for given in (torch.zeros(4), torch.zeros(3, 7)):
        with pytest.raises(ValueError, match="expected for classification"):
            _tasks.check_outputs("mine", "classification", None, given, CLASSES)


def test_the_error_of_a_regression_with_one_number_a_sample():
    assert _tasks.TASKS["regression"].metric_sum(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == 4.0
