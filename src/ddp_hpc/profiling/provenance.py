"""The provenance of a run: versions, machine, command, source. It measures nothing and stores no secrets."""

import os
import platform
import re
import resource
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from ddp_hpc import __version__
from ddp_hpc.profiling import topology
from ddp_hpc.profiling.mpi_library import mpi_cuda_aware
from ddp_hpc.system.commands import Said, run
from ddp_hpc.system.files import text_of

if TYPE_CHECKING:
    import torch

_PREFIXES = (
    *("OMP_", "MKL_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "MPICH_", "FI_", "UCX_", "SLURM_"),
    *("NCCL_", "CUDA_", "NVIDIA_", "CUBLAS", "CUDNN_", "PYTORCH_", "TORCH", "TRITON_"),
)
# with one of these, as a hook of git has them, git looks elsewhere than in the folder that it is told
_OTHER_PLACE = frozenset(
    ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|JWT|PRIVATE|KEY", re.IGNORECASE)


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that change how ranks, threads, MPI and GPUs behave; none whose name speaks of a secret."""
    kept = (name for name in sorted(variables) if name.startswith(_PREFIXES) and not _SECRET.search(name))
    return {name: variables[name] for name in kept}


def software(mpi_library: str) -> dict[str, Any]:
    """Return the versions of what computes, of MPI as it says itself; null for what this machine does not have."""
    import torch

    cuda = torch.version.cuda
    nccl = torch.cuda.nccl.version() if cuda and torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return {
        "ddp_hpc": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "driver": _found(r"Module\s+(\S+)", Path("/proc/driver/nvidia/version")),
        "mpi": mpi_library.strip("\0 \n"),
        "mpi_cuda_aware": mpi_cuda_aware(),
        "kernel": platform.release(),
    }


def _found(pattern: str, file: Path) -> str | None:
    """Return the first group of a pattern in a file of the kernel's; None where it has none."""
    found = re.search(pattern, text_of(file), re.MULTILINE)
    return found[1] if found else None


def processor() -> dict[str, Any]:
    """Return this process, its host's processor and network adapters."""
    cpu = _found(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo")) or platform.machine()
    return {
        "pid": os.getpid(),
        "cpu": cpu,
        "clock": _cpu_clock(),
        "numa_nodes": topology.numa_nodes(os.sched_getaffinity(0)),
        "adapters": topology.adapters(),
    }


def of_rank(device: "torch.device") -> dict[str, Any]:
    """Return this rank's processor and, where it has one, its GPU."""
    gpu = None
    if device.type == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        gpu = {"name": properties.name, "uuid": str(properties.uuid), "memory_bytes": properties.total_memory}
    return processor() | {"gpu": gpu}


def _cpu_clock(folder: Path = Path("/sys/devices/system/cpu/cpu0/cpufreq")) -> dict[str, Any] | None:
    """Return who sets the processor's clock, and how high at most; None where Linux does not say (virtual machines)."""
    governor, most_khz = (text_of(folder / f"scaling_{name}").strip() for name in ("governor", "max_freq"))
    return {"governor": governor, "max_mhz": int(most_khz) / 1000} if governor and most_khz.isdigit() else None


# what tells kinds of processors apart: of Intel and AMD, of ARM
_MODEL = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant", "CPU revision")


def machine(cpuinfo: Path = Path("/proc/cpuinfo"), cpu: Path = Path("/sys/devices/system/cpu/cpu0")) -> dict[str, Any]:
    """Return what a table of systems asks of a host, as `lscpu` and `ddp-hpc doctor` tell it; null where it does not.

    `virtual` is whether a hypervisor says that it is there; its cores and caches are then those that it shows.
    """
    flags = (_found(r"^flags\s*:\s*(.+)$", cpuinfo) or "").split()
    model = [_found(rf"^{name}\s*:\s*(\S+)$", cpuinfo) for name in _MODEL]
    caches = {text_of(level.parent / "level").strip(): level for level in sorted(cpu.glob("cache/index*/size"))}
    return {
        "architecture": platform.machine(),
        "cpu_model": " ".join(filter(None, model)) or None,  # a hypervisor often hides the name, `AMD EPYC`
        "cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "sockets": len(set(re.findall(r"^physical id\s*:\s*(\d+)$", text_of(cpuinfo), re.MULTILINE))) or None,
        "last_cache": text_of(caches[max(caches)]).strip() if caches else None,
        "vectors": next((name for name in ("avx512f", "avx2", "asimd") if name in flags), None),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "virtual": "hypervisor" in flags,
        "system": _found(r'^PRETTY_NAME="?([^"\n]+)', Path("/etc/os-release")) or platform.system(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def peak_memory_bytes(device: "torch.device") -> int:
    """Return the most memory that this process ever held: of its GPU (by torch's allocator), else of the host (RSS)."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_reserved(device)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB on Linux
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


def source(files: Collection[str] = (), folder: Path | None = None, surely: str = "perfmodel.py") -> dict[str, Any]:
    """Return the git commit of a folder and whether its code differs from that; both null outside git.

    The folder is this package's by default. It does if a tracked file has changed, or if git does not have one of
    `files`, paths in the folder: these are then listed as `untracked`. Where git refuses to tell, e.g. as another user
    owns the folder, `refused` has its words. `surely` is a file that git has if the folder is in its own repository.
    """

    def git(*words: str) -> Said:
        command = ["git", "-C", str(folder or Path(__file__).parents[1]), *words]
        return run(command, timeout_s=20, environment={k: v for k, v in os.environ.items() if k not in _OTHER_PLACE})

    asked = git("ls-files", "--error-unmatch", surely)
    if asked.code != 0:  # e.g. installed below somebody's repository
        refused = "safe.directory" in asked.err or "dubious ownership" in asked.err
        return {"commit": None, "dirty": None} | ({"refused": asked.err.strip()} if refused else {})
    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    tracked = git("ls-files", "-z", "--", *files).out.split("\0") if files else ()
    untracked = sorted(name for name in files if name.removeprefix("./") not in tracked)
    return {
        "commit": head.out.strip() if head.code == 0 else None,
        "dirty": bool(changes.out.strip() or untracked) if changes.code == 0 else None,
        **({"untracked": untracked} if untracked else {}),
    }


def slurm_job(variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the Slurm job in which this process runs, if any."""
    return variables.get("SLURM_JOB_ID")
