"""A stand-in for NVML: the device of `UUIDS[i]` draws 100(i+1) W, its counter is exact. FAKE_NVML says what is wrong.

Everything that is not replaced here, errors above all, is that of the real module.
"""

import importlib.machinery
import importlib.util
import os
import sys
import time
from types import SimpleNamespace

_spec = importlib.machinery.PathFinder.find_spec(
    "pynvml", [path for path in sys.path if path != os.path.dirname(__file__)]
)
_real = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_real)
globals().update({name: value for name, value in vars(_real).items() if not name.startswith("__")})

UUIDS = [f"{digit * 8}-0000-1111-2222-333333333333" for digit in "abc"]  # as CUDA counts
ORDER = [2, 0, 1]  # as NVML counts
SLICE = "dddddddd-0000-1111-2222-333333333333"  # a MIG slice of the first
MODES = (
    "", "bytes", "no counter", "no power", "neither", "no permission", "no driver", "not there", "mig slice",
    "mig mode", "old", "lost", "reset", "stands still", "coarse", "wraps", "newer", "hangs", "hangs at once", "breaks",
)  # fmt: skip

mode = os.environ.get("FAKE_NVML", "")
clock = time.perf_counter
readings: dict[str, int] = {}
AFTER = 5  # readings of a device, then it is lost, its counter starts again, or the call hangs


def _fail(name):
    raise NVMLError(getattr(_real, f"NVML_ERROR_{name}"))  # noqa: F821


def _text(words):
    return words.encode() if mode == "bytes" else words


def nvmlInit():  # noqa: N802
    if mode == "hangs at once":
        time.sleep(1e6)
    if mode == "no driver":
        _fail("DRIVER_NOT_LOADED")
    if mode == "no permission":
        _fail("NO_PERMISSION")


def nvmlDeviceGetCount():  # noqa: N802
    return len(ORDER)


def nvmlDeviceGetUUID(handle):  # noqa: N802
    return _text(f"GPU-{UUIDS[handle.number]}")


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return SimpleNamespace(number=ORDER[index], slice=False)


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    if mode == "own only" and uuid != f"GPU-{os.environ['FAKE_NVML_SEES']}":
        _fail("NO_PERMISSION")
    if mode != "not there":
        if uuid == f"MIG-{SLICE}":
            return SimpleNamespace(number=0, slice=True)
        for index in range(3):
            handle = nvmlDeviceGetHandleByIndex(index)
            if uuid == f"GPU-{UUIDS[handle.number]}":
                return handle
    return _fail("NOT_FOUND")


def nvmlDeviceGetName(handle):  # noqa: N802
    return _text(f"Tesla T{handle.number}")


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    return [1, 1] if mode == "mig mode" else _fail("NOT_SUPPORTED")


def nvmlDeviceGetTotalEnergyConsumption(handle):  # noqa: N802
    count = readings[handle.number] = readings.get(handle.number, 0) + 1
    if mode == "lost" and count > AFTER:
        _fail("GPU_IS_LOST")
    if mode == "hangs" and count > AFTER:
        time.sleep(1e6)
    if mode == "breaks":
        raise AttributeError("no such function")
    if mode in ("no counter", "neither", "old"):
        _fail("FUNCTION_NOT_FOUND" if mode == "old" else "NOT_SUPPORTED")
    if mode == "stands still":
        return 7_000_000
    began = 0.0 if mode == "reset" and count > AFTER else 1_000_000.0
    now = clock() // 0.1 * 0.1 if mode == "coarse" else clock()
    return 1000 * (began + 100 * (handle.number + 1) * now)


def nvmlDeviceGetPowerUsage(handle):  # noqa: N802
    return _fail("NOT_SUPPORTED") if mode in ("no power", "neither") else 100_000 * (handle.number + 1)


def nvmlDeviceGetFieldValues(handle, fields):  # noqa: N802
    rates = {
        _real.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: 1e6,
        _real.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: 2e6,
    }
    if mode == "newer":
        links = {_real.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES: 1024, _real.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES: 1024}
    else:
        links = {_real.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 1, _real.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1}
    rates |= {field: unit * rate for (field, unit), rate in zip(links.items(), (3e3, 4e3), strict=True)}
    (number, _scope) = fields[0]
    found = _real.c_nvmlFieldValue_t(fieldId=number)
    if number == _real.NVML_FI_DEV_NVLINK_LINK_COUNT and mode != "old":
        found.valueType, found.value.uiVal = _real.NVML_VALUE_TYPE_UNSIGNED_INT, 6
    elif number in rates and mode != "old":
        count = int((1e4 if mode == "wraps" else 1) * rates[number] * (handle.number + 1) * clock())
        found.valueType = _real.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        found.value.ullVal = count % 2**32 if mode == "wraps" else count
    else:
        found.nvmlReturn = _real.NVML_ERROR_NOT_SUPPORTED
    return [found]


def nvmlDeviceGetPcieThroughput(handle, way):  # noqa: N802
    return (1000, 2000)[way == _real.NVML_PCIE_UTIL_TX_BYTES] * (handle.number + 1)  # the other constant is 1


def nvmlDeviceGetEnforcedPowerLimit(handle):  # noqa: N802
    return _fail("NOT_SUPPORTED") if mode == "old" else 1000 * (300 + handle.number)


def nvmlDeviceGetNumaNodeId(handle):  # noqa: N802
    return _fail("NOT_SUPPORTED") if mode == "old" else handle.number % 2


def nvmlDeviceGetMaxPcieLinkGeneration(handle):  # noqa: N802
    return 5


def nvmlDeviceGetMaxPcieLinkWidth(handle):  # noqa: N802
    return 16


def nvmlDeviceGetPciInfo(handle):  # noqa: N802
    return SimpleNamespace(busId=_text(f"00000000:{handle.number:02}:00.0"))


def nvmlDeviceGetNvLinkState(handle, link):  # noqa: N802
    return int(link < 4)


def nvmlDeviceGetMaxClockInfo(handle, kind):  # noqa: N802
    return 2 * nvmlDeviceGetClockInfo(handle, kind)


def nvmlDeviceGetEccMode(handle):  # noqa: N802
    return [1, 0]


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802
    """A neighbour that leaves while we train."""
    return [SimpleNamespace(pid=number) for number in range(1 if readings else 2)]


def nvmlDeviceGetUtilizationRates(handle):  # noqa: N802
    if handle.slice or mode == "mig mode":
        _fail("NOT_SUPPORTED")
    return SimpleNamespace(gpu=(0, 25, 50)[handle.number] if clock() > 0.3 else 0)


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    return SimpleNamespace(used=10**9 * (handle.number + 1), total=8 * 10**10)


def nvmlDeviceGetClockInfo(handle, kind):  # noqa: N802
    return {_real.NVML_CLOCK_SM: 1000, _real.NVML_CLOCK_MEM: 2000}[kind] + handle.number


def nvmlDeviceGetTemperature(handle, sensor):  # noqa: N802
    return 40 + handle.number


def nvmlDeviceGetCurrentClocksEventReasons(handle):  # noqa: N802
    return _fail("FUNCTION_NOT_FOUND") if mode == "old" else _clocks(handle)


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):  # noqa: N802
    return _clocks(handle) if mode == "old" else _fail("FUNCTION_NOT_FOUND")


def _clocks(handle):
    return _real.nvmlClocksThrottleReasonSwPowerCap if handle.number == 2 else _real.nvmlClocksThrottleReasonGpuIdle
