"""The process that samples the GPUs and processors of a node: `python -m ddp_hpc.profiling.telemetry_process`.

A process of its own, so that no call of NVML that hangs, and no lock of Python's, holds up the training. It reads one
line of JSON, samples until it is told to stop, at once whenever it is told `now`, and writes what it has, pickled; if
the other end goes away, it ends.
Within it a thread samples, so that it answers even when NVML does not.
"""

import json
import os
import pickle
import signal
import sys
import threading
import time
from array import array
from contextlib import suppress
from typing import Any, NoReturn

from ddp_hpc.profiling.nvml import COUNTERS, Device, as_text
from ddp_hpc.profiling.rapl import CpuPackages
from ddp_hpc.profiling.telemetry import INTERVAL_S, NO_GPU, GpuSamples, NodeSamples
from ddp_hpc.system.process import boot_id, die_with_parent

MOST = 8192  # samples per device: beyond, every second is dropped and the interval doubled
BUSY = 0.1  # the most of the time that may go into reading
LAST_S = 0.5  # how long the last reading may take

Row = tuple[int, dict[str, float]]  # when, and what was read by counter


class TelemetrySampler(threading.Thread):
    """Samples every `interval_s`, until told to stop; of more samples than `most` every second is dropped."""

    def __init__(self, uuids: list[str], interval_s: float = INTERVAL_S, most: int = MOST) -> None:
        super().__init__(daemon=True)
        self._uuids, self._interval_s, self._most = uuids, interval_s, most
        self._devices: list[tuple[Device, list[Row]]] = []
        self._cpu_rows: list[tuple[int, float]] = []
        self._packages = CpuPackages()
        self._reason = "" if uuids else NO_GPU  # why NVML is not asked at all
        self._asked_ns = time.perf_counter_ns()  # when the reading began that is under way; 0: none is
        self._ending, self._wanted = threading.Event(), threading.Event()

    def sample_now(self) -> None:
        """Take the next sample at once."""
        self._wanted.set()

    def end(self) -> NodeSamples:
        """Take a last sample, if that does not take long, and return all."""
        self._ending.set()
        self._wanted.set()
        self.join(LAST_S)
        return self._result()

    def run(self) -> None:
        if self._uuids:
            self._open()
            self._look()
        while True:
            began = self._asked_ns = time.perf_counter_ns()
            last = self._ending.is_set()
            self._sample()
            self._asked_ns = 0
            took_s = (time.perf_counter_ns() - began) / 1e9
            if last:
                self._look()
                return
            self._wanted.wait(max(self._interval_s - took_s, took_s / BUSY))
            self._wanted.clear()

    def _open(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._devices = [(Device(pynvml, uuid), []) for uuid in self._uuids]
        except Exception as error:  # whatever it is, the training goes on
            self._reason = f"NVML: {as_text(str(error))}"

    def _look(self) -> None:
        for device, _ in self._devices:
            device.look()

    def _sample(self) -> None:
        if (joules := self._packages.read()) is not None:
            self._cpu_rows.append((time.perf_counter_ns(), joules))
        for device, rows in self._devices:
            now_ns = time.perf_counter_ns()
            if values := device.read():
                rows.append((now_ns, values))
        kept: list[list[Any]] = [self._cpu_rows, *(rows for _, rows in self._devices)]
        if max(map(len, kept)) >= self._most:
            for rows in kept:
                del rows[1::2]
            self._interval_s *= 2

    def _result(self) -> NodeSamples:
        waits_s = (time.perf_counter_ns() - self._asked_ns) / 1e9 if self._asked_ns else 0.0
        hangs = f"NVML has not answered for {waits_s:.1f} s" if waits_s > LAST_S and self.is_alive() else ""
        return NodeSamples(
            boot=boot_id(),
            reason=self._reason or (hangs if not self._devices else ""),
            devices=[samples_of(device, list(rows), hangs) for device, rows in self._devices],
            cpu_reason=self._packages.reason,
            cpu_t_ns=array("q", [t_ns for t_ns, _ in self._cpu_rows]),
            cpu_joules=array("d", [joules for _, joules in self._cpu_rows]),
        )


def samples_of(device: Device, rows: list[Row], hangs: str) -> GpuSamples:
    """Return a device's samples by counter, nan where there is none, and why counters were never read."""
    nan = float("nan")
    read = {name for _, values in rows for name in values}
    unread = {name: device.reasons.get(name, "it never moved") for name in COUNTERS if name not in read}
    return GpuSamples(
        uuid=device.uuid,
        asked=device.asked,
        name=device.name,
        ended=device.lost or hangs,
        facts=dict(device.facts),
        reasons=unread if read or not hangs else dict.fromkeys(unread, hangs),
        t_ns=array("q", [t_ns for t_ns, _ in rows]),
        values={name: array("d", [values.get(name, nan) for _, values in rows]) for name in COUNTERS},
    )


def main() -> NoReturn:
    """Sample until the other end says stop, or goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank decides
    die_with_parent(signal.SIGKILL)
    with suppress(OSError, AttributeError):  # a rank may be bound to one core, which it needs
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    asked = json.loads(sys.stdin.readline() or "{}")
    sampler = TelemetrySampler(**asked)
    sampler.start()
    for word in iter(sys.stdin.readline, ""):
        if word.strip() == "stop":
            sys.stdout.buffer.write(pickle.dumps(sampler.end()))
            sys.stdout.flush()
            break
        sampler.sample_now()
    os._exit(0)  # whatever hangs


if __name__ == "__main__":
    main()
