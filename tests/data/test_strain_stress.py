"""Strain-stress curves obey their law, are the same in any number and are written once."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from ddp_hpc.config import catalog
from ddp_hpc.data import _cached_arrays, strain_stress
from ddp_hpc.data import _ramberg_osgood as law

E, LOADING = 70_000.0, 140


def curves(data):
    """Strain, stress in MPa, flag of all curves, and their proof stresses and exponents, as the data set gives them."""
    inputs = torch.cat([data.train.inputs, data.test.inputs]).double().numpy()
    targets = torch.cat([data.train.targets, data.test.targets]).double().numpy()
    strain, stress, flag = np.moveaxis(inputs * strain_stress.UNIT + strain_stress.MIDDLE, 2, 0)
    return strain, stress, flag, targets * law.DEVIATION + law.MEAN


def test_loading_obeys_ramberg_and_osgood_and_unloading_has_youngs_modulus(tmp_path):
    strain, stress, flag, parameters = curves(strain_stress.build(tmp_path, samples=400, noise=0.0))
    proof, exponent = parameters[:, :1], parameters[:, 1:]

    up, down = slice(None, LOADING), slice(LOADING - 1, None)
    expected = stress[:, up] / E + 0.002 * (np.maximum(stress[:, up], 0) / proof) ** exponent
    np.testing.assert_allclose(strain[:, up], expected, atol=3e-6)  # float32
    slopes = np.diff(stress[:, down], axis=1) / np.diff(strain[:, down], axis=1)
    np.testing.assert_allclose(slopes, E, rtol=0.01)
    assert (flag == (np.arange(200) < LOADING)).all()
    np.testing.assert_allclose(stress[:, -1], 0, atol=1e-4)  # nothing pulls at the end, and the plastic strain is left
    np.testing.assert_allclose(strain[:, -1], strain[:, LOADING - 1] - stress[:, LOADING - 1] / E, atol=3e-6)
    assert (strain[:, -1] > 0.01).all()


def test_stresses_are_those_that_bisection_finds():
    random = np.random.default_rng(3)
    parameters = np.stack([random.uniform(100, 400, 20), random.uniform(5, 20, 20)], axis=1)
    strain = np.sort(random.uniform(0, 0.05, (20, 15)))
    found = law.stress(strain, parameters)
    for row, (proof, exponent) in enumerate(parameters):
        for column, e in enumerate(strain[row]):
            root = brentq(lambda s, p=proof, n=exponent, e=e: s / E + 0.002 * (s / p) ** n - e, 0, 1e4, xtol=1e-9)
            assert found[row, column] == pytest.approx(root, abs=1e-5)


def test_at_the_proof_stress_two_thousandths_are_plastic():
    """The definition of R_p0.2, which no exponent changes."""
    parameters = np.array([[250.0, 5.0], [250.0, 20.0]])
    found = law.stress(np.full((2, 1), 250 / E + 0.002), parameters)
    np.testing.assert_allclose(found, 250, rtol=1e-9)


def test_parameters_span_their_ranges_and_targets_are_standardised(tmp_path):
    data = strain_stress.build(tmp_path, samples=20_000)
    targets = torch.cat([data.train.targets, data.test.targets])
    *_, parameters = curves(data)
    assert (parameters.min(axis=0) >= [99.9, 4.99]).all()
    assert (parameters.max(axis=0) <= [400.1, 20.01]).all()
    assert targets.mean(dim=0).tolist() == pytest.approx([0, 0], abs=0.03)
    assert targets.square().mean().item() == pytest.approx(1, abs=0.02), "predicting the mean has a loss of 1"
    assert abs(np.corrcoef(parameters.T)[0, 1]) < 0.03
    assert (len(data.train), len(data.test)) == (15_000, 5_000)
    assert data.shape == catalog.constants("dataset", "strain_stress")["SHAPE"] == (200, 3)


def test_noise_is_a_share_of_the_proof_stress(tmp_path):
    _, quiet, _, parameters = curves(strain_stress.build(tmp_path, samples=500, noise=0.0))
    _, noisy, _, _ = curves(strain_stress.build(tmp_path, samples=500, noise=0.02))
    assert ((noisy - quiet) / parameters[:, :1]).std() == pytest.approx(0.02, rel=0.02)


def test_the_first_curves_are_the_same_in_any_number_of_them(tmp_path):
    few, many = (strain_stress.build(tmp_path, samples=count) for count in (100, 9000))  # of one chunk, of three
    assert torch.equal(torch.cat([few.train.inputs, few.test.inputs]), many.train.inputs[:100])
    assert torch.equal(torch.cat([few.train.targets, few.test.targets]), many.train.targets[:100])
    other = strain_stress.build(tmp_path, samples=100, seed=1)
    assert not torch.equal(other.train.targets, few.train.targets)
    assert len(many.train.targets.unique(dim=0)) == len(many.train), "no chunk repeats another"


@pytest.fixture
def always_written(monkeypatch):
    monkeypatch.setattr(_cached_arrays, "MEMORY_BYTES", 0)


def test_a_large_set_is_written_once_and_mapped(tmp_path, monkeypatch, always_written):
    written = strain_stress.build(tmp_path / "data", samples=5000)
    (folder,) = (tmp_path / "data").iterdir()
    monkeypatch.setattr(strain_stress, "_chunks", lambda *given: pytest.fail("made again"))
    again = strain_stress.build(tmp_path / "data", samples=5000)
    monkeypatch.undo()

    in_memory = strain_stress.build(tmp_path, samples=5000)
    for part in ("train", "test"):
        for name in ("inputs", "targets"):
            one, two, three = (getattr(getattr(data, part), name) for data in (written, again, in_memory))
            assert torch.equal(one, three)
            assert torch.equal(two, three)
    again.train.targets[0] = 7.0  # a rank that writes to its mapping harms nobody
    assert torch.equal(torch.from_numpy(np.load(folder / "targets.npy"))[:3750], in_memory.train.targets)
    assert np.load(folder / "inputs.npy").dtype == np.float32


def test_other_curves_have_another_folder(tmp_path, always_written):
    for options in ({}, {"seed": 1}, {"noise": 0.01}, {"samples": 40}):
        strain_stress.build(tmp_path, **{"samples": 30} | options)
    assert len(list(tmp_path.iterdir())) == 4


def test_what_a_killed_writer_left_does_not_count(tmp_path, monkeypatch, always_written):
    expected = strain_stress.build(tmp_path / "a", samples=50)
    (name,) = os.listdir(tmp_path / "a")
    (tmp_path / "b").mkdir()
    part = tmp_path / "b" / f".{name}.1234.part"
    part.mkdir()
    (part / "inputs.npy").write_bytes(b"half of it")
    (tmp_path / "b" / f".{name}.turn").mkdir()  # it still seems to be its turn
    monkeypatch.setattr(_cached_arrays, "PATIENCE_S", 0.3)

    found = strain_stress.build(tmp_path / "b", samples=50)

    assert torch.equal(found.train.inputs, expected.train.inputs)
    assert os.listdir(tmp_path / "b") == [name]


def test_whoever_comes_while_it_is_written_waits_for_it(tmp_path):
    begun, go_on, made = threading.Event(), threading.Event(), []

    def chunks():
        made.append(1)
        yield {"x": np.ones((3, 2), np.float32)}
        begun.set()
        assert go_on.wait(30)
        yield {"x": np.zeros((1, 2), np.float32)}

    found = []

    def want():
        found.append(_cached_arrays.arrays(tmp_path / "d", {"x": (4, 2)}, chunks)["x"].tolist())

    original, _cached_arrays.MEMORY_BYTES = _cached_arrays.MEMORY_BYTES, 0
    try:
        threads = [threading.Thread(target=want) for _ in range(3)]
        threads[0].start()
        assert begun.wait(30)
        for thread in threads[1:]:
            thread.start()
        assert not (tmp_path / "d").exists(), "half of it is not there"
        go_on.set()
        for thread in threads:
            thread.join(30)
    finally:
        _cached_arrays.MEMORY_BYTES = original
    assert found == [[[1, 1]] * 3 + [[0, 0]]] * 3
    assert made == [1]
    assert os.listdir(tmp_path) == ["d"]


def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path, always_written):
    def chunks():
        yield {"x": np.ones((2, 2), np.float32)}
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"cannot write .*d: .*No space left"):
        _cached_arrays.arrays(tmp_path / "d", {"x": (4, 2)}, chunks)
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_for_a_folder_is_told_at_once(tmp_path, monkeypatch, always_written):
    """There was room for the turn only; whoever comes next need not wait for it."""
    whole = Path.mkdir

    def mkdir(path, *args, **kwargs):
        if path.suffix == ".part":
            raise OSError(28, "No space left on device")
        whole(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(OSError, match=r"cannot write .*d: .*No space left"):
        _cached_arrays.arrays(tmp_path / "d", {"x": (4, 2)}, lambda: iter(()))
    assert os.listdir(tmp_path) == []


def test_seeds_and_noise_that_differ_little_are_told_apart(tmp_path, monkeypatch):
    folders = []
    found = {"inputs": np.ones((4, 200, 3), np.float32), "targets": np.ones((4, 2), np.float32)}
    monkeypatch.setattr(strain_stress, "arrays", lambda folder, *_: folders.append(folder) or found)
    for noise in (0.12345678, 0.12345679):
        strain_stress.build(tmp_path, samples=4, noise=noise)

    assert len(set(folders)) == 2
    with pytest.raises(catalog.CatalogError, match="integer ≥ 0"):
        catalog.check_options("dataset", "strain_stress", {"seed": -1})


def test_a_curve_counts_if_both_parameters_are_within_5_percent(tmp_path):
    data = strain_stress.build(tmp_path, samples=4000)
    random = np.random.default_rng(0)
    targets = data.test.targets.double()
    outputs = targets + torch.from_numpy(random.normal(size=targets.shape)) * 0.1
    found = 0
    for mine, true in zip(outputs.tolist(), targets.tolist(), strict=True):
        proof, exponent = (value * sd + mean for value, sd, mean in zip(true, law.DEVIATION, law.MEAN, strict=True))
        near = [
            abs(value * sd + mean - right) <= 0.05 * right
            for value, sd, mean, right in zip(mine, law.DEVIATION, law.MEAN, (proof, exponent), strict=True)
        ]
        found += all(near)
    assert 200 < found < 800
    assert data.task.metric == "accuracy"
    assert data.task.metric_sum(outputs, targets) == found
    assert data.task.metric_sum(targets, targets) == len(targets)
    assert data.task.loss(torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [0.0, 1.0]])) == 1.5
