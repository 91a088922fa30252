"""What NVML says of a GPU, one reading at a time. What it does not say is missing, and the reason kept: never 0.

Source: https://docs.nvidia.com/deploy/nvml-api, through the module pynvml of nvidia-ml-py.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

KIB, KB = 1024, 1000
POLL_EVERY_S = 2.0  # without a counter of PCIe traffic NVML watches it for 20 ms at each call
ALL_LINKS = 0xFFFFFFFF  # scope of an NVLink counter: summed over the links
WRAP = 2**32  # where a counter of 32 bits begins anew
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}  # bytes per second, by generation

WRAPPED = "the counter has 32 bits, and may have begun anew more than once between two samples"
MIG = "a MIG slice has no meter of its own: the GPU's counts all of its slices"

_FINAL = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT")
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")


class Device:
    """A GPU, found by its UUID: the number that NVML gives a GPU is not CUDA's."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Look by the module pynvml for a UUID as torch gives it, or as NVML does, with `GPU-` or `MIG-`."""
        self.nvml = nvml
        self.uuid, self.asked, self.name = uuid, uuid, ""
        self.lost = ""  # why the device answers no more; empty: it does
        self.facts: dict[str, Any] = {}  # of `FACTS`, what the device says
        self.reasons: dict[str, str] = {}  # by counter, why it was never read; a counter that was read has none
        self._final: set[str] = set()
        self._last: dict[str, tuple[int, float]] = {}  # of rising counters: when, how much
        self._wraps: set[str] = set()  # counters that have begun anew, or have 32 bits
        self._polled_ns: dict[str, int] = {}  # of PCIe traffic that has no counter: when it was last asked for
        problem = ""
        for form in [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]:
            try:
                self._handle = nvml.nvmlDeviceGetHandleByUUID(form)
                self.uuid, self.name = form, as_text(self.ask("Name"))
            except nvml.NVMLError as error:
                problem = problem or as_text(str(error))
            else:
                sliced = form.startswith("MIG-")
                with suppress(nvml.NVMLError):
                    sliced = sliced or bool(self.ask("MigMode")[0])
                for name in ("energy_counter_j", "power_w") if sliced else ():
                    self._give_up(name, MIG)
                return
        self._lose(f"NVML finds no device of UUID {uuid}: {problem}")

    def _lose(self, why: str) -> None:
        self.lost = why
        for name in COUNTERS:
            self.reasons.setdefault(name, why)

    def _give_up(self, name: str, why: str) -> None:
        self.reasons.setdefault(name, why)
        self._final.add(name)

    def look(self) -> None:
        """Keep what decides how fast the device is, and how many processes compute there, the most of all looks."""
        before = self.facts.get("compute_processes", 0)
        for name, read in FACTS.items():
            with suppress(Exception):  # not on this device, or not in this library; a meter must not hurt
                self.facts[name] = read(self)
        if "compute_processes" in self.facts:
            self.facts["compute_processes"] = max(before, self.facts["compute_processes"])

    def read(self) -> dict[str, float]:
        """Return what can be read now, by counter; nothing if the device is lost."""
        found: dict[str, float] = {}
        for name, read in COUNTERS.items() if not self.lost else ():
            if name in self._final:
                continue
            try:
                value = read(self)
            except self.nvml.NVMLError as error:
                code = getattr(error, "value", None)
                if code in self._codes(_LOST):
                    self._lose(f"lost: {as_text(str(error))}")
                    break
                self.reasons.setdefault(name, f"NVML: {as_text(str(error))}")
                if code in self._codes(_FINAL):
                    self._final.add(name)
                continue
            except Exception as error:  # a library of another version; a meter must not hurt what it meters
                self._give_up(name, f"{type(error).__name__}: {error}")
                continue
            if value is not None:
                found[name] = float(value)
        return found

    def _codes(self, names: tuple[str, ...]) -> list[int]:
        return [getattr(self.nvml, f"NVML_ERROR_{name}") for name in names]

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what `nvmlDeviceGet...` says of this device."""
        return getattr(self.nvml, f"nvmlDeviceGet{function}")(self._handle, *arguments)

    def power_w(self) -> float:
        """Return the power now; where there is none, the mean of the last second from Ampere on."""
        try:
            return self._field(self.nvml.NVML_FI_DEV_POWER_INSTANT) / 1e3
        except self.nvml.NVMLError:
            return float(self.ask("PowerUsage")) / 1e3

    def pcie(self, way: str) -> float | None:
        """Return the bytes per second that come in, `RX`, or go out, `TX`."""
        if way not in self._polled_ns:
            try:
                found = self.rate(counter := f"PCIE_COUNT_{way}_BYTES", 1)
            except self.nvml.NVMLError:
                self._polled_ns[way] = 0
            else:
                if found is None and counter in self._wraps:
                    self.reasons.setdefault(f"pcie_{way.lower()}_bytes_per_s", WRAPPED)
                return found
        now_ns = time.perf_counter_ns()
        if now_ns - self._polled_ns[way] < 1e9 * POLL_EVERY_S:
            return None
        self._polled_ns[way] = now_ns
        return KB * float(self.ask("PcieThroughput", getattr(self.nvml, f"NVML_PCIE_UTIL_{way}_BYTES")))

    def throttle_reasons(self) -> int:
        """Return why clocks are slow, as bits; by the old name of the call where a driver does not know the new one."""
        try:
            return int(self.ask("CurrentClocksEventReasons"))
        except (self.nvml.NVMLError, AttributeError):
            return int(self.ask("CurrentClocksThrottleReasons"))

    def nvlinks(self) -> int:
        """Return how many NVLinks are up."""
        links = range(int(self._field(self.nvml.NVML_FI_DEV_NVLINK_LINK_COUNT)))
        return sum(self.ask("NvLinkState", link) == self.nvml.NVML_FEATURE_ENABLED for link in links)

    def nvlink(self, way: str, old: str) -> float | None:
        """Return the bytes per second over all links; where the `old` counter is not, by that of newer drivers."""
        try:
            return self.rate(f"NVLINK_THROUGHPUT_DATA_{old}", KIB, ALL_LINKS)
        except self.nvml.NVMLError:
            return self.rate(f"NVLINK_COUNT_{way}_BYTES", 1, ALL_LINKS)

    def _field(self, number: int, scope: int = 0) -> float:
        value = self.ask("FieldValues", [(number, scope)])[0]
        if value.nvmlReturn != 0:
            raise self.nvml.NVMLError(value.nvmlReturn)
        kinds = {
            self.nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
            self.nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            self.nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            self.nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            self.nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        return float(getattr(value.value, kinds[value.valueType]))

    def rate(self, name: str, unit: int, scope: int = 0) -> float | None:
        """Return how fast a counter rises, in bytes per second; None at first, and where that is not known.

        NVML warns that counters of PCIe may wrap. One that did is taken to have 32 bits from then on: of it no more is
        known than that the link cannot have carried so much twice.
        """
        number = getattr(self.nvml, f"NVML_FI_DEV_{name}")
        now_ns, now = time.perf_counter_ns(), self._field(number, scope)
        then_ns, then = self._last.get(name, (now_ns, now))
        self._last[name] = (now_ns, now)
        if now < then < WRAP and name.startswith("PCIE_"):
            self._wraps.add(name)
        rise, seconds = now - then, (now_ns - then_ns) / 1e9
        if name in self._wraps:
            rise %= WRAP
            if rise + WRAP <= self._pcie_most() * seconds:
                return None
        return unit * rise / seconds if seconds > 0 and rise >= 0 else None

    def _pcie_most(self) -> float:
        """Return the bytes per second that the link to the host may carry; a fast one's if that is not known."""
        generation, width = self.facts.get("pcie_generation_max", 0), self.facts.get("pcie_width_max", 16)
        return float(width * PCIE_LANE.get(generation, max(PCIE_LANE.values())))


