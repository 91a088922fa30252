"""Atomic replacement of files, and JSON in them."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

_CLOCKS: dict[int, float] = {}  # of file systems, by their device: how far ahead of our monotonic one


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
    temporary = file.with_name(f".{file.name}.{_writers()}-{os.getpid()}.tmp")
    try:
        with naming(file):
            yield temporary
        os.replace(temporary, file)
    finally:
        with suppress(OSError):  # the first error counts
            temporary.unlink(missing_ok=True)


def id_space() -> str:
    """Return the namespace in which our process id is seen, as Linux names it: `pid:[4026531836]`; elsewhere empty."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _writers() -> str:
    """Return what names those who see each other by their process ids; what others write may be on its way."""
    return "-".join([os.uname().nodename, *re.findall(r"\d+", id_space())])


def remove_temporaries(folder: Path) -> None:
    """Remove what writers that were killed on this host have left in a folder and in those below."""
    for file in folder.rglob(f".*.{_writers()}-*.tmp"):
        if not os.path.exists(f"/proc/{file.stem.rpartition('-')[2]}"):
            with suppress(OSError):
                file.unlink()


def clock_of(folder: Path) -> float:
    """Return the time by the clock that dates the files of a folder, which may be a server's; ours if we cannot ask.

    Each file system is asked once.
    """
    import tempfile

    try:
        device = folder.stat().st_dev
        if device not in _CLOCKS:
            with tempfile.TemporaryFile(dir=folder) as probe:
                _CLOCKS[device] = os.fstat(probe.fileno()).st_mtime - time.monotonic()
        return _CLOCKS[device] + time.monotonic()
    except OSError:
        return time.time()


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


def read_json(file: Path, wrong: Callable[[dict[str, Any]], str | None] = lambda content: None) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file.

    One that cannot be read, holds something else, or in which `wrong` finds a fault, is left out as well, and named.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        cause = wrong(content) if isinstance(content, dict) else f"{type(content).__name__}, expected: an object"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        cause = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if cause:
        leave_out(file, cause)
    return {} if cause else cast(dict[str, Any], content)


@cache
def leave_out(file: Path, cause: str) -> None:
    """Say, once, that a file or folder is left out, and why: what one file lacks must stop nothing else."""
    with suppress(OSError):
        print(f"ddp-hpc: warning: {file} is left out: {cause}", file=sys.stderr, flush=True)


def put_aside(place: Path, why: str = "") -> None:
    """Give a file or folder a name under which nobody looks for it, and say so; `ddp-hpc prune` lists it."""
    number = 1
    while os.path.lexists(aside := place.with_name(f"{place.name}.aside-{number}")):
        number += 1
    os.replace(place, aside)
    leave_out(place, f"{why}it is kept as {aside.name}")
