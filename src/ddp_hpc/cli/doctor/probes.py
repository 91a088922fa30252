"""Checks that may crash or hang, each run in a process of its own."""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from ddp_hpc.system.commands import run


def ask(probe: str, timeout_s: float = 60) -> dict[str, Any]:
    """Return what a probe of this module found; `{"error": ...}` if it crashed, hung or could not be asked."""
    said = run([sys.executable, "-m", "ddp_hpc.cli.doctor.probes", probe], timeout_s)
    try:
        answer = json.loads(said.out.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": said.last_words}
    return answer if isinstance(answer, dict) else {"error": f"strange answer: {said.out.strip()}"}


def mpi() -> dict[str, Any]:
    """Ask mpi4py which library it has loaded."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    from ddp_hpc.profiling.mpi_library import mpi_cuda_aware

    library = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
    return {"library": library, "vendor": MPI.get_vendor()[0], "cuda_aware": mpi_cuda_aware()}


def rank() -> dict[str, Any]:
    """Ask one rank how many there are."""
    from mpi4py import MPI

    return {"rank": MPI.COMM_WORLD.rank, "size": MPI.COMM_WORLD.size}


def pytorch() -> dict[str, Any]:
    """Ask torch what it was built for and which GPUs it can use."""
    torch = importlib.import_module("torch")
    usable = torch.cuda.is_available()
    nccl = torch.cuda.nccl.version() if usable else None
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": torch.cuda.device_count() if usable else 0,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def gpus() -> dict[str, Any]:
    """Ask the NVIDIA driver for its GPUs."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"off": str(error)}
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "gpus": [_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())],
    }


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    def or_null(call: Callable[[Any], Any]) -> Any:
        try:
            return call(handle)
        except nvml.NVMLError:  # not supported by this device, or not permitted
            return None

    mig = or_null(nvml.nvmlDeviceGetMigMode)
    memory = or_null(nvml.nvmlDeviceGetMemoryInfo)
    return {
        "name": or_null(nvml.nvmlDeviceGetName),
        "uuid": or_null(nvml.nvmlDeviceGetUUID),
        "memory_bytes": memory and memory.total,
        "mig": None if mig is None else bool(mig[0]),
        "energy_counter": or_null(nvml.nvmlDeviceGetTotalEnergyConsumption) is not None,
    }


PROBES = {"mpi": mpi, "rank": rank, "torch": pytorch, "gpus": gpus}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]]()))
