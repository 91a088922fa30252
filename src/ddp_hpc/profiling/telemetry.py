"""Telemetry of a node as its first rank uses it: start the process, and collect its samples at the end."""

import json
import pickle
import subprocess
import sys
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ddp_hpc.profiling.rapl import CpuPackages
from ddp_hpc.system.process import boot_id

NO_GPU = "no GPU is used"
INTERVAL_S = 0.1  # between samples, at first
END_S = 3.0  # how long the end of a training may wait for the sampler, at most


@dataclass(frozen=True, kw_only=True)
class GpuSamples:
    """The samples of a GPU."""

    uuid: str
    asked: str  # the UUID that was asked for: as torch gives it
    name: str
    ended: str  # why the samples end early, if they do
    facts: dict[str, Any] = field(default_factory=dict)  # of `nvml.FACTS`, what the device says
    reasons: dict[str, str]  # why a counter never was read
    t_ns: "array[int]"  # on the monotonic clock that all processes of the host share
    values: dict[str, "array[float]"]  # of every counter of `nvml.COUNTERS`; nan where there was no answer


@dataclass(frozen=True, kw_only=True)
class NodeSamples:
    """The samples of the GPUs and processors of a node."""

    boot: str = ""  # of the kernel that was asked
    reason: str = ""  # why there is no device
    devices: list[GpuSamples] = field(default_factory=list)
    cpu_reason: str = ""  # why there is no energy of the processors
    cpu_t_ns: "array[int]" = field(default_factory=lambda: array("q"))
    cpu_joules: "array[float]" = field(default_factory=lambda: array("d"))


def metered_by(rank: int, found: Sequence[tuple[int, str | None, Collection[str]]]) -> list[str]:
    """Return the UUIDs of the GPUs that a rank meters, of what all ranks of its node say: rank, own GPU, GPUs it sees.

    The first rank meters what it sees; where Slurm gives each task its own GPU, the others meter theirs.
    """
    first, _, seen = found[0]
    others = {gpu: one for one, gpu, _ in reversed(found) if gpu is not None and gpu not in seen}  # one rank for each
    here = [gpu for _, gpu, _ in found if gpu is not None and gpu in seen] if rank == first else []
    return [*here, *(gpu for gpu, one in others.items() if one == rank)]


class NodeTelemetry:
    """Samples the GPUs and processors of this node in a process of its own, until `stop`; never fails.

    GPUs are named by their UUIDs, as torch gives them; one that several ranks use may be named several times. Nothing
    is started where there is nothing to read.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        interval_s: float = INTERVAL_S,
        command: Sequence[str] = (sys.executable, "-m", "ddp_hpc.profiling.telemetry_process"),
    ) -> None:
        self._nothing = NodeSamples(boot=boot_id(), reason="" if uuids else NO_GPU, cpu_reason=CpuPackages().reason)
        self._process: subprocess.Popen[bytes] | None = None
        if self._nothing.reason and self._nothing.cpu_reason:
            return
        asked = {"uuids": list(dict.fromkeys(uuids)), "interval_s": interval_s}
        pipe = subprocess.PIPE
        try:  # unbuffered: what a dead sampler did not take is not written again when its pipe is closed
            self._process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        except OSError as error:
            why = f"the sampler cannot be started: {error}"
            self._nothing = replace(self._nothing, reason=why, cpu_reason=why)
        self._tell(json.dumps(asked))

    def sample_now(self) -> None:
        """Let the sampler take a sample at once: a time that counts begins or ends here."""
        self._tell("now")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has died, which `stop` tells
                self._process.stdin.write(f"{line}\n".encode())

    def stop(self, end_s: float = END_S) -> NodeSamples:
        """End the sampler, and return what it has; within `end_s` seconds, or without."""
        if self._process is None:
            return self._nothing
        why = "the sampler has died"
        try:
            output, _ = self._process.communicate(b"stop\n", timeout=end_s)
            if output:
                samples: NodeSamples = pickle.loads(output)
                return samples
        except subprocess.TimeoutExpired:
            self._process.kill()  # and nobody waits for it: a call of the kernel may hold it
            why = f"the sampler did not answer within {end_s:g} s"
        except (OSError, ValueError, pickle.UnpicklingError, EOFError) as error:
            why = f"the sampler cannot be understood: {error}"
        return replace(self._nothing, reason=self._nothing.reason or why, cpu_reason=self._nothing.cpu_reason or why)
