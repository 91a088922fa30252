"""A lock for one driver at a time in a project; the system releases it when its holder dies."""

import errno
import fcntl
import json
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_hpc.system.files import naming, read_json, write_json
from ddp_hpc.system.process import lives, ourselves

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
OTHERS_WRITE_S = 0.5  # in which one who has seen no holder at the same time as we has written, too


class DriverAliveError(RuntimeError):
    """Another driver is alive."""


class DriverLock:
    """The lock of a project, in `results/driver.lock`.

    Source: flock(2). On Lustre it needs the mount option `flock`; on NFS, Linux makes it a byte-range lock. On a file
    system without locks the holder is known by its process, as the file names it.
    """

    def __init__(self, root: Path) -> None:
        self.file = root / "results" / "driver.lock"
        self.descriptor: int | None = None
        self._locks = True  # the file system has them

    def take(self) -> bool:
        """Take the lock and write who we are; return False if another process holds it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError as error:
            raise PermissionError(f"{self.file} is not yours to write{_owner(self.file)}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            if error.errno not in NO_LOCKS:
                raise
            self._locks = False
            return self._take_by_name()
        os.ftruncate(descriptor, 0)
        with naming(self.file):
            os.pwrite(descriptor, json.dumps(_holder()).encode(), 0)
        self.descriptor = descriptor
        return True

    def _take_by_name(self) -> bool:
        ours, holder = _holder(), read_json(self.file)
        if holder and lives(holder) is not False:
            return False
        write_json(self.file, ours)
        time.sleep(OTHERS_WRITE_S)
        return read_json(self.file) == ours

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock meanwhile; a DriverAliveError if another process does."""
        if not self.take():
            raise DriverAliveError(self.refusal())
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Give the lock back; nothing happens if we do not hold it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        elif not self._locks and read_json(self.file).get("pid") == os.getpid():
            self.file.unlink(missing_ok=True)

    def refusal(self) -> str:
        """Return the line for the second driver."""
        holder = read_json(self.file)
        away = f" on {holder['host']}" if holder.get("host") not in (None, os.uname().nodename) else ""
        user = f" of {holder['user']}" if holder.get("user") else ""
        who = (
            f"pid {holder['pid']}{user} on {holder['host']}, since {holder['since']}"
            if holder
            else "it has not said who"
        )
        return (
            f"another driver is running in this project: {who}. Wait for it, or end it "
            f"(`kill {holder.get('pid', 'PID')}`{away}); `ddp-hpc status STUDY` shows how far it is"
            + ("" if self._locks else f". This file system has no locks: if it is gone, delete {self.file}")
        )


def _holder() -> dict[str, Any]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return ourselves() | {"user": _name(os.geteuid()), "since": since}


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # a container that does not know its user
        return str(user)


def _owner(file: Path) -> str:
    with suppress(OSError):
        stat = file.stat()
        return f" (of {_name(stat.st_uid)}, mode {stat.st_mode & 0o7777:04o})"
    return ""
