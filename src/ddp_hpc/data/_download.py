"""Fetches datasets: a folder of published data is there as a whole and checked, or not at all.

Not by pooch (1.9): it takes no files that the user has, checks what travels and not what it unpacks, writes an archive
file by file into the place of the data, and before Python 3.12 lets it write anywhere. Imports neither torch nor MPI.
"""

import gzip
import hashlib
import http.client
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ddp_hpc.config import catalog
from ddp_hpc.config.catalog import CatalogError
from ddp_hpc.system.progress import ProgressLine

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60.0
RECEIPT = "archive.sha256"  # in the dataset's folder: which archive it was unpacked from, or of all its files together
DAMAGED = "it is damaged, incomplete or of another dataset"
GZIP = b"\x1f\x8b"  # how a compressed file begins, whatever its name


class FetchError(RuntimeError):
    """The data could not be had; the message says what to do."""


def fetch(dataset: str, data_folder: Path, source: str | None = None) -> str:
    """Bring a dataset into its folder below `data_folder`, which is replaced as a whole, and return a line about it.

    Where from, and its checksums, are constants of its file. The `source` is a path or URL (http, https, file) of the
    published tar archive, compressed or not; or of a folder with the published files, compressed by gzip or, below a
    path, not; of an archive whose files have checksums of their own, a path to them will do. None: where a package of
    the system has them, else where they were published. After a FetchError, as the data cannot be had or are others,
    what was there before stays; a dataset that ships with a library is a CatalogError.
    """
    known = catalog.constants("dataset", dataset)
    if "URL" not in known:
        if source:
            raise CatalogError(f"dataset {dataset!r} ships with its library, it cannot be taken from {source}")
        return f"{dataset}: ships with its library, nothing to fetch"
    folder, files = data_folder / dataset, known.get("FILES", {})
    listed = "".join(f"{file} {files[file]}\n" for file in sorted(files))
    sha256 = known.get("SHA256") or hashlib.sha256(listed.encode()).hexdigest()
    if (folder / RECEIPT).is_file() and (folder / RECEIPT).read_text().strip() == sha256:
        return f"{dataset}: already in {folder}"
    installed = known.get("PLACE", "")
    place = source or (installed if os.path.isdir(installed) else known["URL"])
    try:
        with _made(folder, sha256) as new:
            if files and ("SHA256" not in known or os.path.isdir(place)):
                _fetch_files(place, new, files)
            else:
                _fetch_archive(place, new, sha256)
    except FetchError as error:
        given = "PATH" if "SHA256" in known else "FOLDER"
        do = f"{error}; try again, or give a good copy: `ddp-hpc data {dataset} --from {given}`"
        do += f"; on Debian and Ubuntu, `{known['INSTALL']}` brings it" if "INSTALL" in known else ""
        raise FetchError(do) from error
    return f"{dataset}: fetched into {folder}"


@contextmanager
def _made(folder: Path, sha256: str) -> Iterator[Path]:
    """Give an empty folder, alone beside scratch files; put it in the place of `folder` when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        made = Path(scratch, "unpacked")
        made.mkdir()
        yield made
        (made / RECEIPT).write_text(sha256 + "\n")
        if folder.exists():
            os.rename(folder, Path(scratch, "replaced"))
        os.rename(made, folder)


def _fetch_files(place: str, folder: Path, files: Mapping[str, str]) -> None:
    """Bring files into `folder`, unpacked; `files` has the SHA-256 of the content of each."""
    for file, sha256 in files.items():
        given = _given(place, file)
        if given is None:
            raise FetchError(f"{place} has neither {file} nor {file}.gz, expected: a folder with {', '.join(files)}")
        brought, to = folder.with_name(Path(file).name), folder / file
        _bring(given, brought)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = _decompress(brought, to)
        except (OSError, EOFError, zlib.error) as error:
            raise FetchError(f"{given} cannot be unpacked: {error}") from error
        if found != sha256:
            raise FetchError(f"the content of {given} has the SHA-256 {found}, expected: {sha256}; {DAMAGED}")


def _given(place: str, file: str) -> str | None:
    """Return where a file is: at a URL, compressed; below a path, with or without its own folder."""
    if "://" in place:
        return f"{place.rstrip('/')}/{file}.gz"
    found = [Path(place, name + end) for name in (file, Path(file).name) for end in ("", ".gz")]
    return next((str(one) for one in found if one.is_file()), None)


def _decompress(given: Path, to: Path) -> str:
    """Copy a file piece by piece, unpacked if it is compressed, and return the SHA-256 of its content."""
    with given.open("rb") as file:
        compressed = file.read(len(GZIP)) == GZIP
    with gzip.open(given) if compressed else given.open("rb") as content, to.open("wb") as copy:
        shutil.copyfileobj(content, copy)
    with to.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_archive(place: str, folder: Path, sha256: str) -> None:
    """Write the files of a tar archive below `folder`; plain files only, none of which may lie elsewhere.

    By hand, because `extractall(filter="data")` is lacking in Python 3.11.0 to 3.11.3, which Debian 12 has.
    """
    archive = folder.with_name("archive")
    found = _bring(place, archive)
    if found != sha256:
        raise FetchError(f"{place} has the SHA-256 {found}, expected: {sha256}; {DAMAGED}")
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                target = (folder / member.name).resolve()
                if not target.is_relative_to(folder.resolve()) or not (member.isdir() or member.isfile()):
                    raise FetchError(f"{place} holds {member.name!r}, which is no plain file inside the archive")
                (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
                if content := tar.extractfile(member):  # None for a folder
                    with target.open("wb") as file:
                        shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise FetchError(f"{place} is no tar archive that can be unpacked: {error}") from error


def _bring(source: str, to: Path) -> str:
    """Copy what is at a path or URL, and return its SHA-256."""
    url = source if "://" in source else Path(source).absolute().as_uri()
    digest, done, line = hashlib.sha256(), 0, ProgressLine(sys.stderr)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as stream, to.open("wb") as copy:
            total = int(stream.headers.get("Content-Length") or 0) or None
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
                copy.write(block)
                done += len(block)
                of = f" of {total / 1e6:.1f}" if total else ""
                line.show(f"{source}: {done / 1e6:.1f}{of} MB", last=done == total)
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"cannot bring {source} here: {error}") from error
    finally:
        line.end()
    if total is not None and done < total:
        raise FetchError(f"{source} ended after {done} of {total} bytes")
    return digest.hexdigest()
