"""A lock for one driver at a time in a project; the system releases it when its holder dies."""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from ddp_hpc.system.files import read_json


class DriverLock:
    """The lock of a project, in `results/driver.lock`.

    Source: flock(2). On Lustre it needs the mount option `flock`; on NFS, Linux makes it a byte-range lock.
    """

    def __init__(self, root: Path) -> None:
        self.file = root / "results" / "driver.lock"
        self.descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock and write who we are; return False if another process holds it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": os.uname().nodename, "since": since}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        self.descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; nothing happens if we do not hold it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def refusal(self) -> str:
        """Return the line for the second driver."""
        holder = read_json(self.file)
        away = f" on {holder['host']}" if holder.get("host") not in (None, os.uname().nodename) else ""
        who = f"pid {holder['pid']} on {holder['host']}, since {holder['since']}" if holder else "it has not said who"
        return (
            f"another driver is running in this project: {who}. Wait for it, or end it "
            f"(`kill {holder.get('pid', 'PID')}`{away}); `ddp-hpc status STUDY` shows how far it is"
        )
