"""The meter of a node, as a rank sees it: begin, and at the end what was sampled, whatever became of the sampler."""

import json
import pickle
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_hpc.profiling.rapl import Packages
from ddp_hpc.system.process import boot_id

END_S = 3.0  # how long the end of a training may wait for the sampler, at most


@dataclass(frozen=True, kw_only=True)
class Series:
    """The samples of a device.

    `t_ns` is on the monotonic clock that all processes of the host share; `values` has every counter of
    `nvml.COUNTERS`, nan where there was no answer; `reasons` says why a counter never was read; `ended`, why the
    samples end early, if they do.
    """

    uuid: str
    asked: str  # the UUID that was asked for: as torch gives it
    name: str
    ended: str
    reasons: dict[str, str]
    t_ns: "array[int]"
    values: dict[str, "array[float]"]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What the meter of a node has seen."""

    boot: str = ""  # of the kernel that was asked
    reason: str = ""  # why there is no device
    interval_s: float = 0.0
    devices: list[Series] = field(default_factory=list)
    cpu_reason: str = ""  # why there is no energy of the processors
    packages: int = 0
    cpu_t_ns: "array[int]" = field(default_factory=lambda: array("q"))
    cpu_joules: "array[float]" = field(default_factory=lambda: array("d"))


class Meter:
    """Meters the GPUs and processors of this node in a process of its own, until `stop`; never fails.

    Nothing is started where there is nothing to read.

    Args:
        uuids: of the GPUs, as torch gives them; one that several ranks use may stand there several times.
        interval_s: between samples; None: as the sampler has it.
        command: starts the sampler.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        interval_s: float | None = None,
        command: Sequence[str] = (sys.executable, "-m", "ddp_hpc.profiling.sampler_process"),
    ) -> None:
        self._problem, self._cpu_problem = "" if uuids else "no GPU is used", Packages().reason
        self._process: subprocess.Popen[bytes] | None = None
        if not uuids and self._cpu_problem:
            return
        asked: dict[str, Any] = {"uuids": list(dict.fromkeys(uuids))}
        if interval_s is not None:
            asked["interval_s"] = interval_s
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert self._process.stdin is not None, "it is a pipe"
            self._process.stdin.write(f"{json.dumps(asked)}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            self._problem = self._cpu_problem = f"the sampler cannot be started: {error}"

    def stop(self, end_s: float = END_S) -> Samples:
        """End the sampler, and return what it has; within `end_s` seconds, or without."""
        if self._process is None:
            return Samples(boot=boot_id(), reason=self._problem, cpu_reason=self._cpu_problem)
        said, why = None, "the sampler has died"
        try:
            output, _ = self._process.communicate(b"stop\n", timeout=end_s)
            said = pickle.loads(output) if output else None
        except subprocess.TimeoutExpired:
            self._process.kill()  # and nobody waits for it: a call of the kernel may hold it
            why = f"the sampler did not answer within {end_s:g} s"
        except (OSError, ValueError, pickle.UnpicklingError, EOFError) as error:
            why = f"the sampler cannot be understood: {error}"
        if said is None:
            return Samples(boot=boot_id(), reason=self._problem or why, cpu_reason=self._cpu_problem or why)
        cpu = said["cpu"]
        return Samples(
            boot=boot_id(),
            reason=self._problem or said["reason"],
            interval_s=said["interval_s"],
            devices=[Series(**device) for device in said["devices"]],
            cpu_reason=cpu["reason"],
            packages=cpu["packages"],
            cpu_t_ns=cpu["t_ns"],
            cpu_joules=cpu["joules"],
        )
