"""What NVML says of a GPU, one reading at a time. What it does not say is missing, and the reason kept: never 0.

Source: https://docs.nvidia.com/deploy/nvml-api, through the module pynvml of nvidia-ml-py.
"""

import time
from collections.abc import Callable
from typing import Any

KIB, KB = 1024, 1000
POLL_EVERY_S = 2.0  # without a counter of PCIe traffic NVML watches it for 20 ms at each call
ALL_LINKS = 0xFFFFFFFF  # scope of an NVLink counter: summed over the links

# what is read, in the order in which it is read: energy and power first, at the time of the sample
COUNTERS = (
    "energy_counter_j",
    "power_w",
    "utilisation",
    "memory_used_bytes",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "throttle_reasons",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
)
OF_A_WHOLE_GPU = ("energy_counter_j", "power_w")
MIG = "a MIG slice has no meter of its own: the GPU's counts all of its slices"

_FINAL = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT")
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")


class Device:
    """A GPU, found by its UUID: the number that NVML gives a GPU is not CUDA's.

    Attributes:
        reasons: by counter, why it was never read; a counter that was read has none.
        lost: why the device answers no more; empty: it does.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Look for the device.

        Args:
            nvml: the module pynvml, initialised.
            uuid: as torch gives it, without prefix, or as NVML does, with `GPU-` or `MIG-`.
        """
        self._nvml = nvml
        self.uuid, self.asked, self.name, self.lost = uuid, uuid, "", ""
        self.reasons: dict[str, str] = {}
        self._final: set[str] = set()
        self._last: dict[str, tuple[int, float]] = {}  # of rising counters: when, how much
        self._polled_ns: dict[str, int] = {}  # of PCIe traffic that has no counter: when it was last asked for
        handle, mig = self._find(uuid)
        if handle is None:
            return
        self._handle = handle
        self._read: dict[str, Callable[[], float | None]] = {name: getattr(self, f"_{name}") for name in COUNTERS}
        if mig:
            for name in OF_A_WHOLE_GPU:
                self._give_up(name, MIG)

    def _find(self, uuid: str) -> tuple[Any, bool]:
        forms = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        problem = ""
        for form in forms:
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(form)
                self.uuid, self.name = form, as_text(self._nvml.nvmlDeviceGetName(handle))
                return handle, form.startswith("MIG-") or self._is_sliced(handle)
            except self._nvml.NVMLError as error:
                problem = problem or as_text(str(error))
        self._lose(f"NVML finds no device of UUID {uuid}: {problem}")
        return None, False

    def _is_sliced(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError:
            return False

    def _lose(self, why: str) -> None:
        self.lost = why
        for name in COUNTERS:
            self.reasons.setdefault(name, why)

    def _give_up(self, name: str, why: str) -> None:
        self.reasons.setdefault(name, why)
        self._final.add(name)

    def read(self) -> dict[str, float]:
        """Return what can be read now, by counter; nothing if the device is lost."""
        found: dict[str, float] = {}
        for name in COUNTERS if not self.lost else ():
            if name in self._final:
                continue
            try:
                value = self._read[name]()
            except self._nvml.NVMLError as error:
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
                found[name] = value
        return found

    def unread(self, read: set[str]) -> dict[str, str]:
        """Return why counters were never read.

        Args:
            read: those that were.
        """
        return {name: self.reasons.get(name, "it never moved") for name in COUNTERS if name not in read}

    def _codes(self, names: tuple[str, ...]) -> list[int]:
        return [getattr(self._nvml, f"NVML_ERROR_{name}") for name in names]

    def _energy_counter_j(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def _power_w(self) -> float:
        try:  # now; the other is the mean of the last second from Ampere on
            return self._field(self._nvml.NVML_FI_DEV_POWER_INSTANT) / 1e3
        except self._nvml.NVMLError:
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3

    def _utilisation(self) -> float:
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100

    def _memory_used_bytes(self) -> float:
        return float(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def _sm_clock_mhz(self) -> float:
        return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))

    def _memory_clock_mhz(self) -> float:
        return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_MEM))

    def _temperature_c(self) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))

    def _throttle_reasons(self) -> float:
        return float(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _pcie_rx_bytes_per_s(self) -> float | None:
        return self._pcie("rx", self._nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, self._nvml.NVML_PCIE_UTIL_RX_BYTES)

    def _pcie_tx_bytes_per_s(self) -> float | None:
        return self._pcie("tx", self._nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, self._nvml.NVML_PCIE_UTIL_TX_BYTES)

    def _pcie(self, way: str, number: int, other: int) -> float | None:
        if way not in self._polled_ns:
            try:
                return self._rate(f"pcie_{way}", number, 1)
            except self._nvml.NVMLError:
                self._polled_ns[way] = 0
        now_ns = time.perf_counter_ns()
        if now_ns - self._polled_ns[way] < 1e9 * POLL_EVERY_S:
            return None
        self._polled_ns[way] = now_ns
        return KB * float(self._nvml.nvmlDeviceGetPcieThroughput(self._handle, other))

    def _nvlink_rx_bytes_per_s(self) -> float | None:
        return self._rate("nvlink_rx", self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KIB, ALL_LINKS)

    def _nvlink_tx_bytes_per_s(self) -> float | None:
        return self._rate("nvlink_tx", self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KIB, ALL_LINKS)

    def _field(self, number: int, scope: int = 0) -> float:
        value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(number, scope)])[0]
        if value.nvmlReturn != 0:
            raise self._nvml.NVMLError(value.nvmlReturn)
        kinds = {
            self._nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            self._nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        return float(getattr(value.value, kinds[value.valueType]))

    def _rate(self, name: str, number: int, unit: int, scope: int = 0) -> float | None:
        """Return how fast a counter rises, in bytes per second; None at first, and where it went back."""
        now_ns, now = time.perf_counter_ns(), unit * self._field(number, scope)
        then_ns, then = self._last.get(name, (now_ns, now))
        self._last[name] = (now_ns, now)
        return (now - then) / (now_ns - then_ns) * 1e9 if now_ns > then_ns and now >= then else None


def as_text(words: str | bytes) -> str:
    """Return words of NVML, which in some versions are bytes, as text."""
    return words.decode(errors="replace") if isinstance(words, bytes) else words
