"""Atomic replacement of files, and JSON in them."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Let an OSError of a write say which file that was: on its own only one of opening a file does."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno:
            raise OSError(error.errno, f"{os.strerror(error.errno)}, writing", str(file)) from error
        raise


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Give a path beside `file` to write to, which then takes its place: nobody ever reads half a file.

    After an exception `file` is as it was, and nothing is left beside it. An OSError of a write names `file`.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with naming(file):
            yield temporary
        os.replace(temporary, file)
    finally:
        with suppress(OSError):  # the first error counts
            temporary.unlink(missing_ok=True)


def clock_of(folder: Path) -> float:
    """Return the time by the clock that dates the files of a folder, which may be a server's; ours if it is not ours
    to write."""
    probe = folder / f".clock.{os.getpid()}.tmp"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink()


def remove_temporaries(folder: Path) -> None:
    """Remove what writers that were killed have left beside the files in a folder and in those below.

    No process of another host may be writing there.
    """
    for file in folder.rglob(".*.tmp"):
        if (pid := file.name.split(".")[-2]).isdigit() and not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):
                file.unlink()


def share_like(folder: Path) -> None:
    """Let what this process and its children write be as open to the group as `folder` is, beyond our umask."""
    with suppress(OSError):
        ours = os.umask(0o077)
        os.umask(ours)
        os.umask(ours & ~(folder.stat().st_mode & 0o070))


def user_cache() -> Path:
    """Return the folder in which programs of this user keep what they can make anew; it need not be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def text_of(file: Path) -> str:
    """Return what is in a file; empty if it is not there or cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON, by rename."""
    with replaced(file) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file or it is no JSON."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
