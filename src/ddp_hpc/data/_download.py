"""Brings a published archive or files here: read once, checked while they are read, in place by rename.

A folder of a dataset is there as a whole or not at all. Imports neither torch nor MPI.
"""

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60.0
RECEIPT = "archive.sha256"  # in the dataset's folder: which archive it was unpacked from, or of all its files together
GZIP = b"\x1f\x8b"  # how a compressed file begins, whatever its name

Watcher = Callable[[int, int | None], None]  # of the bytes read so far and, where known, of all


class FetchError(RuntimeError):
    """The data could not be had; the message says what to do."""


def fetch(source: str | Path, folder: Path, sha256: str, name: str) -> bool:
    """Unpack an archive into `folder`, and return whether that was needed.

    Args:
        source: path or URL (http, https, file) of a tar archive, compressed or not.
        folder: of the dataset; replaced as a whole if it holds another archive.
        sha256: of the archive, hexadecimal.
        name: of the dataset, for messages.

    Raises:
        FetchError: the source cannot be read, has another checksum, or is no archive. Nothing is changed then.
    """
    if _is_there(folder, sha256):
        return False
    with _made(folder, sha256) as unpacked:
        archive = unpacked.with_name("archive")
        with _progress(name) as watch:
            found = _bring(source, archive, watch, name)
        if found != sha256:
            raise FetchError(
                f"{source} has the SHA-256 {found}, {name} needs {sha256}: the file is damaged, incomplete or another "
                f"one; fetch it again, or give a good copy with `ddp-hpc data {name} --from PATH`"
            )
        _unpack(archive, unpacked, source)
    return True


def fetch_files(source: str | Path, folder: Path, sha256s: Mapping[str, str], name: str) -> bool:
    """Bring files into `folder`, unpacked, and return whether that was needed.

    Args:
        source: path or URL of a folder that has them, each as it is or compressed by gzip with `.gz` behind its name;
            at a URL they are compressed.
        folder: of the dataset; replaced as a whole if it holds others.
        sha256s: of the content of each file, unpacked, by its name.
        name: of the dataset, for messages.

    Raises:
        FetchError: a file is not there, cannot be read, or has another checksum. Nothing is changed then.
    """
    together = hashlib.sha256("".join(f"{file} {sha256s[file]}\n" for file in sorted(sha256s)).encode()).hexdigest()
    if _is_there(folder, together):
        return False
    with _made(folder, together) as unpacked, _progress(name) as watch:
        unpacked.mkdir()
        for file, sha256 in sha256s.items():
            given, copy = _one_of(source, file, name), unpacked.with_name(file)
            _bring(given, copy, watch, name)
            found = _decompress(copy, unpacked / file, given)
            if found != sha256:
                raise FetchError(
                    f"the content of {given} has the SHA-256 {found}, {name} needs {sha256}: the file is damaged, "
                    f"incomplete or of another dataset; give a good copy with `ddp-hpc data {name} --from FOLDER`"
                )
    return True


def _is_there(folder: Path, sha256: str) -> bool:
    receipt = folder / RECEIPT
    return receipt.is_file() and receipt.read_text().strip() == sha256


@contextmanager
def _made(folder: Path, sha256: str) -> Iterator[Path]:
    """Give a folder to be made, alone beside scratch files; put it in the place of `folder` when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        made = Path(scratch, "unpacked")
        yield made
        (made / RECEIPT).write_text(sha256 + "\n")
        if folder.exists():
            os.rename(folder, Path(scratch, "replaced"))
        os.rename(made, folder)


def _one_of(source: str | Path, file: str, name: str) -> str:
    """Return the path or URL of a file in a folder, as it is or compressed."""
    if "://" in str(source):
        return f"{str(source).rstrip('/')}/{file}.gz"
    found = next((path for path in (Path(source, file), Path(source, f"{file}.gz")) if path.is_file()), None)
    if found is None:
        raise FetchError(
            f"{source} has neither {file} nor {file}.gz; give a folder that has all files of {name}: "
            f"`ddp-hpc data {name} --from FOLDER`"
        )
    return str(found)


def _decompress(given: Path, to: Path, source: str) -> str:
    """Copy a file, unpacked if it is compressed, and return the SHA-256 of its content."""
    with given.open("rb") as file:
        compressed = file.read(len(GZIP)) == GZIP
    digest = hashlib.sha256()
    try:
        with gzip.open(given) if compressed else given.open("rb") as content, to.open("wb") as copy:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
                copy.write(block)
    except (OSError, EOFError, zlib.error) as error:
        raise FetchError(f"{source} cannot be unpacked: {error}") from error
    return digest.hexdigest()


def _bring(source: str | Path, to: Path, watch: Watcher, name: str) -> str:
    """Copy what is at a path or URL, and return its SHA-256."""
    with _opened(source, name) as (stream, total), to.open("wb") as copy:
        return _copy(stream, copy, total, watch, source, name)


@contextmanager
def _opened(source: str | Path, name: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a path or URL; give the stream and, where it is known, its length in bytes."""
    text = str(source)
    try:
        if "://" in text:
            with urllib.request.urlopen(text, timeout=TIMEOUT_S) as stream:
                length = stream.headers.get("Content-Length")
                yield stream, int(length) if length else None
        else:
            with open(text, "rb") as stream:
                yield stream, os.path.getsize(text)
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(
            f"cannot bring {source} here: {error}; without a way to it from here, bring it by other means and "
            f"give `ddp-hpc data {name} --from PATH`"
        ) from error


def _copy(stream: IO[bytes], copy: IO[bytes], total: int | None, watch: Watcher, source: str | Path, name: str) -> str:
    """Copy all of a stream and return its SHA-256."""
    digest, done = hashlib.sha256(), 0
    while block := stream.read(BLOCK_BYTES):
        digest.update(block)
        copy.write(block)
        done += len(block)
        watch(done, total)
    if total is not None and done < total:
        raise FetchError(
            f"{source} ended after {done} of {total} bytes; try again, or give `ddp-hpc data {name} --from PATH`"
        )
    return digest.hexdigest()


def _unpack(archive: Path, folder: Path, source: str | Path) -> None:
    """Write the files of a tar archive below `folder`; plain files only, none of which may lie elsewhere.

    By hand, because `extractall(filter="data")` is lacking in Python 3.11.0 to 3.11.3, which Debian 12 has.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _unpack_member(tar, member, folder.resolve())
    except (tarfile.TarError, FetchError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise FetchError(f"{source} is no tar archive that can be unpacked: {error}") from error


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = (folder / member.name).resolve()
    if not target.is_relative_to(folder) or not (member.isdir() or member.isfile()):
        raise FetchError(f"it holds {member.name!r}, which is no plain file inside the archive")
    (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)  # None for a folder
    if content is not None:
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)


@contextmanager
def _progress(name: str, every_s: float = 10.0) -> Iterator[Watcher]:
    """Show the progress: one line that updates on a terminal, a line now and then in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def line(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s or done == total:
            last = time.monotonic()
            of = f" of {total / 1e6:.1f}" if total else ""
            console.print(f"{name}: {done / 1e6:.1f}{of} MB", highlight=False)

    yield line
