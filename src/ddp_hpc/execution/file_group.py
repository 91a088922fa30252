"""Collective calls of the ranks of one launch, by files of its attempt, where MPI is left to the ranks' program."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

from ddp_hpc.system.files import replaced
from ddp_hpc.system.process import boot_id

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_FIRST_LOOK_S, _LOOK_S = 0.002, 0.1  # between two looks for a file, at first and at most


def size_from_environment() -> int:
    """Return how many ranks the launcher says there are; 1 without a launcher."""
    return next((int(os.environ[name]) for name in _SIZE_VARIABLES if os.environ.get(name, "").isdigit()), 1)


class FileGroup:
    """Some ranks of a launch, as a communicator of mpi4py as far as is needed: for a few small things, not in steps.

    Whoever waits for a rank that has failed is ended by the launcher or the supervisor, as in MPI.
    """

    def __init__(self, folder: Path, members: tuple[int, ...], own: int) -> None:
        """Be the rank `own` of the world, one of the `members`, which all name the same folder."""
        self._folder, self._members, self._own, self._calls = folder, members, own, 0
        self.rank, self.size = members.index(own), len(members)
        folder.mkdir(parents=True, exist_ok=True)

    def allgather(self, value: Any) -> list[Any]:
        """Return what every rank gives, by rank. All must call."""
        self._calls += 1
        with replaced(self._file(self._own)) as temporary:
            temporary.write_bytes(pickle.dumps(value))
        return [pickle.loads(_read(self._file(member))) for member in self._members]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return what every rank gives, on one of them; None on the others, which do not wait."""
        self._calls += 1
        with replaced(self._file(self._own)) as temporary:
            temporary.write_bytes(pickle.dumps(value))
        if self.rank != root:
            return None
        return [pickle.loads(_read(self._file(member))) for member in self._members]

    def allreduce(self, value: int) -> int:
        """Return the sum over the ranks."""
        return sum(self.allgather(value))

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return what rank `root` gives."""
        return self.allgather(value)[root]

    def Barrier(self) -> None:  # noqa: N802 (as mpi4py has it)
        """Return when all ranks have called."""
        self.allgather(None)

    def Split_type(self, kind: int) -> "FileGroup":  # noqa: N802 (as mpi4py has it)
        """Return the ranks that share this one's memory, which is the only kind there is."""
        where = self.allgather((os.uname().nodename, boot_id()))
        mine = tuple(member for member, place in zip(self._members, where, strict=True) if place == where[self.rank])
        self._calls += 1
        return FileGroup(self._folder / f"{self._calls}-{mine[0]}", mine, self._own)

    def Free(self) -> None:  # noqa: N802 (as mpi4py has it)
        """Nothing is held."""

    def _file(self, member: int) -> Path:
        return self._folder / f"{self._calls}.{member}"


def _read(file: Path) -> bytes:
    wait_s = _FIRST_LOOK_S
    while True:
        try:
            return file.read_bytes()
        except FileNotFoundError:
            time.sleep(wait_s)
            wait_s = min(_LOOK_S, 1.5 * wait_s)
