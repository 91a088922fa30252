"""The stamp of a table, a figure or the page: its name says from what it was made, its content which files they are."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from ddp_hpc.system.files import put_aside, text_of, write_json


def put(stamp: Path, made: Path) -> None:
    """Put a stamp in place of the previous one; `made` is the main file of those made, which differ in their suffix."""
    for old in stamp.parent.glob(f"{stamp.stem}.*"):
        old.unlink(missing_ok=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    files = sorted(file for file in made.parent.glob(f"{made.stem}.*") if file.stem == made.stem)
    write_json(stamp, {file.name: [*_size_and_date(file), _digest(file)] for file in files})


def changed(stamp: Path, folder: Path) -> list[Path]:
    """Return which files in `folder` are not as they were made: damaged, edited, deleted; of another date, read.

    A stamp of an earlier version does not know its files.
    """
    return [
        folder / name for name, size, date, digest in _entries(stamp) if _differs(folder / name, size, date, digest)
    ]


def make_way(stamp: Path, folder: Path) -> None:
    """Move aside what was changed since it was made, for it is made anew."""
    for file in changed(stamp, folder):
        if file.exists():
            put_aside(file, "it was changed since it was made, and is made anew; ")


def _entries(stamp: Path) -> Iterator[tuple[str, int, int, str]]:
    try:
        entries = json.loads(text_of(stamp) or "{}")
        yield from [(name, int(size), int(date), str(digest)) for name, (size, date, digest) in entries.items()]
    except (ValueError, TypeError, AttributeError):  # half written: its file is trusted no more
        yield stamp.name, -1, 0, ""


def _differs(file: Path, size: int, date: int, digest: str) -> bool:
    try:
        now = _size_and_date(file)
        return now != (size, date) and (now[0] != size or _digest(file) != digest)
    except OSError:
        return True


def _size_and_date(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
