"""Fashion-MNIST: files in the IDX format, hand-made; where they come from; and that damaged ones are refused."""

import gzip
import hashlib
import struct
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from ddp_hpc.config import catalog, spec
from ddp_hpc.data import _download, _idx, fashion_mnist
from ddp_hpc.models import alexnet

TRAIN, TEST = 5, 3


def idx(array):
    """The bytes of an array in the published format."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def images():
    draw = np.random.default_rng(0)
    return {part: draw.integers(0, 256, (n, 28, 28), np.uint8) for part, n in (("train", TRAIN), ("t10k", TEST))}


@pytest.fixture
def folder(tmp_path, images):
    """A folder with the four files, of a few images."""
    made = tmp_path / "plain"
    made.mkdir()
    for part, pixels in images.items():
        (made / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (made / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(9, 9 - len(pixels), -1).astype(np.uint8)))
    return made


@pytest.fixture
def checked(folder, monkeypatch):
    """The catalogue knows the checksums of these files instead of those of the published ones."""
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    known = {"URL": "nowhere://", "INSTALL": "apt install it", "FILES": sums, "PLACE": str(folder)}
    monkeypatch.setattr(catalog, "constants", lambda kind, name: known)
    return known


def test_a_file_made_by_hand_is_read(tmp_path):
    """2 x 3 numbers: bytes 00 00 08 02, then 00 00 00 02 and 00 00 00 03, then row by row."""
    file = tmp_path / "some"
    file.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 250, 251, 252]))

    assert _idx.read(file).tolist() == [[1, 2, 3], [250, 251, 252]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (b"\0\0\x08", "begins with 00 00 08,"),
        (b"\x89PNG1234", "no IDX file: it begins with 89 50 4e 47"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x01\x07", mtime=0), "compressed with gzip"),
        (b"\0\0\x08\x00", "no IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "type 0x0d, expected: 0x08"),
        (b"\0\0\x08\x01\0\0\0\x03\x01\x02", "has 10 bytes, but 3 numbers and their header take 11"),
        (b"\0\0\x08\x01\0\0\0\x01\x01\x02", "has 10 bytes, but 1 numbers and their header take 9"),
        (b"\0\0\x08\x02\0\0\0\x02\0\0", "has 10 bytes"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "has 16 bytes, but 4294967295 x 4294967295 x 4294967295"),
    ],
)
def test_a_file_of_another_format_or_length_is_refused(tmp_path, content, message):
    file = tmp_path / "some"
    file.write_bytes(content)

    with pytest.raises(ValueError, match=message):
        _idx.read(file)


def test_images_lie_in_the_middle_of_a_black_margin(folder, images):
    data = fashion_mnist.build(folder)

    assert data.shape == catalog.constants("dataset", "fashion_mnist")["SHAPE"] == (1, 32, 32)
    assert (len(data.train), len(data.test)) == (TRAIN, TEST)
    shown = (data.train.inputs[:, 0].numpy() * 0.3530 + 0.2860) * 255
    np.testing.assert_allclose(shown[:, 2:-2, 2:-2], images["train"], atol=1e-3)
    margin = np.ones((32, 32), bool)
    margin[2:-2, 2:-2] = False
    np.testing.assert_allclose(shown[:, margin], 0, atol=1e-4)
    assert data.train.targets.tolist() == [9, 8, 7, 6, 5]
    assert data.test.targets.dtype == torch.int64


def test_fewer_images_are_the_first_of_all(folder):
    few, full = fashion_mnist.build(folder, train_samples=2, test_samples=1), fashion_mnist.build(folder)

    assert torch.equal(few.train.inputs, full.train.inputs[:2])
    assert torch.equal(few.test.inputs, full.test.inputs[:1])
    with pytest.raises(ValueError, match="test_samples=4, expected: 1 to 3"):
        fashion_mnist.build(folder, test_samples=4)


@pytest.mark.parametrize(("option", "most"), [("train_samples", 60_000), ("test_samples", 10_000)])
def test_planning_refuses_more_images_than_there_are(option, most):
    given = {"model": "alexnet", "exchange": "none", "world_size": 1, "batch_size": 8, "learning_rate": 0.1}

    def of(samples):
        return spec.load(given | {"budget": {"steps": 1}, "dataset": {"name": "fashion_mnist", option: samples}})

    assert of(most).dataset.options[option] == most
    with pytest.raises(ValueError, match=rf"dataset 'fashion_mnist': {option}={most + 1}, expected: 1 to {most}"):
        of(most + 1)


def test_the_network_for_cifar_takes_grey_images(folder):
    data = fashion_mnist.build(folder)
    model = alexnet.build(data.shape, fashion_mnist.OUTPUTS)

    assert model(data.train.inputs).shape == (TRAIN, 10)
    assert tuple(model[0].weight.shape) == (32, 1, 5, 5)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((TRAIN, 28, 27), np.uint8), "not images of 28x28"),
        ("train-images-idx3-ubyte", np.zeros((TRAIN + 1, 28, 28), np.uint8), "not images of 28x28"),
        ("t10k-labels-idx1-ubyte", np.zeros((TEST, 1), np.uint8), "not images of 28x28"),
        ("t10k-labels-idx1-ubyte", np.full(TEST, 10, np.uint8), "class 10, expected: 0 to 9"),
    ],
)
def test_images_and_classes_that_do_not_fit_are_refused(folder, name, array, message):
    (folder / name).write_bytes(idx(array))

    with pytest.raises(ValueError, match=message):
        fashion_mnist.build(folder)


def test_without_the_files_it_says_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`ddp-hpc data fashion_mnist`.*dataset-fashion-mnist.*--from FOLDER"):
        fashion_mnist.build(tmp_path)


def test_files_come_from_where_the_package_has_them_or_a_folder_compressed_or_not(tmp_path, folder, checked):
    assert "fetched into" in _download.fetch("fashion_mnist", tmp_path / "a")  # from PLACE
    other = tmp_path / "compressed"
    other.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        content = file.read_bytes()
        name, kept = (file.name, content) if number == 0 else (f"{file.name}.gz", gzip.compress(content))
        (other / name).write_bytes(kept)
    assert "fetched into" in _download.fetch("fashion_mnist", tmp_path / "b", str(other))
    assert "already in" in _download.fetch("fashion_mnist", tmp_path / "b", str(other))

    for place in ("a", "b"):
        for file in folder.iterdir():
            assert (tmp_path / place / "fashion_mnist" / file.name).read_bytes() == file.read_bytes()
    assert (tmp_path / "b" / "fashion_mnist" / _download.RECEIPT).is_file()


def test_files_come_from_where_they_were_published_if_there_is_no_package(tmp_path, folder, checked):
    """The checksums are of the content, so it does not matter who compressed it."""
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 1))
        file.unlink()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        checked |= {"URL": f"http://127.0.0.1:{server.server_port}/", "PLACE": str(tmp_path / "no_such")}
        _download.fetch("fashion_mnist", tmp_path / "data")
        server.shutdown()

    assert len(fashion_mnist.build(tmp_path / "data" / "fashion_mnist").train) == TRAIN


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.unlink(), "has neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "damaged, incomplete or of another dataset"),
        (lambda file: file.write_bytes(gzip.compress(file.read_bytes())[:-9]), "cannot be unpacked"),
        (lambda file: file.write_bytes(b"\x1f\x8bnot at all"), "cannot be unpacked"),
    ],
)
def test_lacking_cut_or_other_files_change_nothing_and_the_error_says_what_to_do(
    tmp_path, folder, checked, spoil, message
):
    spoil(folder / "train-labels-idx1-ubyte")

    with pytest.raises(_download.FetchError, match=rf"(?s){message}.*on Debian and Ubuntu, `apt install it` brings it"):
        _download.fetch("fashion_mnist", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
