"""Data come whole and checked, or not at all."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ddp_hpc.config import catalog
from ddp_hpc.data import _download, cifar10
from ddp_hpc.data._download import RECEIPT, FetchError


@pytest.fixture
def archive(tmp_path):
    """A small archive as the published one is laid out, with its checksum."""
    file = tmp_path / "archive.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for name in (*cifar10.TRAIN_FILES, *cifar10.TEST_FILES):
            content = bytes([len(name) % 10]) + bytes(3072)
            entry = tarfile.TarInfo(f"{cifar10.INSIDE}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file, hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def served(archive):
    """The archive on this machine's own HTTP server; `cut` leaves bytes off its end, though it promises all."""

    class Handler(BaseHTTPRequestHandler):
        cut = requests = 0

        def do_GET(self):
            Handler.requests += 1
            content = archive[0].read_bytes()
            self.send_response(404 if self.path != "/archive" else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) - Handler.cut])

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Handler.url = f"http://127.0.0.1:{server.server_port}/archive"
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fetch(monkeypatch):
    """Fetch into a folder, of which the last part names the dataset, what a source has; return whether that was new."""

    def fetched(source, folder, sha256):
        monkeypatch.setattr(catalog, "constants", lambda kind, name: {"URL": "nowhere://", "SHA256": sha256})
        return "fetched into" in _download.fetch(folder.name, folder.parent, str(source))

    return fetched


def left_over(folder):
    return sorted(entry.name for entry in folder.parent.iterdir()) if folder.parent.exists() else []


def test_an_archive_is_fetched_once_and_can_be_read(fetch, archive, served, tmp_path, capsys):
    folder = tmp_path / "data" / "cifar10"
    assert fetch(served.url, folder, archive[1])
    assert not fetch(served.url, folder, archive[1])
    assert served.requests == 1
    assert len(cifar10.build(folder).train) == 5
    assert left_over(folder) == ["cifar10"]
    assert capsys.readouterr().err == f"{served.url}: 0.0 of 0.0 MB\n"  # in a log, a line that stays


def test_a_path_will_do(fetch, archive, tmp_path):
    folder = tmp_path / "data" / "cifar10"
    assert fetch(archive[0], folder, archive[1])
    assert (folder / cifar10.INSIDE / "test_batch.bin").stat().st_size == 3073


@pytest.mark.parametrize("inside", ["", cifar10.INSIDE])
@pytest.mark.parametrize("compressed", [False, True])
def test_files_that_were_unpacked_before_will_do(monkeypatch, archive, tmp_path, inside, compressed):
    given = tmp_path / "given"
    with tarfile.open(archive[0]) as tar:
        contents = {member.name: tar.extractfile(member).read() for member in tar}
    (given / cifar10.INSIDE).mkdir(parents=True)
    for name, content in contents.items():
        file = given / (f"{name}.gz" if compressed else name)
        file.write_bytes(gzip.compress(content) if compressed else content)
    known = {"URL": "nowhere://", "SHA256": archive[1]}
    known["FILES"] = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(catalog, "constants", lambda kind, name: known)

    assert "fetched into" in _download.fetch("cifar10", tmp_path / "data", str(given / inside))
    folder = tmp_path / "data" / "cifar10"
    assert {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.bin")} == contents
    assert "already in" in _download.fetch("cifar10", tmp_path / "data", str(archive[0]))  # they are the same


@pytest.mark.parametrize(
    ("content", "message"), [(None, "has neither"), (b"other", "has the SHA-256 .*, expected: 00")]
)
def test_a_folder_that_lacks_a_file_or_has_another_is_refused(monkeypatch, tmp_path, content, message):
    given = tmp_path / "given"
    given.mkdir()
    if content:
        (given / "a.bin").write_bytes(content)
    known = {"URL": "nowhere://", "SHA256": "1" * 64, "FILES": {"inside/a.bin": "0" * 64}}
    monkeypatch.setattr(catalog, "constants", lambda kind, name: known)

    with pytest.raises(FetchError, match=rf"{message}.*`ddp-hpc data cifar10 --from PATH`"):
        _download.fetch("cifar10", tmp_path / "data", str(given))
    assert left_over(tmp_path / "data" / "cifar10") == []


def test_a_wrong_checksum_is_refused_with_both_sums(fetch, archive, tmp_path):
    folder = tmp_path / "data" / "cifar10"
    with pytest.raises(FetchError, match=f"has the SHA-256 {archive[1]}, expected: {'0' * 64}"):
        fetch(archive[0], folder, "0" * 64)
    assert left_over(folder) == []


def test_a_partial_download_never_counts(fetch, archive, served, tmp_path):
    folder = tmp_path / "data" / "cifar10"
    served.cut = 10
    with pytest.raises(FetchError, match=r"ended after \d+ of \d+ bytes"):
        fetch(served.url, folder, archive[1])
    assert left_over(folder) == []
    served.cut = 0
    assert fetch(served.url, folder, archive[1])


def test_a_failed_fetch_leaves_the_old_data_and_a_new_archive_replaces_them(fetch, archive, tmp_path):
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    (folder / RECEIPT).write_text("another\n")
    (folder / "old").touch()
    with pytest.raises(FetchError):
        fetch(tmp_path / "missing", folder, archive[1])
    assert (folder / "old").exists()
    assert fetch(archive[0], folder, archive[1])
    assert not (folder / "old").exists()
    assert left_over(folder) == ["cifar10"]


def test_what_cannot_be_read_says_what_else_to_do(fetch, archive, served, tmp_path):
    for source in (tmp_path / "missing", served.url + "-missing", "http://127.0.0.1:9/closed"):
        with pytest.raises(FetchError, match=r"cannot bring .* here: .*--from PATH"):
            fetch(source, tmp_path / "data" / "x", archive[1])


def test_what_is_no_archive_is_refused_although_its_sum_is_right(fetch, tmp_path):
    file = tmp_path / "text"
    file.write_text("no archive")
    with pytest.raises(FetchError, match="no tar archive"):
        fetch(file, tmp_path / "data" / "x", hashlib.sha256(b"no archive").hexdigest())
    assert left_over(tmp_path / "data" / "x") == []


def test_an_archive_cannot_write_outside_its_folder(fetch, tmp_path):
    file = tmp_path / "evil.tar"
    with tarfile.open(file, "w") as tar:
        tar.addfile(tarfile.TarInfo("../../escaped"))
    with pytest.raises(FetchError):
        fetch(file, tmp_path / "data" / "x", hashlib.sha256(file.read_bytes()).hexdigest())
    assert not (tmp_path / "escaped").exists()


def test_fetching_starts_neither_torch_nor_mpi():
    code = "import sys, ddp_hpc.data._download; print({'torch', 'mpi4py', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
