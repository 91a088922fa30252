"""Strain-stress curves of a user's own, from a file: standardised, or refused with the reason."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ddp_hpc.config import catalog
from ddp_hpc.data import _own_curves, strain_stress


def table(count=12):
    """Curves of a user's own, as rows of 602 numbers: units, sizes and the flag's values are theirs."""
    random = np.random.default_rng(5)
    return np.column_stack([random.normal(3, 40, (count, 600)), random.uniform(1e3, 2e3, count), np.arange(count) + 5])


def parquet(rows, **columns):
    points = rows[:, :600].reshape(-1, 200, 3)
    own = {name: list(points[:, :, place]) for place, name in enumerate(("strain", "stress", "flag"))}
    return pa.table(own | {"parameter_1": rows[:, 600], "parameter_2": rows[:, 601]} | columns)


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_own_curves_are_standardised_by_those_to_train_on(tmp_path, form):
    rows, file = table(), tmp_path / f"own.{form}"
    np.save(file, rows) if form == "npy" else pq.write_table(parquet(rows), file)

    data = strain_stress.build(tmp_path, path=str(file))

    assert (len(data.train), len(data.test)) == (9, 3)
    points = rows[:, :600].reshape(-1, 200, 3)
    for channel in range(3):
        train = points[:9, :, channel]
        expected = (points[:, :, channel] - train.mean()) / train.std()
        found = torch.cat([data.train.inputs, data.test.inputs])[:, :, channel]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    parameters = rows[:, 600:]
    expected = (parameters - parameters[:9].mean(axis=0)) / parameters[:9].std(axis=0)
    np.testing.assert_allclose(torch.cat([data.train.targets, data.test.targets]), expected, atol=1e-5)
    mean = parameters[:9].mean(axis=0)
    near = (np.abs(mean - parameters[9:]) <= 0.05 * parameters[9:]).all(axis=1).sum()
    assert data.task.metric_sum(torch.zeros(3, 2), data.test.targets) == near
    assert len(strain_stress.build(tmp_path, path=str(file), samples=8).train) == 6


def broken(place, value):
    rows = table()
    rows[place] = value
    return rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            broken((7, 3), np.nan),
            r"1 of 12 curves hold what is no finite float32, the first of them curve 7",
        ),
        (broken((7, 3), 1e300), r"1 of 12 curves hold what is no finite float32"),
        (
            broken((2, 601), np.inf),
            r"1 of 12 curves hold what is no finite float32, the first of them curve 2",
        ),
        (table()[:, 1:], r"shape \(12, 601\); expected: a .npy file of numbers of the shape \(curves, 602\)"),
        (table().reshape(2, 6, 602), r"shape \(2, 6, 602\); expected"),
        (table().astype("U8"), r"holds <U8 of the shape"),
        (table(3), r"has 3 curves, asked for: at least 4"),
        (broken((slice(None), 600), 7.0), r"a parameter is the same in all curves to train on"),
        (np.array([{"a": 1}]), r"cannot be read"),
    ],
)
def test_own_curves_that_are_none_are_refused(tmp_path, content, message):
    np.save(tmp_path / "own.npy", content)
    with pytest.raises(ValueError, match=message):
        strain_stress.build(tmp_path, path=str(tmp_path / "own.npy"))


SHORT = [np.zeros(200)] * 11 + [np.zeros(199)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda whole: whole.drop_columns(["flag", "parameter_1"]),
            "has no column flag, parameter_1; expected: .*lists",
        ),
        (lambda whole: parquet(table(), stress=SHORT), r"stress of curve 11 \(counted from 0\) has 199 points"),
        (lambda whole: parquet(table(), strain=[None, *([np.zeros(200)] * 11)]), "strain of curve 0 .*has nan points"),
        (lambda whole: parquet(table(), flag=["yes"] * 12), "the column flag holds string"),
        (lambda whole: parquet(table(), parameter_2=["a"] * 12), "the column parameter_2 holds string"),
        (lambda whole: parquet(table(), parameter_2=[None, *range(11)]), "the first of them curve 0"),
    ],
)
def test_own_parquet_that_is_none_is_refused(tmp_path, change, message):
    pq.write_table(change(parquet(table())), tmp_path / "own.parquet")
    with pytest.raises(ValueError, match=message):
        strain_stress.build(tmp_path, path=str(tmp_path / "own.parquet"))


def test_own_curves_that_are_not_there_or_too_few_say_so(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"own.npy is not there; dataset strain_stress takes with `path` a .npy"
    ):
        strain_stress.build(tmp_path, path=str(tmp_path / "own.npy"))
    with pytest.raises(ValueError, match=r"a file named .csv, expected: a .npy"):
        strain_stress.build(tmp_path, path="own.csv")
    np.save(tmp_path / "own.npy", table())
    with pytest.raises(ValueError, match="has 12 curves, asked for: 13"):
        strain_stress.build(tmp_path, path=str(tmp_path / "own.npy"), samples=13)
    with pytest.raises(ValueError, match="samples=2, expected: at least 4"):
        strain_stress.build(tmp_path, path=str(tmp_path / "own.npy"), samples=2)
    np.savez(tmp_path / "own.npz", table())
    os.replace(tmp_path / "own.npz", tmp_path / "archive.npy")
    with pytest.raises(ValueError, match=r"archive.npy cannot be read"):
        strain_stress.build(tmp_path, path=str(tmp_path / "archive.npy"))
    (tmp_path / "half.parquet").write_bytes(b"PAR1 half of it")
    with pytest.raises(ValueError, match=r"half.parquet cannot be read"):
        strain_stress.build(tmp_path, path=str(tmp_path / "half.parquet"))


def test_options_of_made_curves_mean_nothing_with_a_file():
    with pytest.raises(catalog.CatalogError, match=r"'noise' of dataset 'strain_stress'.*with path: None"):
        catalog.check_options("dataset", "strain_stress", {"path": "own.npy", "noise": 0.1})
    assert catalog.check_options("dataset", "strain_stress", {"path": "own.npy", "samples": 8})
    assert _own_curves.WIDTH == 602