def as_text(words: str | bytes) -> str:
    """Return words of NVML, which in some versions are bytes, as text."""
    return words.decode(errors="replace") if isinstance(words, bytes) else words


# how each counter is read, in this order: energy and power first, at the time of the sample
COUNTERS: dict[str, Callable[[Device], float | None]] = {
    "energy_counter_j": lambda gpu: gpu.ask("TotalEnergyConsumption") / 1e3,
    "power_w": lambda gpu: gpu.power_w(),
    "utilisation": lambda gpu: gpu.ask("UtilizationRates").gpu / 100,
    "memory_used_bytes": lambda gpu: gpu.ask("MemoryInfo").used,
    "sm_clock_mhz": lambda gpu: gpu.ask("ClockInfo", gpu.nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda gpu: gpu.ask("ClockInfo", gpu.nvml.NVML_CLOCK_MEM),
    "temperature_c": lambda gpu: gpu.ask("Temperature", gpu.nvml.NVML_TEMPERATURE_GPU),
    "throttle_reasons": lambda gpu: gpu.throttle_reasons(),
    "pcie_rx_bytes_per_s": lambda gpu: gpu.pcie("RX"),
    "pcie_tx_bytes_per_s": lambda gpu: gpu.pcie("TX"),
    "nvlink_rx_bytes_per_s": lambda gpu: gpu.nvlink("RCV", "RX"),
    "nvlink_tx_bytes_per_s": lambda gpu: gpu.nvlink("XMIT", "TX"),
}


# what differs between devices of one name, or from day to day
FACTS: dict[str, Callable[[Device], Any]] = {
    "power_limit_w": lambda gpu: gpu.ask("EnforcedPowerLimit") / 1e3,
    "sm_clock_max_mhz": lambda gpu: gpu.ask("MaxClockInfo", gpu.nvml.NVML_CLOCK_SM),
    "memory_clock_max_mhz": lambda gpu: gpu.ask("MaxClockInfo", gpu.nvml.NVML_CLOCK_MEM),
    "sm_clock_asked_mhz": lambda gpu: gpu.ask("ApplicationsClock", gpu.nvml.NVML_CLOCK_SM),
    "ecc": lambda gpu: bool(gpu.ask("EccMode")[0]),
    "mig": lambda gpu: bool(gpu.ask("MigMode")[0]),
    "compute_mode": lambda gpu: gpu.ask("ComputeMode"),
    "pcie_generation": lambda gpu: gpu.ask("CurrPcieLinkGeneration"),
    "pcie_width": lambda gpu: gpu.ask("CurrPcieLinkWidth"),
    "pcie_generation_max": lambda gpu: gpu.ask("MaxPcieLinkGeneration"),  # a link rests at less
    "pcie_width_max": lambda gpu: gpu.ask("MaxPcieLinkWidth"),
    "pci_bus": lambda gpu: as_text(gpu.ask("PciInfo").busId),
    "numa_node": lambda gpu: gpu.ask("NumaNodeId"),
    "nvlinks": lambda gpu: gpu.nvlinks(),
    "compute_processes": lambda gpu: len(gpu.ask("ComputeRunningProcesses")),
}


def visible(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return name, UUID and memory of the GPUs that CUDA_VISIBLE_DEVICES leaves a process, without CUDA or torch.

    A number there is taken in the order of the PCI bus, in which CUDA counts GPUs of one kind.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        gpus = [
            {
                "name": as_text(pynvml.nvmlDeviceGetName(handle)),
                "uuid": as_text(pynvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-"),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            }
            for handle in handles
        ]
    except Exception:  # no GPU, no driver, no module: none is seen
        return []
    if "CUDA_VISIBLE_DEVICES" not in environment:
        return gpus
    named = [name.strip() for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    known = {gpu["uuid"]: gpu for gpu in gpus} | {str(at): gpu for at, gpu in enumerate(gpus)}
    slices = {name: {"name": "MIG slice", "uuid": name, "memory_bytes": None} for name in named if name[:4] == "MIG-"}
    return [found for name in named if (found := (known | slices).get(name.removeprefix("GPU-")))]
